"""The changes that MCTS makes to its best, and when it stops."""

import functools

import jax
import numpy as np
import pytest

import partir
from partir import zoo
from partir.search import MCTS
from partir.search.changes import Changes, earlier
from partir.search.priors import Priors
from partir.tactics import Search

pytestmark = pytest.mark.jax


@functools.cache
def start():
    example = zoo.gpt(layers=2, d_model=64, heads=4, vocab=256, seq=32, batch=16)
    mesh = partir.Mesh(data=4, model=2)
    traced = partir.jit(example.fun, mesh=mesh, donate_argnums=example.donate_argnums).trace(*example.args)
    return traced.partition([]).assignment


def environment():
    return Search(("data", "model"), target="tpu_v3").environment(start())


def named(env, part, axis, kind="tile"):
    return next(d for d in env.decisions if part in d.name and d.axis == axis and d.kind == kind)


@pytest.fixture
def state():
    env = environment()
    batch, head = (named(env, part, axis) for part, axis in (("batch/targets:0", "data"), ("attention/key", "model")))
    return env, (batch, head, named(env, "batch/targets:0", "model"))


def changes_of(env, state, seen=()):
    changes = Changes(env, Priors(env, np.random.default_rng(0)), {*seen, env.meaning(state)})
    found = []
    while (new := changes.next(state)) is not None:
        changes.seen.add(env.meaning(new))
        found.append(new)
    return found


def test_groups_are_brought_together_and_before_each_other(state):
    _, (batch, head, again) = state

    found = list(earlier((batch, head, again)))

    assert (batch, again, head) in found
    assert (again, batch, head) in found
    assert (head, batch, again) in found


def test_changes_are_of_every_kind_each_once(state):
    env, best = state

    found = changes_of(env, best)

    meanings = [env.meaning(new) for new in found]
    assert len(set(meanings)) == len(meanings)
    assert env.meaning(best) not in meanings
    assert any(len(new) == len(best) + 1 for new in found)
    assert any(len(new) == len(best) + 2 for new in found), "a group on two axes at once"
    assert any(len(new) == len(best) - 1 for new in found)
    embed = {d.name for new in found for d in new} - {d.name for d in best}
    assert len(embed) > 2, "others in the place of a group"


def test_a_group_is_exchanged_for_its_optimizer_state_on_all_axes_at_once():
    env = environment()
    whole = tuple(named(env, "logits/w", axis) for axis in ("data", "model"))

    found = changes_of(env, (named(env, "batch/targets:0", "data"), *whole))

    assert any([d.kind for d in new] == ["tile", "state", "state"] for new in found)


def test_the_kind_of_change_that_helped_goes_on(state):
    env, best = state
    changes = Changes(env, Priors(env, np.random.default_rng(0)), {env.meaning(best)})
    changes.kind = 2

    first = changes.next(best)
    second = changes.next((*best,))

    assert len(first) == len(second) == len(best) + 2


def test_patience_ends_a_search_and_its_absence_does_not():
    short, long = (MCTS(400, patience=patience).search(environment()) for patience in (40, None))

    assert short.finished
    assert long.finished
    assert short.evaluations < long.evaluations
    assert short.price.cost <= 1.05 * long.price.cost


@pytest.mark.parametrize("seed", range(3))
def test_nothing_one_change_away_is_better(seed):
    result = MCTS(400, seed=seed).search(environment())

    env = result.environment
    ranks = [env.price(new).rank for new in changes_of(env, result.state)]
    assert jax.tree.leaves(ranks)
    assert result.price.rank <= min(ranks)

"""The changes that MCTS makes to its best, and when it stops."""

import dataclasses
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


def start():
    return started(layers=2, d_model=64, heads=4, vocab=256, seq=32, batch=16)


def large():
    return started(layers=2, d_model=1024, heads=8, vocab=8192, seq=512, batch=32)


@functools.cache
def started(**sizes):
    example = zoo.gpt(**sizes)
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


def test_parameters_gathered_once_are_a_decision_where_something_is_cut():
    env = environment()
    (once,) = env.gathers((named(env, "batch/targets:0", "data"),))

    assert env.gathers(()) == ()
    assert env.gathers((named(env, "batch/targets:0", "data"), once)) == ()
    gathered = {action.value for action in once.actions}
    assert {"params/layer_0/mlp/up/w", "params/layer_1/attention/query/w"} <= gathered
    assert "params/embed/embeddings" not in gathered, "backward adds to its gradient and does not read it"
    assert not any(name.startswith("opt_state") for name in gathered)
    fsdp = tuple(named(env, part, "data") for part in ("batch/targets:0", "logits/w"))
    assert env.meaning((*fsdp, once)) != env.meaning(fsdp)
    assert env.price((*fsdp, once)).seconds < env.price(fsdp).seconds


def test_search_gathers_once_where_memory_allows_and_not_where_it_does_not():
    start = large()
    found = MCTS(400).search(Search(("data", "model"), target="tpu_v3").environment(start))
    once = [decision for decision in found.state if decision.kind == "gather"]
    assert once, "on a TPU v3 nothing moves beside computation: a gather less is time"

    without = tuple(decision for decision in found.state if decision.kind != "gather")
    small = partir.targets.get("tpu_v3")
    limit = (found.environment.price(without).bytes + found.price.bytes) // 2
    tight = dataclasses.replace(small, hbm_bytes=limit)
    env = Search(("data", "model"), target=tight).environment(start)
    assert env.price(found.state).rank > env.price(without).rank


def test_a_loop_gathers_in_each_round_so_there_is_nothing_to_decide():
    example = zoo.llama(layers=2, d_model=64, heads=4, d_ff=96, vocab=256, seq=32, batch=16)
    mesh = partir.Mesh(data=4, model=2)
    traced = partir.jit(example.fun, mesh=mesh, donate_argnums=example.donate_argnums).trace(*example.args)
    env = Search(("data", "model"), target="tpu_v3").environment(traced.partition([]).assignment)

    once = env.gathers((env.decisions[0],))

    gathered = {action.value for decision in once for action in decision.actions}
    assert "params/logits" in gathered
    assert not any("layers" in value for value in gathered)


def test_alternatives_are_other_kinds_of_strategies_that_fit():
    result = MCTS(200).search(Search(("data", "model"), target="tpu_v3").environment(large()))
    env = result.environment

    other, few = result.alternatives()

    own, sent = env.sent(result.state), env.sent(other)
    differ = sum(abs(own.get(kind, 0) - sent.get(kind, 0)) for kind in {*own, *sent})
    assert differ > 0.2 * max(sum(own.values()), sum(sent.values()))
    assert len(few) <= len(result.state) / 4
    assert all(env.price(state).fits for state in (other, few))
    nearer = [state for state in result.priced if env.price(state).rank < env.price(few).rank]
    assert all(len(state) > len(few) for state in nearer), "none of so few decisions is better"


def test_bytes_sent_are_those_of_the_plan():
    env = environment()
    state = tuple(named(env, part, "data") for part in ("batch/targets:0", "logits/w"))

    assert sum(env.sent(state).values()) == pytest.approx(env.estimate(state).communicated_bytes)

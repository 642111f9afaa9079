"""One suite for the family of searchers, on small models whose best strategies are known."""

import functools
import logging
import signal
from dataclasses import replace
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from equal import assert_same, mesh_of

import partir
from partir import DataParallel, SearchError, TargetError, zoo
from partir.search import MCTS, Beam, Environment, Exhaustive, Random, Result, Searcher
from partir.sharding.actions import Tile
from partir.tactics import Search

pytestmark = pytest.mark.jax

SEARCHERS: dict[str, Searcher] = {
    "mcts": MCTS(episodes=150),
    "beam": Beam(width=3),
    "random": Random(episodes=150),
    "exhaustive": Exhaustive(),
}
NAMES = [pytest.param(name, marks=pytest.mark.slow if name == "exhaustive" else ()) for name in SEARCHERS]
MODELS = {
    "tiny": lambda: zoo.mlp((8, 8), batch=8),
    "layer": lambda: zoo.mlp((256, 512), batch=512, bias=False),
    "mlp": lambda: zoo.mlp((256, 512, 256), batch=512),
    "gpt": lambda: zoo.gpt(layers=2, d_model=64, heads=4, vocab=256, seq=32, batch=16),
    "long": lambda: zoo.gpt(layers=2, d_model=256, heads=4, vocab=256, seq=512, batch=16),
}


@functools.cache
def traced(model: str) -> partir.Traced:
    example = MODELS[model]()
    mesh = partir.Mesh(data=4, model=2)
    return partir.jit(example.fun, mesh=mesh, donate_argnums=example.donate_argnums).trace(*example.args)


def environment(model: str, axes=("data", "model"), schedule=(), **options) -> Environment:
    """A new one each time: prices are not shared between tests."""
    search = Search(axes, target=partir.targets.get("tpu_v3"), **options)
    return search.environment(traced(model).partition(list(schedule)).assignment)


@functools.cache
def found(name: str) -> Result:
    """What a searcher finds for the MLP: looked for once, though several tests ask about it."""
    return SEARCHERS[name].search(environment("mlp", axes=("data",)))


@pytest.mark.parametrize("name", NAMES)
def test_finds_what_no_single_decision_beats(name):
    result = found(name)
    env = result.environment

    assert result.price.rank <= min(env.price((decision,)).rank for decision in env.decisions)
    assert result.price.seconds < env.price(()).seconds
    assert env.exact(result.state) == result.price


@pytest.mark.parametrize("name", NAMES)
def test_the_best_so_far_never_worsens(name):
    result = found(name)

    ranks = [step.price.rank for step in result.trace]
    assert ranks == sorted(ranks, reverse=True)
    assert [step.evaluations for step in result.trace] == sorted(step.evaluations for step in result.trace)


@pytest.mark.parametrize("name", NAMES)
def test_the_same_seed_finds_the_same(name):
    first, second = found(name), found.__wrapped__(name)

    assert first.state == second.state
    assert first.evaluations == second.evaluations


def test_mcts_finds_the_exhaustive_optimum():
    def tiles() -> Environment:
        return environment("layer", filter=lambda decision: decision.kind == "tile")

    best = Exhaustive().search(tiles())
    found = MCTS(episodes=150, patience=None).search(tiles())

    assert found.price.cost == pytest.approx(best.price.cost, rel=1e-9)
    assert best.evaluations > 150


@pytest.mark.parametrize("searcher", [MCTS(episodes=20), Random(episodes=20), Beam(episodes=20)], ids=repr)
def test_a_budget_in_episodes_is_kept(searcher):
    env = environment("gpt")

    searcher.search(env)

    assert env.evaluations <= 2 * 20 + 15  # two an episode, the start, and looking which decisions of the best do nothing


def test_a_budget_in_seconds_ends_with_the_episode_that_spends_it(monkeypatch):
    env, priced = environment("mlp"), []
    a_hundredth_each = SimpleNamespace(monotonic=lambda: env.evaluations / 100)
    monkeypatch.setattr("partir.search.searcher.time", a_hundredth_each)

    result = MCTS(episodes=10**9, seconds=0.5, patience=None).search(env, lambda *_: priced.append(env.evaluations))

    assert result.finished
    assert priced[-2] < 50 <= priced[-1]


def test_an_interrupt_gives_the_best_so_far():
    env = environment("mlp")
    # Workers of a parallel test run ignore the signal.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    price, priced = env.price, []

    def interrupted(state):
        priced.append(price(state))
        if len(priced) == 30:
            signal.raise_signal(signal.SIGINT)
        return priced[-1]

    env.price = interrupted
    try:
        result = MCTS(episodes=10**9, patience=None).search(env)
    finally:
        signal.signal(signal.SIGINT, before)

    assert not result.finished
    assert result.price.rank <= min(price.rank for price in priced[:30])


def test_only_legal_decisions_are_taken():
    env = environment("gpt")
    seen = []
    price = env.price

    def watched(state):
        seen.append(state)
        return price(state)

    env.price = watched
    MCTS(episodes=60).search(env)

    assert len(seen) > 60
    for state in seen:
        cut = [(d.name, d.axis) for d in state if d.kind != "prefer"]
        assert len(cut) == len(set(cut))
        assert not env.assignment(state).claims.undivided


def test_earlier_tactics_stay():
    schedule = [DataParallel("data"), Search("model", MCTS(40))]

    part = traced("gpt").partition(schedule, target="tpu_v3")

    batch_alone = traced("gpt").partition([DataParallel("data")])
    assert part.assignment.actions[: len(batch_alone.assignment.actions)] == batch_alone.assignment.actions
    assert {a.axis for a in part.assignment.actions[len(batch_alone.assignment.actions) :]} == {"model"}


def test_a_scope_limits_the_search_to_what_lives_there():
    search = Search("model", MCTS(10), scopes=["attention-block"], target=partir.targets.get("tpu_v3"))
    part = traced("long").partition([DataParallel("data"), search])

    tiled = [a.value for a in part.assignment.actions if isinstance(a, Tile) and a.axis == "model"]
    assert tiled
    assert all("/attention/" in value for value in tiled)
    assert {value.split("/")[1] for value in tiled} == {"layer_0", "layer_1"}  # once per hint, for all repeats
    assert search.result is not None


def test_repeated_layers_are_one_decision():
    grouped = environment("gpt").decisions
    apart = Search(("data", "model"), target=partir.targets.get("tpu_v3")).environment(
        traced("gpt").partition([]).assignment, grouped=False
    )

    assert len(apart.decisions) > len(grouped)
    assert apart.price(()).seconds == pytest.approx(environment("gpt").price(()).seconds)


def test_more_layers_are_not_more_to_decide():
    def decisions(layers: int):
        example = zoo.gpt(layers=layers, d_model=64, heads=4, vocab=256, seq=32, batch=16)
        made = partir.jit(example.fun, mesh=partir.Mesh(data=4, model=2), donate_argnums=example.donate_argnums)
        start = made.trace(*example.args).partition([]).assignment
        return len(Search(("data", "model"), target="tpu_v3").environment(start).decisions)

    assert decisions(4) == decisions(2)


def test_a_filter_holds_for_all_that_is_offered():
    env = environment("mlp", filter=lambda decision: decision.kind == "tile")
    free = environment("mlp")
    state = tuple(d for d in env.decisions if d.axis == "data")

    assert any(decision.kind == "prefer" for decision in free.legal(state))
    assert all(decision.kind == "tile" for decision in env.legal(state))


def test_what_is_decided_apart_has_names_of_its_own():
    example = zoo.gpt_decode(layers=1, batch=16)
    start = partir.jit(example.fun, mesh=partir.Mesh(model=2)).trace(*example.args).partition([]).assignment
    decisions = Search("model", target="tpu_v3").environment(start).decisions

    assert len({(d.kind, d.name) for d in decisions}) == len(decisions)


def test_where_memory_is_short_what_fits_is_found():
    tight = replace(partir.targets.get("tpu_v3"), hbm_bytes=environment("mlp").price(()).bytes // 3)
    search = Search(("data", "model"), MCTS(150), target=tight)

    traced("mlp").partition([search])

    assert search.result is not None
    assert search.result.price.fits
    assert not search.result.trace[0].price.fits


def test_why_a_decision_is_there_and_what_was_rejected():
    result = MCTS(episodes=100).search(environment("mlp"))

    without = result.without()
    assert [decision for decision, _ in without] == list(result.state)
    assert all(price.rank > result.price.rank for _, price in without)
    assert all(price.rank >= result.price.rank for _, price in result.rejected())


def test_a_search_without_a_target_says_so():
    with pytest.raises(TargetError, match="no target") as error:
        traced("mlp").partition([Search("data")])
    assert "tpu_v2" in str(error.value)


def test_a_search_with_nothing_to_decide_says_so():
    with pytest.raises(SearchError, match="nothing to decide on model"):
        environment("mlp", axes=("model",), scopes=["no-such-scope"])


def test_a_search_that_finds_nothing_better_says_so_and_leaves_the_program(caplog):
    part = traced("tiny").partition([Search("data", MCTS(20))], target="tpu_v3")

    assert "found nothing better" in caplog.text
    assert part.collectives == {}


def test_jit_without_a_schedule_searches_and_says_so(caplog):
    mesh = jax.make_mesh((4, 2), ("data", "model"), axis_types=(jax.sharding.AxisType.Auto,) * 2)
    step = partir.jit(lambda w, x: jax.numpy.tanh(x @ w).sum(), mesh=mesh)
    w, x = np.ones((64, 128), np.float32), np.ones((256, 64), np.float32)

    out = step(w, x)

    assert "searching for one over data, model" in caplog.text
    np.testing.assert_allclose(out, np.tanh(x @ w).sum(), rtol=1e-5)


def test_a_session_searches_after_its_own_steps():
    session = traced("gpt").session(target="tpu_v3").tile("batch/tokens", 0, "data")
    before = session.partitioned

    session.search("model", MCTS(40))

    assert session.partitioned.estimate.step_seconds < before.estimate.step_seconds
    assert session.undo().partitioned.strategy == before.strategy


def test_when_nothing_fits_the_report_says_what_lives_at_the_lowest_peak():
    from partir.viz.found import decisions_table

    nothing = replace(partir.targets.get("tpu_v3"), hbm_bytes=1000.0)
    search = Search(("data", "model"), MCTS(40), target=nothing)
    traced("mlp").partition([search])

    said = str(decisions_table(search.result))

    assert "nothing that was found fits into 1.00 kB" in said
    assert "the largest values alive there:" in said
    assert "params/" in said
    assert "what would help:" in said
    smallest = search.result.environment.price(search.result.smallest)
    assert smallest.bytes <= search.result.price.bytes


def test_a_report_names_a_search_as_its_user_wrote_it():
    example = zoo.mlp()
    traced = partir.jit(example.fun, mesh=partir.Mesh(data=4, model=2)).trace(*example.args)
    part = traced.partition([Search(("data", "model"), MCTS(20))], target="tpu_v3")

    assert part.report().rows[0][0] == "Search(('data', 'model'), algorithm=MCTS(20))"


@pytest.mark.parametrize("seed", range(4))
def test_repeated_parts_taken_once_have_the_price_of_the_whole(seed):
    env, rng = environment("gpt"), np.random.default_rng(seed)
    state = ()
    for _ in range(6):
        offered = env.prefers(state) or env.tiles(state)
        state = (*state, offered[int(rng.integers(len(offered)))])

        assert env.price(state).seconds == pytest.approx(env.exact(state).seconds, rel=1e-3)
        assert env.price(state).bytes == pytest.approx(env.exact(state).bytes, rel=0.03)
    assert any(decision.kind == "prefer" for decision in state)


@pytest.mark.parametrize("seed", range(3))
def test_nothing_that_could_be_added_to_what_is_found_is_better(seed):
    example = zoo.gns(steps=2)
    start = partir.jit(example.fun, mesh=partir.Mesh(data=8)).trace(*example.args).partition([]).assignment
    found = MCTS(300, seed=seed).search(Search("data", target="tpu_v3").environment(start))

    assert all(price.rank >= found.price.rank for _, price in found.rejected(1))


@pytest.mark.parametrize(
    ("fun", "args"),
    [
        (lambda x: 2 * x, (np.ones((3, 5), "float32"),)),
        (lambda x: 2 * x, (np.float16(3),)),
        (lambda w, x: w - jax.grad(lambda w: jnp.sum(jnp.tanh(x @ w)))(w), (np.ones((3, 7)), np.ones((5, 3)))),
        (lambda: jnp.ones(16), ()),
    ],
    ids=["3 rows", "scalar", "gradient", "no argument"],
)
@pytest.mark.parametrize("mesh", ["8", "4x2"])
def test_without_a_schedule_a_function_of_which_nothing_can_be_cut_runs_whole(fun, args, mesh, caplog, x64):
    step = partir.jit(fun, mesh=mesh_of(mesh))

    with caplog.at_level(logging.WARNING, "partir"):
        result = step(*args)

    assert_same(result, jax.jit(fun)(*args))
    assert result.sharding.is_fully_replicated
    assert "no schedule for <lambda>, and no free dim of an argument divides over data" in caplog.text


def test_without_a_schedule_nothing_to_cut_needs_no_target():
    assert partir.jit(lambda x: 2 * x, mesh=partir.Mesh(d=8)).trace(np.ones(3)).partition().collectives == {}

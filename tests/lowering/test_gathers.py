"""Where gathers of parameters for a later phase are held back: late enough to free what forward gathered, early enough to move
while something computes, and never at the price of storing what would not be stored."""

import jax
import jax.numpy as jnp
import pytest

import partir
from partir import DataParallel, GatherOnce, Tile, ZeRO, zoo
from partir.dialect.core import BarrierOp
from partir.dialect.kinds import MATRIX, is_pointwise
from partir.dialect.spmd import AllGatherOp

pytestmark = pytest.mark.jax

SCHEDULE = [DataParallel("data"), ZeRO("data", stage=3)]
ONCE = [DataParallel("data"), ZeRO("data", stage=3, reshard_after_forward=False)]
SIZES = {"layers": 2, "d_model": 64, "heads": 4, "vocab": 512, "seq": 32, "batch": 16}
MODELS = {"gpt": zoo.gpt, "llama": zoo.llama, "vit": zoo.vit, "unet": zoo.unet}


def ops(example, schedule=SCHEDULE):
    mesh = partir.Mesh(data=8)
    part = partir.jit(example.fun, mesh=mesh, donate_argnums=example.donate_argnums).trace(*example.args).partition(schedule)
    return [op for op in part.spmd.walk() if op.parent_op() is not part.spmd]


def barriers(found):
    return [op for op in found if isinstance(op, BarrierOp)]


def shape_of(value):
    return tuple(value.type.get_shape())


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_the_gradient_of_the_logits_is_not_stored_for_a_gather(dtype):
    found = ops(zoo.llama(d_ff=96, **SIZES, dtype=dtype))

    passed = [shape_of(op.operands[-1]) for op in barriers(found)]

    logits = (SIZES["batch"] // 8, SIZES["seq"], SIZES["vocab"])
    assert any(logits == shape_of(result) for op in found for result in op.results if op.name in MATRIX)
    assert logits not in passed
    assert logits[:2] in passed, "the sum of the softmax is what is passed on"


@pytest.mark.parametrize("model", ["gpt", "vit"])
def test_a_value_that_is_passed_on_is_stored_in_any_case(model):
    found = ops(MODELS[model](**{"gpt": SIZES, "vit": {"layers": 2}}[model]))

    for barrier in barriers(found):
        readers = {use.operation for use in barrier.results[-1].uses}
        made = barrier.operands[-1].owner
        small = not is_pointwise(made) and all(op.name not in MATRIX for op in readers)
        assert small or any(op.name in MATRIX or not is_pointwise(op) for op in readers)


def test_a_gather_moves_while_the_contraction_before_its_reader_computes():
    found = ops(zoo.gpt(**SIZES))
    place = {op: k for k, op in enumerate(found)}
    ahead = []
    for barrier in barriers(found):
        for held in barrier.results[:-1]:
            (gather,) = [use.operation for use in held.uses]
            assert isinstance(gather, AllGatherOp)
            readers = [place[use.operation] for use in gather.results[0].uses if use.operation in place]
            between = [op for op in found[place[barrier] : min(readers)] if op.name in MATRIX]
            ahead.append(len(between))

    assert len(ahead) > 10
    assert sum(count > 0 for count in ahead) > 0.7 * len(ahead)
    assert max(ahead) <= 12, "a gather waits for the row before, not for the whole phase"


def test_forward_gathers_wait_for_nothing():
    def loss(params, x):
        for w in params:
            x = jnp.sin(x @ w)
        return jnp.sum(x)

    def step(params, x):
        return jax.tree.map(lambda w, g: w - g, params, jax.grad(loss)(params, x))

    args = [jax.ShapeDtypeStruct((64, 64), "float32")] * 3, jax.ShapeDtypeStruct((32, 64), "float32")
    traced = partir.jit(step, mesh=partir.Mesh(data=8), donate_argnums=(0,)).trace(*args)
    part = traced.partition([DataParallel("data"), ZeRO("data", stage=3, params="params")])

    gathered = [op.operands[0].owner for op in part.spmd.walk() if isinstance(op, AllGatherOp)]
    held = [owner for owner in gathered if isinstance(owner, BarrierOp)]
    assert len(gathered) - len(held) == 3
    assert len(held) == 2, "of the first weights backward reads the activation alone"


# ---- gathered once in a step


def part_of(example, schedule):
    traced = partir.jit(example.fun, mesh=partir.Mesh(data=8), donate_argnums=example.donate_argnums).trace(*example.args)
    return traced.partition(schedule, target="tpu_v3")


@pytest.mark.parametrize("model", ["gpt", "vit", "unet"])
def test_gathered_once_each_parameter_is_gathered_at_most_once_and_nothing_waits(model):
    example = MODELS[model](**{"gpt": SIZES, "vit": {"layers": 2}}.get(model, {}))

    again, once = (ops(example, schedule) for schedule in (SCHEDULE, ONCE))

    assert barriers(again)
    assert not barriers(once)
    gathered = [op.operands[0] for op in once if isinstance(op, AllGatherOp)]
    assert len(set(gathered)) == len(gathered)
    assert len(gathered) < sum(isinstance(op, AllGatherOp) for op in again)


def test_gathered_once_costs_less_communication_and_more_memory():
    again, once = (part_of(zoo.gpt(**SIZES), schedule) for schedule in (SCHEDULE, ONCE))

    assert again.in_specs == once.in_specs
    assert again.estimate.flops == once.estimate.flops
    assert once.estimate.communicated_bytes < again.estimate.communicated_bytes
    assert once.estimate.peak_bytes > again.estimate.peak_bytes


def test_only_what_is_named_is_gathered_once():
    def step(params, x):
        def loss(params):
            y = x
            for w in params.values():
                y = jnp.sin(y @ w)
            return jnp.sum(y)

        return jax.tree.map(lambda w, g: w - g, params, jax.grad(loss)(params))

    args = dict.fromkeys("abc", jax.ShapeDtypeStruct((64, 64), "float32")), jax.ShapeDtypeStruct((64, 64), "float32")
    traced = partir.jit(step, mesh=partir.Mesh(data=8), donate_argnums=(0,)).trace(*args)
    once = [GatherOnce("params/b")]

    again = traced.partition([DataParallel("data"), ZeRO("data", stage=3, params="params")])
    less = traced.partition([*again.strategy.actions, *once])

    assert again.collectives["all_gather"] == 5, "of the first weights backward reads none"
    assert less.collectives["all_gather"] == 4
    batch = [Tile("x", 0, "data")]
    assert traced.partition([*batch, *once]).collectives == traced.partition(batch).collectives


def test_core_says_what_is_gathered_once_and_reading_it_finds_it():
    from partir.coreir.materialise import materialise
    from partir.coreir.read import read_core
    from partir.sharding import plan

    part = part_of(zoo.gpt(**SIZES), ONCE)

    read = read_core(materialise(plan.make(part.assignment)))

    assert {a for a in read.actions if isinstance(a, GatherOnce)} == {
        a for a in part.strategy.actions if isinstance(a, GatherOnce)
    }
    assert plan.make(read).collectives == part.collectives


def test_a_saved_strategy_keeps_it(tmp_path):
    part = part_of(zoo.gpt(**SIZES), ONCE)

    part.strategy.save(tmp_path / "s.json")

    assert partir.load_strategy(tmp_path / "s.json").actions == part.strategy.actions
    assert any(isinstance(action, GatherOnce) for action in part.strategy.actions)


def test_explain_says_that_later_phases_read_the_same_gather():
    example = zoo.gpt(**SIZES)
    again, once = (str(part_of(example, schedule).explain("params/layer_0/mlp/down/w")) for schedule in (SCHEDULE, ONCE))

    assert "and later phases, read it" in " ".join(once.split())
    assert "later phases" not in again
    assert again.count("all_gather") > once.count("all_gather")


def test_a_session_gathers_once_and_refuses_what_changes_nothing():
    example = zoo.gpt(**SIZES)
    traced = partir.jit(example.fun, mesh=partir.Mesh(data=8), donate_argnums=example.donate_argnums).trace(*example.args)
    session = traced.session(mesh=partir.Mesh(data=8)).tile("batch/*", 0, "data").tile("params/layer_0/mlp/down/w", 1, "data")

    before = session.partitioned.collectives
    session.gather_once("params/layer_0/mlp")

    assert "partir.GatherOnce(" in session.code()
    assert session.partitioned.collectives["all_gather"] < before["all_gather"]
    with pytest.raises(partir.NoEffectError, match="decided already"):
        session.gather_once("params/layer_0/mlp")

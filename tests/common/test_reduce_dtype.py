"""In which dtype sums over devices are made: what a tactic, `partir.jit` or an action asks for is in the plan, its price, the
program of one device, the compiled one, and the numbers."""

import re
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from equal import mesh_of
from hlo import collectives_in

import partir
from partir import DataParallel, Megatron, ReduceIn, Tile, ZeRO, zoo
from partir.dialect.spmd import AllReduceOp, CollectiveOp, ReduceScatterOp
from partir.verify.judge import judge_text
from partir.verify.real_compilers import Compilation, Memory
from partir.viz.verification import planned_bytes

pytestmark = pytest.mark.jax

ELEMENTS = {"bfloat16": "bf16", "float16": "f16", "float32": "f32"}
SCHEDULES = {
    "data parallel": lambda dtype: [DataParallel("data", reduce_dtype=dtype)],
    "ZeRO-1": lambda dtype: [DataParallel("data"), ZeRO("data", stage=1, reduce_dtype=dtype)],
    "ZeRO-2": lambda dtype: [DataParallel("data"), ZeRO("data", stage=2, reduce_dtype=dtype)],
    "ZeRO-3": lambda dtype: [DataParallel("data"), ZeRO("data", stage=3, reduce_dtype=dtype)],
}


def step(params, batch):
    """A training step: two gradients that are summed over the batch, and a loss in float32."""

    def loss(params):
        y = jnp.tanh(batch["x"] @ params["up"]) @ params["down"]
        return jnp.mean(jnp.square((y - batch["y"]).astype("float32")))

    value, gradients = jax.value_and_grad(loss)(params)
    return jax.tree.map(lambda w, g: w - 0.1 * g.astype(w.dtype), params, gradients), value


def args_of(dtype):
    shape = jax.ShapeDtypeStruct
    return (
        {"up": shape((16, 32), dtype), "down": shape((32, 16), dtype)},
        {"x": shape((64, 16), dtype), "y": shape((64, 16), dtype)},
    )


def part_of(schedule, dtype="bfloat16", mesh=None, target="tpu_v5e", **options):
    mesh = partir.Mesh(data=8) if mesh is None else mesh
    traced = partir.jit(step, mesh=mesh, donate_argnums=0, **options).trace(*args_of(dtype))
    return traced.partition(schedule, target=target)


def sums_in(part):
    """The element types of what the program of one device adds up, in order."""
    return [str(op.x.type.element_type) for op in part.spmd.walk() if isinstance(op, AllReduceOp | ReduceScatterOp)]


def others_in(part):
    """The element types of what it moves otherwise."""
    found = [
        op for op in part.spmd.walk() if isinstance(op, CollectiveOp) and not isinstance(op, AllReduceOp | ReduceScatterOp)
    ]
    return {str(op.x.type.element_type) for op in found}


def result_types(part):
    (main,) = (op for op in part.spmd.walk() if op.name == "func.func")
    return [str(type_) for type_ in main.function_type.outputs]


def gradient_bytes(sizes):
    """The bytes of all sums but that of the loss."""
    return sizes.get("all_reduce", 0) + sizes.get("reduce_scatter", 0) - 4


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("schedule", SCHEDULES)
def test_narrow_gradients_are_summed_in_float32_for_twice_the_bytes(schedule, dtype):
    plain, wide = (part_of(SCHEDULES[schedule](asked), dtype) for asked in (None, jnp.float32))

    assert wide.collectives == plain.collectives
    assert sorted(sums_in(plain)) == sorted([ELEMENTS[dtype], ELEMENTS[dtype], "f32"])
    assert sums_in(wide) == ["f32", "f32", "f32"]
    assert others_in(wide) == others_in(plain) <= {ELEMENTS[dtype]}, "gathers move what they moved before"
    assert result_types(wide) == result_types(plain)
    before, after = planned_bytes(plain.estimate), planned_bytes(wide.estimate)
    assert gradient_bytes(after) == 2 * gradient_bytes(before)
    assert after.get("all_gather") == before.get("all_gather")
    assert wide.estimate.communicated_bytes > plain.estimate.communicated_bytes
    assert sum(wide.estimate.moved.bytes_by_kind.values()) == wide.estimate.communicated_bytes


def judged(part):
    """The bytes by kind in what XLA for CPU makes of it, as the judge counts them."""
    text = part.lower().compile().as_text()
    assert collectives_in(text) == part.collectives
    return judge_text(Compilation(text, Memory(0, 0, 0, 0)), partir.targets.get("cpu"), part.assignment.mesh).bytes_by_kind


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize(
    ("dtype", "asked"), [("float16", None), ("float16", "float32"), ("bfloat16", None), ("bfloat16", "float32")]
)
def test_what_is_compiled_sends_the_planned_bytes(schedule, dtype, asked):
    """XLA for CPU makes sums of bfloat16 in float32 in any case, and its target says so; those of float16 it leaves. (That of
    jaxlib 0.10 also gathers bfloat16 as float32.)"""
    part = part_of(SCHEDULES[schedule](asked), dtype, mesh_of("8"), "cpu")

    found, planned = judged(part), planned_bytes(part.estimate)
    assert gradient_bytes(found) == gradient_bytes(planned) == (2 if (dtype, asked) == ("float16", None) else 4) * 2 * 16 * 32
    assert dtype == "bfloat16" or found == planned


def summed_rows(w, x):
    """A gradient that is a sum over the batch and nothing else."""
    return jax.grad(lambda w: jnp.sum((x @ w).astype("float32")))(w)


def errors_of(dtype, rng, **asked):
    """How far the gradient is from the one in float64, without and with what is asked: where all devices hold large parts of
    many digits, a sum in a narrow dtype rounds each of them away a little."""
    x = np.asarray(rng.standard_normal((64, 32)) * 8 + 5).astype(dtype)
    w = np.zeros((32, 16), dtype)
    exact = np.asarray(x, np.float64).sum(0)[:, None] * np.ones((1, 16))
    plain = partir.jit(summed_rows, mesh=mesh_of("8"), schedule=[DataParallel("data", inputs="x")])
    other = partir.jit(summed_rows, mesh=mesh_of("8"), schedule=[DataParallel("data", inputs="x", **asked)])
    return [float(np.abs(np.asarray(f(w, x), np.float64) - exact).mean()) for f in (plain, other)]


def test_sums_of_float16_in_float32_lose_fewer_bits(rng):
    plain, wide = errors_of(jnp.float16, rng, reduce_dtype="float32")

    assert wide < 0.75 * plain


def test_sums_of_bfloat16_in_float32_lose_no_more_bits(rng):
    """XLA for CPU makes both in float32."""
    plain, wide = errors_of(jnp.bfloat16, rng, reduce_dtype="float32")

    assert wide <= plain


def test_sums_of_float32_can_be_made_in_a_narrower_dtype(rng):
    plain, narrow = errors_of(jnp.float32, rng, reduce_dtype="float16")

    assert plain < 1e-3 < narrow < 1.0


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_gradients_of_float32_go_for_half_the_bytes_in_bfloat16_and_the_loss_stays(schedule):
    plain, narrow = (part_of(SCHEDULES[schedule](asked), "float32") for asked in (None, jnp.bfloat16))

    assert narrow.collectives == plain.collectives
    assert sorted(sums_in(narrow)) == ["bf16", "bf16", "f32"], "a scalar is not narrowed"
    before, after = planned_bytes(plain.estimate), planned_bytes(narrow.estimate)
    assert 2 * gradient_bytes(after) == gradient_bytes(before)
    assert result_types(narrow) == result_types(plain)


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_a_training_step_gives_what_one_device_gives(schedule, rng):
    args = jax.tree.map(lambda leaf: np.asarray(rng.standard_normal(leaf.shape) / 4).astype(leaf.dtype), args_of("float16"))
    exact = jax.tree.map(lambda leaf: np.asarray(leaf, np.float32), args)

    got = partir.jit(step, mesh=mesh_of("8"), schedule=SCHEDULES[schedule]("float32"))(*args)

    for here, there in zip(jax.tree.leaves(got), jax.tree.leaves(jax.jit(step)(*exact)), strict=True):
        np.testing.assert_allclose(np.asarray(here, np.float32), there, atol=2e-3)
    assert [leaf.dtype for leaf in jax.tree.leaves(got)] == [np.float16, np.float16, np.float32]


def test_jit_asks_for_all_axes_and_a_tactic_for_its_own():
    mesh = partir.Mesh(data=4, model=2)
    schedule = [Tile("batch/x", 0, "data"), Tile("params/up", 1, "model")]

    both = part_of(schedule, mesh=mesh, reduce_dtype="float32")
    less = part_of([*schedule, ReduceIn("data", "bfloat16")], mesh=mesh, reduce_dtype="float32")
    alone = part_of([*schedule, ReduceIn("data", "float32")], mesh=mesh)

    assert both.assignment.summed_in == {"data": "float32", "model": "float32"}
    assert set(sums_in(both)) == {"f32"}
    assert less.assignment.summed_in == {"data": "bfloat16", "model": "float32"}
    assert sorted(sums_in(less)) == sorted(["bf16", "bf16", "f32", "f32"]), "over model the activations, and the loss"
    assert sorted(sums_in(alone)) == sorted(["bf16", "f32", "f32", "f32"]), "the activations stay as they are"


def test_a_sum_over_several_axes_takes_the_widest_of_what_they_ask():
    """The weights are replicated, and the batch over both axes: each gradient is one sum over the two."""
    schedule = [Tile("batch/x", 0, "data"), Tile("batch/x", 0, "model")]
    mesh = partir.Mesh(data=4, model=2)

    def steps(*asked):
        plan = part_of([*schedule, *asked], mesh=mesh).plan
        return {(s.axes, s.dtype) for own in plan.reductions.values() for s in own.steps}

    assert steps() == {(("data", "model"), None)}
    assert steps(ReduceIn("model", "float32")) == {(("data", "model"), "float32"), (("data", "model"), None)}
    assert steps(ReduceIn("model", "float16")) == {(("data", "model"), "float32"), (("data", "model"), None)}, "holds both"
    assert steps(ReduceIn("data", "float16"), ReduceIn("model", "float16")) == {
        (("data", "model"), "float16"),
        (("data", "model"), None),
    }


def test_complex_and_whole_numbers_are_left_alone():
    def sums(x, n):
        return jnp.sum(x * x, 0), jnp.sum(n * n, 0), jnp.max(n.astype("bfloat16"), 0)

    args = jax.ShapeDtypeStruct((64, 4), "complex64"), jax.ShapeDtypeStruct((64, 4), "int32")
    schedule = [Tile("x", 0, "data"), Tile("n", 0, "data"), ReduceIn("data", "float32")]

    part = partir.jit(sums, mesh=partir.Mesh(data=8)).trace(*args).partition(schedule)

    assert sorted(sums_in(part)) == ["bf16", "complex<f32>", "i32"], "a maximum loses nothing"
    assert part.sums == []


def accumulated(w, batches):
    """Gradients of several micro-batches, added up in a loop."""

    def one(total, x):
        gradient = jax.grad(lambda w: jnp.sum(jnp.square(jnp.tanh(x @ w)).astype("float32")))(w)
        return total + gradient, None

    total, _ = jax.lax.scan(one, jnp.zeros_like(w), batches)
    return w - total


def test_what_a_loop_carries_is_summed_once_after_it_in_the_dtype_asked_for(rng):
    shapes = jax.ShapeDtypeStruct((16, 8), "float16"), jax.ShapeDtypeStruct((6, 32, 16), "float16")

    def part(*more):
        schedule = [Tile("batches", 1, "data"), *more]
        return partir.jit(accumulated, mesh=mesh_of("8")).trace(*shapes).partition(schedule, target="tpu_v5e")

    plain, wide = part(), part(ReduceIn("data", "float32"))

    assert plain.collectives == wide.collectives == {"all_reduce": 1}
    assert (sums_in(plain), sums_in(wide)) == (["f16"], ["f32"])
    assert planned_bytes(wide.estimate)["all_reduce"] == 2 * planned_bytes(plain.estimate)["all_reduce"]
    args = [np.asarray(rng.standard_normal(s.shape) / 4).astype(s.dtype) for s in shapes]
    exact = jax.jit(accumulated)(*map(np.float32, args))
    np.testing.assert_allclose(np.asarray(wide(*args), np.float32), exact, atol=2e-2)


def test_layers_in_a_scan_with_bfloat16_activations_under_megatron():
    example = zoo.llama(layers=2, d_model=64, heads=4, d_ff=96, vocab=512, seq=32, batch=16, dtype="bfloat16")
    mesh = partir.Mesh(data=4, model=2)
    traced = partir.jit(example.fun, mesh=mesh, donate_argnums=example.donate_argnums).trace(*example.args)
    schedule = [DataParallel("data"), Megatron("model")]

    plain = traced.partition(schedule, target="tpu_v5e")
    wide = traced.partition([*schedule, ReduceIn("data", "float32"), ReduceIn("model", "float32")], target="tpu_v5e")

    assert "bf16" in sums_in(plain)
    assert set(sums_in(wide)) == {"f32"}
    assert wide.collectives == plain.collectives
    assert wide.estimate.communicated_bytes > 1.2 * plain.estimate.communicated_bytes
    assert wide.estimate.step_seconds > plain.estimate.step_seconds


def test_search_decides_with_the_bytes_that_are_asked_for():
    part = part_of([DataParallel("data", reduce_dtype="float32"), partir.Search("data", partir.search.Beam(2))])
    parts = part_of([DataParallel("data", reduce_dtype="float32")])

    environment = partir.Search("data").environment(parts.assignment, partir.targets.get("tpu_v5e"))

    assert set(sums_in(part)) == {"f32"}
    assert environment.exact(()).seconds == pytest.approx(parts.estimate.step_seconds)


@pytest.mark.parametrize(
    "topology", [pytest.param("tpu:v5e:2x4", marks=pytest.mark.tpu), pytest.param("gpu:h100:8", marks=pytest.mark.gpu)]
)
@pytest.mark.parametrize("asked", [None, "float32"])
def test_the_real_compilers_send_the_planned_bytes(topology, asked):
    """As partir.cost.machines says: bfloat16 is sent as it is, and as float32 where that is asked for."""
    part = part_of([DataParallel("data", reduce_dtype=asked), ZeRO("data", stage=2)])

    found = part.verify(topology)

    assert found.judgement.bytes_by_kind == found.planned_bytes


def test_the_target_says_what_a_compiler_does_in_any_case():
    part = part_of([DataParallel("data")])
    plain = planned_bytes(part.estimate)["all_reduce"]
    widening = replace(partir.targets.get("tpu_v5e"), sums_as={"bfloat16": "float32"})

    other = part_of([DataParallel("data")], target=widening)

    assert planned_bytes(other.estimate)["all_reduce"] - 4 == 2 * (plain - 4)
    assert sums_in(other) == sums_in(part), "the program is what it was"


def test_the_compiled_program_adds_up_what_the_plan_says():
    part = part_of([DataParallel("data", reduce_dtype="float32")], "float16", mesh_of("8"))

    text = part.lower().compile().as_text()

    reduced = [line.split(" all-reduce(")[0] for line in text.splitlines() if " all-reduce(" in line]
    assert {dtype for types in reduced for dtype in re.findall(r"(\w+)\[", types)} == {"f32"}

"""The collectives of the known strategies, counted: as the literature says, and no other in what XLA compiles."""

import functools
import math
from collections import Counter
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from equal import assert_same, mesh_of
from hlo import collectives_in
from jax.sharding import PartitionSpec
from jax.sharding import PartitionSpec as P
from schedules import SCHEDULES

import partir
from partir import Megatron, zoo
from partir.zoo import Example

pytestmark = pytest.mark.jax

LAYERS = (1, 2, 3)
_SMALL = {"d_model": 32, "heads": 4, "vocab": 64, "seq": 8, "batch": 8}

GPTS = {
    "plain": {},
    "grouped": {"kv_heads": 2},
    "swiglu": {"mlp": "swiglu", "norm": "rms", "bias": False},
    "clipped": {"clip": 0.1},
    "flattened": {"flatten": True},
}
"""Variants of the model; all have a query, key and value matrix, and two norms, in each layer."""


@functools.cache
def model(layers: int, variant: str = "plain") -> Example:
    return zoo.gpt(layers, **_SMALL, **GPTS[variant])


@functools.cache
def traced(layers: int, variant: str = "plain") -> partir.Traced:
    example = model(layers, variant)
    return partir.jit(example.fun, mesh=mesh_of("4x2"), donate_argnums=example.donate_argnums).trace(*example.args)


@functools.cache
def partitioned(layers: int, schedule: str, variant: str = "plain") -> partir.Partitioned:
    return traced(layers, variant).partition(SCHEDULES[schedule])


def parameter_paths(layers: int, variant: str = "plain") -> list[str]:
    """The paths of the parameters, one for each tensor."""
    leaves = jax.tree_util.tree_leaves_with_path(model(layers, variant).args[0])
    return [jax.tree_util.keystr(path, simple=True, separator="/") for path, _ in leaves]


def names_axis(spec: PartitionSpec, axis: str) -> bool:
    return any(axis == entry or axis in (entry or ()) for entry in spec)


def sharded_by_zero(part: partir.Partitioned) -> list[str]:
    """The parameters whose first moment is sharded over the data axis."""
    _, (adam, *_), _ = part.in_specs
    leaves = jax.tree_util.tree_leaves_with_path(adam.mu, is_leaf=lambda x: isinstance(x, PartitionSpec))
    return [jax.tree_util.keystr(p, simple=True, separator="/") for p, spec in leaves if names_axis(spec, "data")]


def spmd_ops(part: partir.Partitioned, name: str) -> list[Any]:
    return [op for op in part.spmd.walk() if op.name == f"spmd.{name}"]


def phases_of(ops: list[Any]) -> Counter[str]:
    return Counter(op.attributes["partir.origin"].phase.data for op in ops)


# ---- the table of the issue


@pytest.mark.parametrize("variant", GPTS)
@pytest.mark.parametrize("layers", LAYERS)
def test_data_parallel_reduces_each_gradient_and_the_loss(layers, variant):
    counts = partitioned(layers, "batch", variant).collectives

    assert counts == {"all_reduce": len(parameter_paths(layers, variant)) + 1}


@pytest.mark.parametrize("variant", ["plain", "grouped", "swiglu", "flattened"])
@pytest.mark.parametrize("layers", LAYERS)
def test_megatron_reduces_twice_per_layer_and_direction(layers, variant):
    part = partitioned(layers, "megatron", variant)

    assert part.collectives == {"all_reduce": 4 * layers}
    assert phases_of(spmd_ops(part, "all_reduce")) == {"forward": 2 * layers, "backward": 2 * layers}


@pytest.mark.parametrize("layers", LAYERS)
def test_both_are_the_sum(layers):
    counts = partitioned(layers, "both").collectives

    assert counts == {"all_reduce": len(parameter_paths(layers)) + 1 + 4 * layers}


@pytest.mark.parametrize(("schedule", "below"), [("zero2", "batch"), ("both+zero2", "both"), ("zero1", "batch")])
@pytest.mark.parametrize("layers", LAYERS)
def test_zero_2_scatters_gradients_and_gathers_new_parameters(layers, schedule, below):
    part = partitioned(layers, schedule)
    sharded = len(sharded_by_zero(part))

    assert part.collectives == {
        "all_gather": sharded,
        "all_reduce": partitioned(layers, below).collectives["all_reduce"] - sharded,
        "reduce_scatter": sharded,
    }
    assert all(use.operation.name == "func.return" for op in spmd_ops(part, "all_gather") for use in op.results[0].uses), (
        "what is gathered is a new parameter, on its way out"
    )


@pytest.mark.parametrize(("schedule", "below"), [("zero3", "batch"), ("both+zero3", "both")])
@pytest.mark.parametrize("layers", LAYERS)
def test_zero_3_gathers_once_in_each_phase_that_reads_the_parameter(layers, schedule, below):
    part = partitioned(layers, schedule)
    sharded = sharded_by_zero(part)
    read_backward = [path for path in sharded if path.endswith(("/w", "/scale"))]

    assert part.collectives == {
        "all_gather": len(sharded) + len(read_backward),
        "all_reduce": partitioned(layers, below).collectives["all_reduce"] - len(sharded),
        "reduce_scatter": len(sharded),
    }
    assert phases_of(spmd_ops(part, "all_gather")) == {"forward": len(sharded), "backward": len(read_backward)}
    params, (adam, *_), _ = part.in_specs
    assert params == adam.mu == adam.nu


def test_zero_shards_every_matrix_and_all_that_has_the_width():
    sharded = sharded_by_zero(partitioned(2, "zero3"))

    assert {path for path in parameter_paths(2) if path not in sharded} == {
        f"layer_{i}/attention/{name}/b" for i in range(2) for name in ("query", "key", "value")
    }


@pytest.mark.parametrize("layers", LAYERS)
def test_sequence_parallel_leaves_no_all_reduce_of_activations(layers):
    part = partitioned(layers, "megatron+sequence")
    gathers, scatters = spmd_ops(part, "all_gather"), spmd_ops(part, "reduce_scatter")
    constant = 5

    assert part.collectives == {
        "all_gather": 4 * layers,
        "all_reduce": 6 * layers + constant,
        "reduce_scatter": 4 * layers,
    }
    assert phases_of(gathers) == phases_of(scatters) == {"forward": 2 * layers, "backward": 2 * layers}
    for op in gathers:
        assert op.results[0].type.get_shape() == (8, 8, 32), "only activations move, no masks"
    for op in spmd_ops(part, "all_reduce"):
        assert math.prod(op.results[0].type.get_shape()) <= 64 * 32, "gradients of parameters, and the loss"


# ---- models of another form: nothing is looked up by name


def _fused_step(layers: int) -> tuple[Any, tuple[Any, ...]]:
    """Gradients of a transformer with one matrix for query, key and value, which is split by slicing."""

    def block(x: jax.Array, p: dict[str, jax.Array]) -> jax.Array:
        batch, seq, width = x.shape
        query, key, value = (y.reshape(batch, seq, 4, 8) for y in jnp.split(_normal(x) @ p["fused"], 3, axis=-1))
        weights = jax.nn.softmax(jnp.einsum("bqnh,bsnh->bnqs", query, key))
        x = x + jnp.einsum("bnqs,bsnh->bqnh", weights, value).reshape(batch, seq, width) @ p["out"]
        return x + jax.nn.gelu(_normal(x) @ p["up"]) @ p["down"]

    def step(params: list[dict[str, jax.Array]], x: jax.Array) -> Any:
        def loss(params: Any) -> jax.Array:
            return jnp.mean(functools.reduce(block, params, x) ** 2)

        value, gradients = jax.value_and_grad(loss)(params)
        return jax.tree.map(lambda p, g: p - 0.1 * g, params, gradients), value

    shapes = {"fused": (32, 96), "out": (32, 32), "up": (32, 64), "down": (64, 32)}
    layer = {name: jax.ShapeDtypeStruct(shape, "float32") for name, shape in shapes.items()}
    return step, ([layer] * layers, jax.ShapeDtypeStruct((8, 8, 32), "float32"))


def _normal(x: jax.Array) -> jax.Array:
    centred = x - jnp.mean(x, axis=-1, keepdims=True)
    return centred * jax.lax.rsqrt(jnp.mean(centred**2, axis=-1, keepdims=True) + 1e-5)


@pytest.mark.parametrize("layers", LAYERS)
def test_megatron_reduces_as_often_where_query_key_and_value_are_one_matrix(layers):
    step, args = _fused_step(layers)

    part = partir.jit(step, mesh=mesh_of("4x2"), donate_argnums=0).trace(*args).partition([Megatron("model")])

    # One less than 4 a layer: nobody asks for the gradient of the first layer's input, which is no parameter's. The heads lie
    # inside each third of the fused matrix, where no PartitionSpec can say it: at the boundary it is whole.
    assert part.collectives == {"all_reduce": 4 * layers - 1, "all_gather": layers}


@pytest.mark.parametrize("kv_heads", [1, 2, 4, 8])
def test_key_value_heads_fewer_than_the_devices(kv_heads):
    """CASES a3: on 4 devices fewer than 4 stay replicated and the query heads are split within each; no activation is
    gathered."""
    example = zoo.gpt(1, **_SMALL | {"heads": 8, "d_model": 64, "kv_heads": kv_heads})
    tr = partir.jit(example.fun, mesh=mesh_of("2x4"), donate_argnums=example.donate_argnums).trace(*example.args)

    part = tr.partition(SCHEDULES["megatron"])

    attention = "layer_0/attention"
    whole = kv_heads < 4
    assert part.in_specs[0][f"{attention}/key"]["w"] == (P() if whole else P(None, "model"))
    # Gradients of the keys and of the values sum over the query heads of all devices.
    assert part.collectives["all_reduce"] == 4 + 2 * whole
    gathered = [op.results[0].type.get_shape() for op in spmd_ops(part, "all_gather")]
    assert set(gathered) <= {(64, 64), (64,)}, "parameters, whose heads no PartitionSpec can say"
    assert not gathered or kv_heads == 2


PARTIR_T32 = {"batch": {"all_reduce": 290}, "megatron": {"all_reduce": 128}, "both": {"all_reduce": 418}}
"""Published: Alabed et al. 2024 (arXiv 2401.11202), the 32-layer transformer."""


def test_partirs_own_transformer_has_its_published_counts():
    example = zoo.partir_t32()
    traced = partir.jit(example.fun, mesh=partir.Mesh(data=4, model=2)).trace(*example.args)

    counts = {name: traced.partition(SCHEDULES[name]).collectives for name in PARTIR_T32}

    assert counts == PARTIR_T32


# ---- what XLA compiles is what was planned


_COLLECTIVE_OPS = {f"spmd.{k}" for k in ["all_gather", "all_reduce", "reduce_scatter", "all_to_all", "collective_permute"]}


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_module_has_exactly_the_planned_collectives(schedule):
    part = partitioned(2, schedule)

    written = Counter(op.name.removeprefix("spmd.") for op in part.spmd.walk() if op.name in _COLLECTIVE_OPS)

    assert part.collectives == dict(written)


@pytest.mark.parametrize("schedule", ["batch", "both+zero3", "both+sequence"])
def test_compiled_step_has_exactly_the_planned_collectives(schedule):
    """Of three layers; `test_tactics` says the same of everything it runs."""
    part = partitioned(3, schedule)

    assert collectives_in(part.lower().compile().as_text()) == part.collectives


@pytest.mark.parametrize(
    ("x", "w", "out", "expected"),
    [
        (P(None, "model"), P("model"), P("model"), {"reduce_scatter": 1}),
        (P(None, "model"), P("model"), P(None, "model"), {"reduce_scatter": 1}),
        (P(None, "model"), P("model"), P(), {"all_reduce": 1}),
        (P(None, "model"), P("model"), P("data"), {"all_reduce": 1}),
        (P("data", "model"), P("model"), P("data", "model"), {"reduce_scatter": 1}),
        (P("data"), P(None, "model"), P("data", "model"), {}),
        (P("data"), P(None, "data"), P("data"), {"all_gather": 1}),
        (P(), P(), P("data", "model"), {}),
        (P("data"), P(), P(None, "data"), {"all_to_all": 1}),
        (P(("data", "model")), P(), P("data"), {"all_gather": 1}),
    ],
)
def test_matmul_between_given_layouts(x, w, out, expected, rng):
    """A contraction over an axis that the result is wanted over is one reduce_scatter."""
    args = rng.standard_normal((16, 8), "float32"), rng.standard_normal((8, 32), "float32")
    step = partir.jit(jnp.matmul, mesh=mesh_of("4x2"), in_shardings=(x, w), out_shardings=out, schedule=[])

    part = step.trace(*args).partition()

    assert part.in_specs == (x, w)
    assert part.out_specs == out
    assert part.collectives == expected
    np.testing.assert_allclose(step(*args), args[0] @ args[1], rtol=1e-4, atol=1e-5)


# ---- a step is a fixed point, in place


def local_bytes(shapes: Any, shardings: Any) -> int:
    """What one device holds of some arrays."""
    return sum(
        math.prod(sharding.shard_shape(leaf.shape)) * leaf.dtype.itemsize
        for leaf, sharding in zip(jax.tree.leaves(shapes), jax.tree.leaves(shardings), strict=True)
    )


@pytest.mark.parametrize("schedule", [name for name in SCHEDULES if name not in ("zero1", "batch", "first")])
def test_step_is_a_fixed_point_and_works_in_place(schedule):
    example = model(1)
    part = partitioned(1, schedule)
    compiled = part.lower().compile()

    assert part.out_specs[:2] == part.in_specs[:2]
    aliased = compiled.memory_analysis().alias_size_in_bytes
    assert aliased == local_bytes(example.args[:2], part.in_shardings[:2])


@pytest.mark.parametrize("schedule", ["both+zero2", "both+zero3", "both+sequence"])
def test_second_step_takes_the_first_ones_results_as_they_lie(schedule):
    part = partitioned(1, schedule)
    compiled = part.lower().compile()
    params, opt_state, batch = jax.device_put(model(1).concrete(), part.in_shardings)
    buffers = jax.tree.leaves((params, opt_state))

    params, opt_state, first_loss = compiled(params, opt_state, batch)
    assert all(buffer.is_deleted() for buffer in buffers)
    _, _, second_loss = compiled(params, opt_state, batch)  # an AOT call refuses arrays that lie otherwise

    assert float(second_loss) < float(first_loss)


@pytest.mark.parametrize("schedule", ["both+zero3", "megatron+sequence"])
def test_an_axis_of_one_device_costs_nothing(schedule, x64):
    example = model(1)
    args = example.concrete(dtype="float64")
    mesh = jax.make_mesh((1, 1), ("data", "model"), devices=jax.devices()[:1])
    part = partir.jit(example.fun, mesh=mesh).trace(*args).partition(SCHEDULES[schedule])

    assert part.collectives == {}
    assert collectives_in(part.lower().compile().as_text()) == {}
    assert_same(part(*args), jax.jit(example.fun)(*args))

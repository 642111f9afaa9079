"""Expert parallelism: GShard's all_to_alls and no others, whatever form the model writes its experts in."""

import functools
import math
from collections import Counter
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from equal import assert_same, mesh_of
from hlo import collectives_in
from jax.sharding import PartitionSpec as P
from specs_table import table_of

import partir
from partir import DataParallel, ExpertParallel, Manual, Megatron, NoEffectError, ZeRO, zoo
from partir.runtime.interpret import interpret
from partir.zoo import Example

pytestmark = pytest.mark.jax

DATA, EXPERTS = DataParallel("data"), ExpertParallel("data")
SMALL = {"d_model": 32, "heads": 4, "experts": 8, "vocab": 64, "seq": 8, "batch": 8}


@functools.cache
def traced(layers: int) -> partir.Traced:
    """The zoo's model with experts in every second layer."""
    example = zoo.moe(layers, **SMALL)
    return partir.jit(example.fun, mesh=mesh_of("4x2"), donate_argnums=example.donate_argnums).trace(*example.args)


def parameter_count(tr: partir.Traced) -> int:
    return sum(leaf.path[0] == "params" for leaf in tr.arguments)


def phases_of(part: partir.Partitioned, kind: str) -> Counter[str]:
    return Counter(op.attributes["partir.origin"].phase.data for op in part.spmd.walk() if op.name == f"spmd.{kind}")


# ---- what it costs


@pytest.mark.parametrize("mixtures", [1, 2])
def test_two_all_to_alls_per_layer_and_direction(mixtures):
    tr = traced(2 * mixtures)

    part = tr.partition([DATA, EXPERTS])

    shared = parameter_count(tr) - 2 * mixtures
    assert part.collectives == {"all_reduce": shared + 1, "all_to_all": 4 * mixtures}
    assert phases_of(part, "all_to_all") == {"forward": 2 * mixtures, "backward": 2 * mixtures}


def test_experts_are_sharded_and_their_gate_is_whole():
    params, (adam, *_), batch = traced(2).partition([DATA, EXPERTS]).in_specs

    assert params["layer_1/moe/experts"] == {"up": P("data"), "down": P("data")}
    assert adam.mu == adam.nu == params
    assert params["layer_1/moe/gate"]["w"] == P()
    assert batch == {"tokens": P("data"), "targets": P("data")}


def test_alone_it_splits_the_batch_as_well():
    tr = traced(2)

    alone, after = tr.partition([EXPERTS]), tr.partition([DATA, EXPERTS])

    assert alone.assignment.same_effect(after.assignment)
    assert alone.collectives == after.collectives


def test_megatron_runs_inside_the_experts():
    tr = traced(2)

    part = tr.partition([DATA, EXPERTS, Megatron("model")])

    assert part.in_specs[0]["layer_1/moe/experts"] == {"up": P("data", None, "model"), "down": P("data", "model")}
    without = tr.partition([DATA, EXPERTS]).collectives
    assert part.collectives == without | {"all_reduce": without["all_reduce"] + 4 * 2}


@pytest.mark.parametrize("stage", [2, 3])
def test_zero_shards_all_that_experts_leave_whole(stage):
    tr = traced(2)
    shared = parameter_count(tr) - 2

    part = tr.partition([EXPERTS, ZeRO("data", stage=stage)])

    read_backward = sum(leaf.path[0] == "params" and leaf.path[-1] in ("w", "scale") for leaf in tr.arguments)
    gathers = shared if stage == 2 else shared + read_backward
    assert part.collectives == {"all_gather": gathers, "all_reduce": 1, "reduce_scatter": shared, "all_to_all": 4}


def test_experts_over_two_axes_move_over_both_at_once():
    part = traced(2).partition([EXPERTS, ExpertParallel("model")])

    assert part.in_specs[0]["layer_1/moe/experts"]["up"] == P(("data", "model"))
    assert part.collectives["all_to_all"] == 4


def test_experts_on_one_of_two_batch_axes_are_summed_over_the_other():
    tr = traced(2)

    part = tr.partition([DATA, ExpertParallel("model")])

    assert part.in_specs[2]["tokens"] == P(("data", "model"))
    assert part.collectives == {"all_reduce": parameter_count(tr) + 1, "all_to_all": 4}


SCHEDULES = {
    "expert": [DATA, EXPERTS],
    "expert+megatron": [DATA, EXPERTS, Megatron("model")],
    "expert+megatron+zero3": [DATA, EXPERTS, Megatron("model"), ZeRO("data", stage=3)],
}


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_what_a_schedule_decides(schedule, golden):
    golden(f"moe-4x2-{schedule}", table_of(traced(2).partition(SCHEDULES[schedule])))


def test_a_strategy_fits_other_sizes():
    strategy = traced(2).partition([EXPERTS, Megatron("model")]).strategy
    larger = zoo.moe(2, **SMALL | {"experts": 16, "batch": 16, "d_model": 64})

    part = partir.jit(larger.fun, mesh=partir.Mesh(data=4, model=2)).trace(*larger.args).partition([strategy])

    assert part.collectives == traced(2).partition([EXPERTS, Megatron("model")]).collectives


@pytest.mark.slow
def test_two_hundred_billion_parameters_on_2048_devices():
    example = zoo.moe(**zoo.GSHARD["200B"], vocab=64_000, seq=128, batch=2048)
    step = partir.jit(example.fun, mesh=partir.Mesh(data=2048), donate_argnums=example.donate_argnums)

    part = step.trace(*example.args).partition([EXPERTS])

    experts = 2 * 6
    assert part.collectives == {"all_reduce": parameter_count(part.traced) - experts + 1, "all_to_all": 4 * 6}
    expert_shapes = {op.operands[0].type.get_shape() for op in part.spmd.walk() if op.name == "spmd.all_to_all"}
    assert all(math.prod(shape) == 2048 * 1 * 1024 for shape in expert_shapes), "a place in each expert for a device's group"


# ---- the same numbers as one device


def assert_same_as_one_device(example: Example, mesh: str, schedule: Any) -> partir.Partitioned:
    """In float64, with the planned collectives and no others in what XLA compiled."""
    args = example.concrete(dtype="float64")
    part = partir.jit(example.fun, mesh=mesh_of(mesh)).trace(*args).partition(schedule)
    compiled = part.lower().compile()
    assert collectives_in(compiled.as_text()) == part.collectives
    assert_same(compiled(*jax.device_put(args, part.in_shardings)), jax.jit(example.fun)(*args))
    return part


@pytest.mark.parametrize(
    ("mesh", "schedule"),
    [("8", [EXPERTS]), ("2x2x2", [DATA, ExpertParallel("model"), Megatron("stage"), ZeRO("data", stage=3)])],
)
def test_a_step_equals_one_device(mesh, schedule, x64):
    sizes = {"d_model": 16, "heads": 4, "experts": 8, "vocab": 16, "seq": 4, "batch": 8}

    assert_same_as_one_device(zoo.moe(1, **sizes, every=1, d_ff=16, clip=1.0, optimizer="sgd"), mesh, schedule)


# ---- other forms: nothing is looked up by name


def picked(gates: jax.Array, capacity: int) -> jax.Array:
    """The weight [..., T, E, C] of each expert's places in each token, by the best of its gates [..., T, E]."""
    mask = jax.nn.one_hot(jnp.argmax(gates, axis=-1), gates.shape[-1], dtype="int32")
    place = jnp.sum((jnp.cumsum(mask, axis=-2) - mask) * mask, axis=-1)
    return (gates * mask)[..., None] * jax.nn.one_hot(place, capacity, dtype=gates.dtype)[..., None, :]


def by_contractions(p: Any, x: jax.Array) -> jax.Array:
    combine = picked(jax.nn.softmax(x @ p["gate"]), 4)
    sent = jnp.einsum("gtec,gtm->egcm", (combine > 0).astype(x.dtype), x)
    made = jnp.einsum("egch,ehm->egcm", jax.nn.relu(jnp.einsum("egcm,emh->egch", sent, p["up"])), p["down"])
    return jnp.einsum("gtec,egcm->gtm", combine, made)


def of_one_group(p: Any, x: jax.Array) -> jax.Array:
    combine = picked(jax.nn.softmax(x @ p["gate"]), 4)
    sent = jnp.einsum("tec,tm->ecm", (combine > 0).astype(x.dtype), x)
    made = jax.vmap(lambda sent, up, down: jax.nn.relu(sent @ up) @ down)(sent, p["up"], p["down"])
    return jnp.einsum("tec,ecm->tm", combine, made)


def vmapped(p: Any, x: jax.Array) -> jax.Array:
    return jax.vmap(functools.partial(of_one_group, p))(x)


def without_groups(p: Any, x: jax.Array) -> jax.Array:
    return of_one_group(p, x.reshape(-1, x.shape[-1])).reshape(x.shape)


def gated_units_recomputed(p: Any, x: jax.Array) -> jax.Array:
    @jax.checkpoint
    def layer(x: jax.Array) -> jax.Array:
        combine = picked(jax.nn.softmax(x @ p["gate"]), 4)
        sent = jnp.einsum("gtec,gtm->egcm", (combine > 0).astype(x.dtype), x)
        up, unit = (jnp.einsum("egcm,emh->egch", sent, w) for w in (p["up"], p["unit"]))
        made = jnp.einsum("egch,ehm->egcm", jax.nn.silu(unit) * up, p["down"]) + p["offset"][:, None, None]
        return jnp.einsum("gtec,egcm->gtm", combine, made)

    return layer(x)


def experts_choose(p: Any, x: jax.Array) -> jax.Array:
    """Experts pick their tokens by index (Zhou et al. 2022), and what they make is weighted before it is sent back."""
    weights, chosen = jax.lax.top_k(jnp.swapaxes(jax.nn.softmax(x @ p["gate"]), 1, 2), 2)
    sent = jax.vmap(lambda x, chosen: x[chosen])(x, chosen)
    hidden = jax.nn.relu(jnp.einsum("gecm,emh->gech", sent, p["up"]))
    made = jnp.einsum("gech,ehm->gecm", hidden, p["down"]) * weights[..., None]
    return jax.vmap(lambda x, made, chosen: jnp.zeros_like(x).at[chosen].add(made))(x, made, chosen)


def scanned(p: Any, x: jax.Array) -> jax.Array:
    stacks = {name: jnp.stack([w, w + 1]) for name, w in p.items()}
    return jax.lax.scan(lambda x, p: (x + by_contractions(p, x), None), x, stacks)[0]


FORMS: dict[Any, dict[str, int]] = {
    by_contractions: {"all_reduce": 3, "all_to_all": 4},
    vmapped: {"all_reduce": 3, "all_to_all": 4},
    experts_choose: {"all_reduce": 3, "all_to_all": 4},
    # What is sent, and what was made (for the gate's gradient), are made and moved again in the backward pass.
    gated_units_recomputed: {"all_reduce": 3, "all_to_all": 6},
    # Two layers, each with a gate of its own.
    scanned: {"all_reduce": 4, "all_to_all": 2 * 4},
    # A contraction over all tokens is summed and scattered to the experts, and gathered again. One gather more for the
    # running count of tokens.
    without_groups: {"all_gather": 3, "all_reduce": 3, "reduce_scatter": 2},
}
"""The collectives of a step: gradients of the gate and of a matrix before it are reduced, and the loss."""


def example_of(form: Any, dtype: str = "float32") -> Example:
    """One step of gradient descent on a matrix and what `form` makes of its product."""
    shapes = {"first": (8, 8), "gate": (8, 8), "up": (8, 8, 16), "down": (8, 16, 8)}
    if form is gated_units_recomputed:
        shapes |= {"unit": (8, 8, 16), "offset": (8, 8)}

    def step(params: Any, x: jax.Array) -> Any:
        def loss(params: Any) -> jax.Array:
            return jnp.mean((x + form(params, x @ params["first"])) ** 2)

        value, gradients = jax.value_and_grad(loss)(params)
        return jax.tree.map(lambda p, g: p - 0.1 * g, params, gradients), value

    params = {name: jax.ShapeDtypeStruct(shape, dtype) for name, shape in shapes.items()}
    return Example(step, (params, jax.ShapeDtypeStruct((8, 8, 8), dtype)), donate_argnums=(0,))


@pytest.mark.parametrize("form", FORMS, ids=lambda form: form.__name__)
def test_other_forms_cost_as_much_and_equal_one_device(form, x64):
    part = assert_same_as_one_device(example_of(form), "4x2", [EXPERTS])

    assert part.collectives == FORMS[form]
    params, _ = part.in_specs
    assert {name for name, spec in params.items() if spec == P("data")} == set(params) - {"first", "gate"}


@pytest.mark.parametrize(
    ("mesh", "schedule", "collectives"),
    [
        ("4x2", [EXPERTS, ExpertParallel("model")], {"all_reduce": 3, "all_to_all": 4}),
        # One all_reduce forward; that of the gradients of what is sent is one with that of `first`, over both axes.
        ("2x4", [DATA, EXPERTS, Megatron("model")], {"all_reduce": 4, "all_to_all": 4}),
        ("4x2", [EXPERTS, ZeRO("data", stage=2)], {"all_gather": 2, "all_reduce": 1, "reduce_scatter": 2, "all_to_all": 4}),
        # The batch lies over ("data", "model") and the experts want its outer axis: two all_to_alls each.
        ("4x2", [EXPERTS, DataParallel("model")], {"all_reduce": 5, "all_to_all": 8}),
    ],
)
def test_other_axes_equal_one_device(mesh, schedule, collectives, x64):
    part = assert_same_as_one_device(example_of(by_contractions), mesh, schedule)

    assert part.collectives == collectives


@pytest.mark.parametrize("form", [by_contractions, gated_units_recomputed], ids=lambda form: form.__name__)
def test_core_of_other_forms_equals_one_device(form, x64):
    example = example_of(form)
    args = example.concrete(dtype="float64")
    part = partir.jit(example.fun, mesh=partir.Mesh(data=4, model=2)).trace(*args).partition([EXPERTS, Megatron("model")])

    results = interpret(part.core, [*jax.tree.leaves(args), *part.program.constants])

    assert_same(jax.tree.unflatten(part.program.trees.results, results), jax.jit(example.fun)(*args))


def test_a_forward_pass_moves_tokens_there_and_back():
    params, x = example_of(by_contractions).args

    tr = partir.jit(lambda params, x: by_contractions(params, x), mesh=partir.Mesh(data=8)).trace(params, x)

    assert tr.partition([EXPERTS]).collectives == {"all_to_all": 2}


# ---- where there is nothing to do


def refusal_of(example: Example, schedule: Any, **mesh: int) -> str:
    tr = partir.jit(example.fun, mesh=partir.Mesh(**mesh), donate_argnums=example.donate_argnums).trace(*example.args)
    with pytest.raises(NoEffectError) as raised:
        tr.partition(schedule)
    return str(raised.value)


def all_experts_see_all_tokens(p: Any, x: jax.Array) -> jax.Array:
    made = jnp.einsum("egth,ehm->egtm", jax.nn.relu(jnp.einsum("gtm,emh->egth", x, p["up"])), p["down"])
    return jnp.einsum("gte,egtm->gtm", jax.nn.softmax(x @ p["gate"]), made)


def an_ensemble(p: Any, x: jax.Array) -> jax.Array:
    return jnp.mean(jax.vmap(lambda up, down: jax.nn.relu(x @ up) @ down)(p["up"], p["down"]), axis=0)


@pytest.mark.parametrize(
    "example",
    [
        zoo.gpt(1, 32, 4, 64, 8, 8),
        zoo.mlp((16, 32, 8), batch=8),
        example_of(all_experts_see_all_tokens),
        example_of(an_ensemble),
    ],
    ids=["gpt", "mlp", "all experts see all tokens", "ensemble"],
)
def test_a_model_without_experts_is_refused(example):
    assert refusal_of(example, [EXPERTS], data=4).splitlines() == [
        "ExpertParallel(axis='data') finds no experts to split",
        "  why     no parameter has a dim that counts networks to which tokens are sent",
        "  try     Manual with the parameters and dims you mean",
    ]


def test_experts_that_do_not_divide_are_refused():
    message = refusal_of(zoo.moe(2, **SMALL | {"experts": 6}), [EXPERTS], data=4)

    assert "their number does not divide by the 4 devices" in message
    assert "params/layer_1/moe/experts/down dim 0 (6)" in message


@pytest.mark.parametrize(
    "schedule",
    [
        [EXPERTS, EXPERTS],
        [DATA, ZeRO("data", stage=3), EXPERTS],
        [Manual({"params/**/up": 0}, axis="data"), EXPERTS],
    ],
    ids=["experts twice", "after ZeRO", "tiled by hand"],
)
def test_experts_that_are_not_free_are_refused(schedule):
    message = refusal_of(example_of(by_contractions), schedule, data=4)

    assert 'of 1 layers with experts none has weights that are free on "data"' in message
    assert "ZeRO comes after" in message


def test_of_several_layers_those_that_do_not_divide_are_reported():
    def step(params: Any, x: jax.Array) -> jax.Array:
        return by_contractions(params["many"], x) + by_contractions(params["six"], x)

    sizes = {"gate": (8, -1), "up": (-1, 8, 16), "down": (-1, 16, 8)}
    params = {
        name: {k: jax.ShapeDtypeStruct([count if n < 0 else n for n in shape], "float32") for k, shape in sizes.items()}
        for name, count in (("many", 8), ("six", 6))
    }
    x = jax.ShapeDtypeStruct((8, 8, 8), "float32")

    part = partir.jit(step, mesh=partir.Mesh(data=4)).trace(params, x).partition([EXPERTS])

    assert part.collectives == {"all_to_all": 2}
    assert part.in_specs[0]["six"] == {"gate": P(), "up": P(), "down": P()}
    assert any(
        'params/six/down dim 0 (6) stays replicated over "data"' in line and "4 or 8 would" in line for line in part.replicated
    )

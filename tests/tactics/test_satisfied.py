"""A tactic that would only decide what the program's own shardings say is satisfied; one that can do nothing still says so."""

import jax
import jax.numpy as jnp
import pytest
from equal import assert_same, mesh_of

import partir
from partir import (
    DataParallel,
    EdgeParallel,
    EmbeddingParallel,
    ExpertParallel,
    Megatron,
    MultiQuery,
    NoEffectError,
    SequenceParallel,
    TilingError,
    ZeRO,
    zoo,
)

pytestmark = pytest.mark.jax

P = jax.P
DATA, MODEL = DataParallel("data"), Megatron("model")


def shape(*dims, dtype="float32"):
    return jax.ShapeDtypeStruct(dims, dtype)


def constrained(params, x):
    """A model that says itself how it is laid: the batch on one axis, what is hidden on the other."""
    constrain = jax.lax.with_sharding_constraint
    x = constrain(x, P("data", None))
    hidden = constrain(jnp.tanh(x @ params["w1"] + params["b1"]), P("data", "model"))
    return constrain(hidden @ params["w2"] + params["b2"], P("data", None))


def step(params, x, y):
    """Its gradient step."""
    value, gradients = jax.value_and_grad(lambda params: jnp.mean((constrained(params, x) - y) ** 2))(params)
    return jax.tree.map(lambda p, g: p - 0.1 * g, params, gradients), value


def arguments(dtype="float64"):
    params = {"w1": shape(16, 32, dtype=dtype), "b1": shape(32, dtype=dtype), "w2": shape(32, 16, dtype=dtype)}
    x = shape(64, 16, dtype=dtype)
    return params | {"b2": shape(16, dtype=dtype)}, x, x


@pytest.mark.parametrize("mesh", ["4x2", "2x2x2"])
@pytest.mark.parametrize("schedule", [[DATA], [MODEL], [DATA, MODEL], [MODEL, DATA]], ids=str)
@pytest.mark.parametrize("is_step", [False, True], ids=["forward", "step"])
def test_a_model_with_constraints_of_its_own_satisfies_the_tactics(is_step, schedule, mesh, x64, rng):
    args = jax.tree.map(lambda leaf: rng.standard_normal(leaf.shape), arguments())
    fun, args = (step, args) if is_step else (constrained, args[:2])
    tr = partir.jit(fun, mesh=mesh_of(mesh)).trace(*args)
    own = tr.partition([])

    part = tr.partition(schedule)

    assert part.in_specs == own.in_specs
    assert part.in_specs[:2] == ({"w1": P(None, "model"), "b1": P("model"), "w2": P("model"), "b2": P()}, P("data"))
    assert part.strategy == own.strategy
    assert part.collectives == own.collectives
    assert len({tuple(row[1:]) for row in part.report().rows}) == 1
    # The model names its axes, so one device has to have them, too.
    names = mesh_of(mesh).axis_names
    auto = (jax.sharding.AxisType.Auto,) * len(names)
    with jax.set_mesh(jax.make_mesh((1,) * len(names), names, auto, devices=jax.devices()[:1])):
        expected = jax.jit(fun)(*args)
    assert_same(part(*args), expected)


def test_in_another_dtype_it_goes_on_with_what_is_left():
    part = (
        partir.jit(step, mesh=partir.Mesh(data=4, model=2))
        .trace(*arguments("bfloat16"))
        .partition([DATA, MODEL, ZeRO("data", stage=3)])
    )

    assert part.in_specs[0]["w1"] == P(None, ("model", "data"))
    assert [row[0] for row in part.report().rows] == ["DataParallel('data')", "Megatron('model')", "ZeRO('data', stage=3)"]


def test_named_inputs_that_lie_so_are_satisfied_and_others_are_not():
    tr = partir.jit(constrained, mesh=partir.Mesh(data=4, model=2)).trace(*arguments()[:2])

    assert tr.partition([DataParallel("data", inputs="x")]).in_specs[1] == P("data")
    with pytest.raises(TilingError, match='tiled over "model" already'):
        tr.partition([DataParallel("model", inputs="params/w1")])


def adam_like(params, moments, x):
    gradients = jax.grad(lambda params: jnp.mean((jnp.tanh(x @ params["w1"]) @ params["w2"]) ** 2))(params)
    moments = jax.tree.map(lambda m, g: 0.9 * m + 0.1 * g, moments, gradients)
    return jax.tree.map(lambda p, m: p - m, params, moments), moments


@pytest.mark.parametrize("stage", [1, 2, 3])
def test_state_that_was_asked_to_lie_as_zero_would_have_it(stage):
    params = {"w1": shape(16, 32), "w2": shape(32, 16)}
    cut = {"w1": P(None, "data"), "w2": P("data")}
    here = cut if stage == 3 else {"w1": P(), "w2": P()}
    step = partir.jit(adam_like, mesh=partir.Mesh(data=8), in_shardings=(here, cut, P("data")))

    part = step.trace(params, params, shape(64, 16)).partition([DATA, ZeRO("data", stage=stage)])

    assert part.in_specs == (here, cut, P("data"))


GRAPH = {"nodes": shape(16, 8), "senders": shape(32, dtype="int32"), "receivers": shape(32, dtype="int32")}


def passed(graph):
    messages = jax.lax.with_sharding_constraint(jnp.tanh(graph["nodes"][graph["senders"]]), P("data"))
    return jax.ops.segment_sum(messages, graph["receivers"], 16)


def test_edges_that_a_constraint_cuts():
    tr = partir.jit(passed, mesh=partir.Mesh(data=8)).trace(GRAPH)

    assert tr.partition([EdgeParallel("data")]).in_specs == tr.partition([]).in_specs


def asked_to_lie(example, specs, axes, schedule):
    """Partition with the arguments that end in these names asked to lie so, and with the schedule."""

    def spec_of(path, _):
        name = jax.tree_util.keystr(path, simple=True, separator="/")
        return next((spec for end, spec in specs.items() if name.endswith(end)), None)

    wishes = jax.tree_util.tree_map_with_path(spec_of, example.args)
    step = partir.jit(example.fun, mesh=partir.Mesh(**axes), in_shardings=wishes, donate_argnums=example.donate_argnums).trace(
        *example.args
    )
    return step.partition([]), step.partition(schedule)


SMALL = {"layers": 1, "d_model": 32, "heads": 4, "vocab": 64, "seq": 8, "batch": 8}


@pytest.mark.parametrize(
    ("example", "specs", "tactic"),
    [
        (zoo.gpt(**SMALL), {"0/embed/embeddings": P("model")}, EmbeddingParallel("model")),
        (zoo.gpt(**SMALL), {"tokens": P(None, "model"), "targets": P(None, "model")}, SequenceParallel("model")),
        (
            zoo.moe(**SMALL | {"layers": 2}, experts=8),
            {"experts/up": P("data"), "experts/down": P("data"), "tokens": P(), "targets": P()},
            ExpertParallel("data"),
        ),
        (zoo.gpt_decode(**SMALL | {"seq": 16}, kv_heads=1), {"key": P("model"), "value": P("model")}, MultiQuery("model")),
    ],
    ids=["table", "sequence", "experts", "cache"],
)
def test_other_tactics_whose_dims_were_asked_for(example, specs, tactic):
    own, part = asked_to_lie(example, specs, {"data": 4, "model": 2}, [tactic])

    assert part.in_specs == own.in_specs
    assert part.collectives == own.collectives


# ---- what still is an error


def test_a_tactic_that_an_earlier_one_made_idle_is_still_an_error():
    tr = partir.jit(constrained, mesh=partir.Mesh(data=4, model=2, other=2)).trace(*arguments()[:2])

    with pytest.raises(NoEffectError, match="changes nothing"):
        tr.partition([DataParallel("other"), DataParallel("other")])


def test_a_batch_that_another_dim_keeps_from_its_axis_is_still_an_error():
    def across(x):
        return jax.lax.with_sharding_constraint(jnp.tanh(x), P(None, "data"))

    step = partir.jit(across, mesh=partir.Mesh(data=4), in_shardings=(P(None, "data"),))

    with pytest.raises(NoEffectError, match="changes nothing"):
        step.trace(shape(16, 8)).partition([DATA])


def test_a_tactic_that_can_do_nothing_is_still_an_error_beside_one_that_is_satisfied():
    tr = partir.jit(constrained, mesh=partir.Mesh(data=4, model=2)).trace(*arguments()[:2])

    with pytest.raises(NoEffectError, match="finds no embedding table"):
        tr.partition([DATA, EmbeddingParallel("model")])


def test_what_does_not_divide_beside_what_holds_is_in_the_report():
    """One hidden dim has its axis by a constraint; 33 does not divide."""

    def two(params, x):
        hidden = jax.lax.with_sharding_constraint(jnp.tanh(x @ params["a"]), P(None, "model"))
        return x + hidden @ params["b"] + jnp.tanh(x @ params["c"]) @ params["d"]

    params = {"a": shape(16, 32), "b": shape(32, 16), "c": shape(16, 33), "d": shape(33, 16)}
    part = partir.jit(two, mesh=partir.Mesh(data=4, model=2)).trace(params, shape(64, 16)).partition([MODEL])

    assert part.in_specs[0] == {"a": P(None, "model"), "b": P("model"), "c": P(), "d": P()}
    assert any("(33) stays replicated" in line for line in part.replicated)

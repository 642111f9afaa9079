"""Models of Flax Linen, Flax NNX and Equinox with Optax's optimizers: imported, named, partitioned, equal to one device."""

import functools

import jax
import jax.numpy as jnp
import pytest
from equal import assert_same, mesh_of
from jax.sharding import PartitionSpec as P
from library_models import LAYERS, MODELS, OPTIMIZERS, Step

import partir
from partir import DataParallel, Megatron, ZeRO

pytestmark = pytest.mark.jax

DATA, MODEL = DataParallel("data"), Megatron("model")

SCHEDULES = {
    "data": [DATA],
    "megatron": [DATA, MODEL],
    "zero2": [DATA, ZeRO("data", stage=2)],
    "zero3": [DATA, MODEL, ZeRO("data", stage=3)],
}

CASES = [(model, "adamw", "zero3") for model in MODELS] + [
    ("linen", "adamw", "data"),
    ("linen", "adamw", "megatron"),
    ("linen", "clipped", "zero2"),
    ("linen", "multi_steps", "zero2"),
    ("nnx_split", "lion", "megatron"),
    ("equinox_module", "adafactor", "zero3"),
    ("equinox_module", "clipped_multi_steps", "zero2"),
]
"""Every model under everything, and every optimizer."""


@functools.cache
def step_of(model: str, optimizer: str) -> Step:
    with jax.enable_x64(True):
        return MODELS[model](OPTIMIZERS[optimizer])


@functools.cache
def traced(model: str, optimizer: str) -> partir.Traced:
    step = step_of(model, optimizer)
    return partir.jit(step.fun, mesh=mesh_of("4x2"), donate_argnums=step.donated).trace(*step.args)


def after_two(fun, step):
    """The state after two steps on one batch, and the second loss: with MultiSteps the first only accumulates."""
    args = jax.tree.map(jnp.copy, step.args)
    *state, _ = fun(*args)
    return fun(*state, *args[step.state :])


@functools.cache
def expected(model: str, optimizer: str):
    step = step_of(model, optimizer)
    return after_two(jax.jit(step.fun), step)


@pytest.mark.parametrize(("model", "optimizer", "schedule"), CASES)
def test_two_steps_equal_one_device(model, optimizer, schedule, x64):
    part = traced(model, optimizer).partition(SCHEDULES[schedule])

    assert_same(after_two(part, step_of(model, optimizer)), expected(model, optimizer))


def test_every_optimizer_is_among_the_cases():
    assert {optimizer for _, optimizer, _ in CASES} == set(OPTIMIZERS)


@pytest.mark.parametrize("model", MODELS)
def test_state_comes_back_as_it_went_in(model, x64):
    """A step is a fixed point, in trees of the library's own nodes."""
    part = traced(model, "adamw").partition(SCHEDULES["zero3"])
    state = step_of(model, "adamw").state

    before, after = (
        jax.tree.flatten(specs[:state], is_leaf=lambda x: isinstance(x, P)) for specs in (part.in_specs, part.out_specs)
    )
    assert before == after
    assert any(spec != P() for spec in before[0])


NAMES = {
    "linen": ("params/block_0/attention/query/kernel", "opt_state/0/mu/block_0/attention/query/kernel"),
    "linen_train_state": (
        "state/params/block_0/attention/query/kernel",
        "state/opt_state/0/mu/block_0/attention/query/kernel",
    ),
    "nnx_split": (
        "params/blocks/0/attention/query/kernel/value",
        "opt_state/0/mu/blocks/0/attention/query/kernel/value",
    ),
    "nnx_dropout": (
        "params/blocks/0/attention/query/kernel/value",
        "rest/blocks/0/dropout/rngs/key/value",
    ),
    "nnx_module": (
        "model/blocks/0/attention/query/kernel/value",
        "opt_state/0/mu/blocks/0/attention/query/kernel/value",
    ),
    "equinox_module": (
        "params/blocks/0/attention/query_proj/weight",
        "opt_state/0/mu/blocks/0/attention/query_proj/weight",
    ),
    "equinox_mlp": ("params/layers/0/weight", "opt_state/0/nu/layers/2/bias"),
}


@pytest.mark.parametrize("model", MODELS)
def test_arguments_are_named_as_their_users_know_them(model, x64):
    arguments = traced(model, "adamw").arguments

    names = [leaf.name for leaf in arguments]
    assert set(NAMES[model]) <= set(names)
    assert len(set(names)) == len(names)
    assert not [name for name in names if set(name) & set("[]'\"<>() ")]
    inputs = {leaf.name for leaf in arguments if leaf.role == "input"}
    assert inputs == ({"batch/x", "batch/y"} if model == "equinox_mlp" else {"batch/tokens", "batch/targets"})


@pytest.mark.parametrize(
    ("model", "pattern"),
    [("linen", "params/**/query/kernel"), ("nnx_module", "model/**/query/kernel"), ("equinox_module", "params/**/query_proj")],
)
def test_patterns_reach_into_the_libraries_trees(model, pattern, x64):
    part = traced(model, "adamw").partition([partir.Manual({pattern: 0}, axis="model")])

    table = [row for row in str(part.specs()).splitlines() if "query" in row and "opt_state" not in row]
    assert len(table) == LAYERS
    assert all("P('model'" in row for row in table)


@pytest.mark.parametrize("model", [name for name in MODELS if name != "equinox_mlp"])
def test_megatron_finds_heads_and_hidden_in_every_librarys_transformer(model, x64):
    """Two all_reduces forward, two backward: whatever shape a library gives its projections."""
    part = traced(model, "adamw").partition([MODEL])

    assert part.collectives["all_reduce"] == 4 * LAYERS

"""Loops, branches and barriers are partitioned inside: equal to one device, with the collectives a reader expects."""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from equal import assert_same, mesh_of

import partir
from partir.lowering.verify import count_collectives, verify_spmd

pytestmark = pytest.mark.jax

D, M = partir.DataParallel("data"), partir.Megatron("model")
TILE = partir.Tile


def layers(count: int = 4, width: int = 16, hidden: int = 32) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    return {
        "w1": rng.normal(size=(count, width, hidden)) * 0.3,
        "b1": rng.normal(size=(count, hidden)),
        "w2": rng.normal(size=(count, hidden, width)) * 0.3,
    }


def residual_layer(x: jax.Array, p: dict[str, jax.Array]) -> tuple[jax.Array, None]:
    return x + jnp.tanh(x @ p["w1"] + p["b1"]) @ p["w2"], None


def scanned_step(params: Any, x: jax.Array) -> Any:
    loss, grads = jax.value_and_grad(lambda p: jnp.mean(jax.lax.scan(residual_layer, x, p)[0] ** 2))(params)
    return jax.tree.map(lambda p, g: p - 0.1 * g, params, grads), loss


def checkpointed_step(params: Any, x: jax.Array) -> Any:
    body = jax.checkpoint(residual_layer)
    loss, grads = jax.value_and_grad(lambda p: jnp.mean(jax.lax.scan(body, x, p)[0] ** 2))(params)
    return jax.tree.map(lambda p, g: p - 0.1 * g, params, grads), loss


def mlp_loss(p: Any, x: jax.Array) -> jax.Array:
    return jnp.mean((jnp.tanh(x @ p["w1"]) @ p["w2"]) ** 2)


def accumulated_step(params: Any, xs: jax.Array) -> Any:
    """Gradients of micro-batches, summed in the loop's carry."""

    def body(total: Any, x: jax.Array) -> Any:
        return jax.tree.map(jnp.add, total, jax.grad(mlp_loss)(params, x)), None

    total, _ = jax.lax.scan(body, jax.tree.map(jnp.zeros_like, params), xs)
    return jax.tree.map(lambda p, g: p - 0.1 * g, params, total)


def clipped_step(params: Any, xs: jax.Array) -> Any:
    """The same with a clip inside the loop, which no partial sum may pass."""

    def body(total: Any, x: jax.Array) -> Any:
        grads = jax.grad(mlp_loss)(params, x)
        return jax.tree.map(lambda t, g: t + jnp.clip(g, -0.01, 0.01), total, grads), None

    return jax.lax.scan(body, jax.tree.map(jnp.zeros_like, params), xs)[0]


def branches(x: jax.Array, n: jax.Array) -> jax.Array:
    y = jax.lax.cond(n > 0, lambda x: jnp.tanh(x) @ jnp.ones((16, 16)), lambda x: x * 2, x)
    return jax.lax.switch(n, [lambda y: y, lambda y: y.sum(0, keepdims=True) + y, lambda y: -y], y).sum()


def until_small(x: jax.Array) -> Any:
    return jax.lax.while_loop(lambda s: (s[0] ** 2).sum() > 1.0, lambda s: (s[0] * 0.5, s[1] + 1), (x, 0))


def nested(x: jax.Array) -> Any:
    """A while inside a cond inside a while."""

    def body(s: Any) -> Any:
        grow = lambda x: jax.lax.fori_loop(0, 3, lambda i, x: x + jnp.abs(x) + 0.1, x)  # noqa: E731
        return jax.lax.cond(s[1] > 2, grow, lambda x: x + 1.0, s[0]), s[1] + 1

    return jax.lax.while_loop(lambda s: s[0].sum() < 100, body, (x, 0))


def dropout(key: jax.Array, x: jax.Array) -> jax.Array:
    return x * jax.random.bernoulli(key, 0.5, x.shape) + jax.random.normal(key, x.shape)


def over_layers(w: jax.Array, x: jax.Array) -> Any:
    """A stack that is cut along the dim it is scanned over, and its gradient."""
    run = lambda w: (jax.lax.scan(lambda c, wi: (jnp.tanh(c @ wi), None), x, w)[0] ** 2).mean()  # noqa: E731
    loss, grad = jax.value_and_grad(run)(w)
    return w - grad, loss


def microbatched(x: jax.Array, w: jax.Array) -> jax.Array:
    """A batch reshaped to micro-batches that a loop walks along."""
    return jax.lax.scan(lambda c, xi: (c + (xi @ w).sum(0), None), jnp.zeros(8), x.reshape(4, 16, 32))[0]


def rows_written(x: jax.Array, i: jax.Array, u: jax.Array) -> Any:
    return x.at[3].set(1.0), x.at[:, 3].set(2.0), x.at[i].add(u), jax.lax.dynamic_update_slice(x, u[:1], (i[0], 0))


def tagged_layers(params: Any, x: jax.Array) -> jax.Array:
    def body(c: jax.Array, p: Any) -> Any:
        return partir.tag(residual_layer(c, p)[0], "residual"), None

    return jax.lax.scan(body, x, params)[0]


def normal(*shape: int) -> np.ndarray:
    return np.random.default_rng(1).normal(size=shape)


PARAMS = layers()
WEIGHTS = {"w1": normal(16, 32) * 0.3, "w2": normal(32, 16) * 0.3}
X, XS = normal(8, 16), normal(4, 16, 16)
BATCH = TILE("xs", 1, "data")
ZERO = partir.ZeRO("data", stage=3)

Case = tuple[Callable[..., Any], Sequence[Any], list[Any], dict[str, int] | None]
CASES: dict[str, Case] = {
    "scan, data": (scanned_step, (PARAMS, X), [D], {"all_reduce": 4 * 3 + 1}),
    "scan, Megatron": (scanned_step, (PARAMS, X), [M], {"all_reduce": 4 * 2}),
    "scan, both": (scanned_step, (PARAMS, X), [D, M], {"all_reduce": 4 * 5 + 1}),
    # each of 4 layers gathers its three tensors once forward, and its two matrices again backward
    "scan, ZeRO 3": (scanned_step, (PARAMS, X), [D, ZERO], {"all_gather": 20, "all_reduce": 1, "reduce_scatter": 12}),
    # what a loop reads it gathers in each round, forward and backward
    "scan, ZeRO 3 once": (
        scanned_step,
        (PARAMS, X),
        [D, partir.ZeRO("data", stage=3, reshard_after_forward=False)],
        {"all_gather": 20, "all_reduce": 1, "reduce_scatter": 12},
    ),
    "scan, ZeRO 2": (
        scanned_step, (PARAMS, X), [D, partir.ZeRO("data", stage=2)], {"all_gather": 3, "all_reduce": 1, "reduce_scatter": 12},
    ),
    "checkpoint, data": (checkpointed_step, (PARAMS, X), [D], {"all_reduce": 13}),
    # one gather a layer and tensor for what is recomputed and what is backward: both run in one round
    "checkpoint, ZeRO 3": (
        checkpointed_step, (PARAMS, X), [D, ZERO], {"all_gather": 24, "all_reduce": 1, "reduce_scatter": 12},
    ),
    "checkpoint, all": (checkpointed_step, (PARAMS, X), [D, M, ZERO], None),
    "accumulation": (accumulated_step, (WEIGHTS, XS), [BATCH], {"all_reduce": 2}),
    "accumulation, Megatron": (accumulated_step, (WEIGHTS, XS), [BATCH, M], {"all_reduce": 2 + 4}),
    "accumulation, ZeRO 2": (
        accumulated_step, (WEIGHTS, XS), [BATCH, partir.ZeRO("data", stage=2)], {"all_gather": 2, "reduce_scatter": 8},
    ),
    "clip in the loop": (clipped_step, (WEIGHTS, XS), [BATCH], {"all_reduce": 8}),
    "branches, data": (branches, (X, np.int32(1)), [TILE("x", 0, "data")], None),
    "branches, width": (branches, (X, np.int32(1)), [TILE("x", 1, "data")], None),
    "while, data": (until_small, (X,), [D], {"all_reduce": 1}),
    "while, width": (until_small, (X,), [TILE("x", 1, "model")], {"all_reduce": 1}),
    "nested, data": (nested, (X,), [D], {"all_reduce": 1}),
    "nested, both": (nested, (X,), [D, TILE("x", 1, "model")], {"all_reduce": 1}),
    "random numbers": (dropout, (np.array([0, 7], np.uint32), X), [D, TILE("x", 1, "model")], {}),
    "over layers": (over_layers, (normal(8, 16, 16) * 0.3, X), [TILE("w", 0, "data")], {"all_reduce": 16}),
    "over layers, two axes": (over_layers, (normal(8, 16, 16) * 0.3, X), [TILE("w", 0, "data"), TILE("w", 0, "model")], None),
    "micro-batches": (microbatched, (normal(64, 32), normal(32, 8)), [TILE("x", 0, "data")], {"all_reduce": 1}),
    "rows": (rows_written, (X, np.array([1, 5, 7]), normal(3, 16)), [TILE("x", 0, "data")], {}),
    "rows, columns": (rows_written, (X, np.array([1, 5, 7]), normal(3, 16)), [TILE("x", 1, "data"), TILE("x", 0, "model")], {}),
    "tags": (tagged_layers, (PARAMS, X), [partir.Manual({"#residual": 0}, axis="data")], None),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_equal_and_as_planned(name: str, x64: None) -> None:
    function, args, schedule, expected = CASES[name]
    step = partir.jit(function, mesh=mesh_of("4x2"), schedule=schedule)
    part = step.trace(*args).partition()

    results = part(*args)

    assert_same(results, jax.jit(function)(*args))
    verify_spmd(part.spmd)
    assert count_collectives(part.spmd) == part.collectives
    if expected is not None:
        assert part.collectives == expected


def test_a_scanned_model_costs_what_one_layer_costs() -> None:
    def ops(count: int) -> int:
        step = partir.jit(scanned_step, mesh=partir.Mesh(data=4, model=2), schedule=[D, M])
        return step.trace(layers(count), X).scopes.total

    few, many = ops(2), ops(64)

    assert few == many


def test_tactics_leave_the_dim_a_loop_walks_along() -> None:
    step = partir.jit(scanned_step, mesh=partir.Mesh(data=4, model=2), schedule=[D, ZERO])

    part = step.trace(layers(4), X).partition()

    specs = part.in_specs[0]
    assert all(spec[0] is None for spec in specs.values() if len(spec))
    assert any("data" in spec for spec in specs.values())

"""One small transformer in Flax Linen, Flax NNX and Equinox, each as its users write it, with Optax's training steps."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import equinox as eqx
import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx
from flax.training.train_state import TrainState

LAYERS, VOCAB, WIDTH, HEADS, HIDDEN, SEQ, BATCH = 1, 32, 16, 4, 32, 8, 8

OPTIMIZERS: dict[str, optax.GradientTransformation] = {
    "adamw": optax.adamw(1e-3),
    "adafactor": optax.adafactor(1e-3, min_dim_size_to_factor=8),
    "lion": optax.lion(1e-3),
    "clipped": optax.chain(optax.clip_by_global_norm(0.1), optax.adamw(1e-3)),
    "multi_steps": optax.MultiSteps(optax.adamw(1e-3), every_k_schedule=2).gradient_transformation(),
    "clipped_multi_steps": optax.MultiSteps(
        optax.chain(optax.clip_by_global_norm(0.1), optax.lion(1e-3)), every_k_schedule=2
    ).gradient_transformation(),
}


@dataclass(frozen=True)
class Step:
    """A training step with its arguments: `fun(*args)` hands the first `state` of them on, updated, and the loss."""

    fun: Callable[..., Any]
    args: tuple[Any, ...]
    state: int

    @property
    def donated(self) -> tuple[int, ...]:
        return tuple(range(self.state))


def batch() -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    return {name: rng.integers(VOCAB, size=(BATCH, SEQ)).astype("int32") for name in ("tokens", "targets")}


def _cross_entropy(logits: jax.Array, targets: jax.Array) -> jax.Array:
    return optax.softmax_cross_entropy_with_integer_labels(logits, targets).mean()


def _step(loss: Callable[[Any, Any], jax.Array], params: Any, optimizer: optax.GradientTransformation) -> Step:
    """`step(params, opt_state, batch)` around a loss."""

    def step(params: Any, opt_state: Any, batch: Any) -> Any:
        value, gradients = jax.value_and_grad(loss)(params, batch)
        updates, opt_state = optimizer.update(gradients, opt_state, params)
        return optax.apply_updates(params, updates), opt_state, value

    return Step(step, (params, optimizer.init(params), batch()), 2)


# ---- Flax Linen


class LinenBlock(nn.Module):
    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        settings = {"use_bias": False, "param_dtype": "float64"}
        mask = nn.make_causal_mask(jnp.ones(x.shape[:2]))
        y = nn.LayerNorm(param_dtype="float64", name="attention_norm")(x)
        x = x + nn.MultiHeadDotProductAttention(HEADS, name="attention", **settings)(y, mask=mask)
        y = nn.LayerNorm(param_dtype="float64", name="mlp_norm")(x)
        y = nn.gelu(nn.Dense(HIDDEN, name="up", **settings)(y))
        return x + nn.Dense(WIDTH, name="down", **settings)(y)


class LinenModel(nn.Module):
    @nn.compact
    def __call__(self, tokens: jax.Array) -> jax.Array:
        x = nn.Embed(VOCAB, WIDTH, param_dtype="float64", name="embed")(tokens)
        for i in range(LAYERS):
            x = LinenBlock(name=f"block_{i}")(x)
        return nn.Dense(VOCAB, use_bias=False, param_dtype="float64", name="logits")(x)


def linen(optimizer: optax.GradientTransformation) -> Step:
    """Parameters as a dict."""
    model = LinenModel()
    params = model.init(jax.random.key(0), batch()["tokens"])["params"]
    return _step(lambda p, b: _cross_entropy(model.apply({"params": p}, b["tokens"]), b["targets"]), params, optimizer)


def linen_train_state(optimizer: optax.GradientTransformation) -> Step:
    """Flax's TrainState: a pytree with static fields (the optimizer, the model's function) and a counter."""
    model = LinenModel()
    params = model.init(jax.random.key(0), batch()["tokens"])["params"]
    state = TrainState.create(apply_fn=model.apply, params=params, tx=optimizer)

    def step(state: TrainState, batch: Any) -> Any:
        def loss(params: Any) -> jax.Array:
            return _cross_entropy(state.apply_fn({"params": params}, batch["tokens"]), batch["targets"])

        value, gradients = jax.value_and_grad(loss)(state.params)
        return state.apply_gradients(grads=gradients), value

    return Step(step, (state, batch()), 1)


# ---- Flax NNX


def _attention(query: jax.Array, key: jax.Array, value: jax.Array, mask: jax.Array, **_: Any) -> jax.Array:
    """What NNX takes from jax.nn, whose softmax is in float32 whatever it is given."""
    scores = jnp.einsum("bqhd,bkhd->bhqk", query, key) / query.shape[-1] ** 0.5
    weights = jax.nn.softmax(jnp.where(mask, scores, -jnp.inf))
    return jnp.einsum("bhqk,bkhd->bqhd", weights, value)


class NnxBlock(nnx.Module):
    def __init__(self, rngs: nnx.Rngs, dropout: float) -> None:
        settings: dict[str, Any] = {"use_bias": False, "param_dtype": "float64", "rngs": rngs}
        self.attention_norm = nnx.LayerNorm(WIDTH, param_dtype="float64", rngs=rngs)
        self.attention = nnx.MultiHeadAttention(HEADS, WIDTH, decode=False, attention_fn=_attention, **settings)
        self.mlp_norm = nnx.LayerNorm(WIDTH, param_dtype="float64", rngs=rngs)
        self.up = nnx.Linear(WIDTH, HIDDEN, **settings)
        self.down = nnx.Linear(HIDDEN, WIDTH, **settings)
        self.dropout = nnx.Dropout(dropout, rngs=rngs if dropout else None)

    def __call__(self, x: jax.Array) -> jax.Array:
        mask = nnx.make_causal_mask(jnp.ones(x.shape[:2]))
        x = x + self.attention(self.attention_norm(x), mask=mask)
        return x + self.dropout(self.down(nnx.gelu(self.up(self.mlp_norm(x)))))


class NnxModel(nnx.Module):
    def __init__(self, rngs: nnx.Rngs, dropout: float = 0.0) -> None:
        self.embed = nnx.Embed(VOCAB, WIDTH, param_dtype="float64", rngs=rngs)
        self.blocks = nnx.List([NnxBlock(rngs, dropout) for _ in range(LAYERS)])
        self.logits = nnx.Linear(WIDTH, VOCAB, use_bias=False, param_dtype="float64", rngs=rngs)

    def __call__(self, tokens: jax.Array) -> jax.Array:
        x = self.embed(tokens)
        for block in self.blocks:
            x = block(x)
        return self.logits(x)


def nnx_split(optimizer: optax.GradientTransformation) -> Step:
    """`nnx.split` outside, `nnx.merge` inside: the state is the argument."""
    graph, params = nnx.split(NnxModel(nnx.Rngs(0)))
    return _step(lambda p, b: _cross_entropy(nnx.merge(graph, p)(b["tokens"]), b["targets"]), params, optimizer)


def nnx_dropout(optimizer: optax.GradientTransformation) -> Step:
    """Parameters, and beside them the rest of the state: counters and typed keys of the random streams."""
    graph, params, rest = nnx.split(NnxModel(nnx.Rngs(0), dropout=0.5), nnx.Param, ...)

    def step(params: Any, rest: Any, opt_state: Any, batch: Any) -> Any:
        def loss(params: Any) -> Any:
            model = nnx.merge(graph, params, rest, copy=True)
            return _cross_entropy(model(batch["tokens"]), batch["targets"]), nnx.state(model, nnx.Not(nnx.Param))

        (value, new_rest), gradients = jax.value_and_grad(loss, has_aux=True)(params)
        updates, opt_state = optimizer.update(gradients, opt_state, params)
        return optax.apply_updates(params, updates), new_rest, opt_state, value

    return Step(step, (params, rest, optimizer.init(params), batch()), 3)


def nnx_module(optimizer: optax.GradientTransformation) -> Step:
    """The module itself as an argument: NNX modules are pytrees."""
    model = NnxModel(nnx.Rngs(0))

    def step(model: NnxModel, opt_state: Any, batch: Any) -> Any:
        graph, params, rest = nnx.split(model, nnx.Param, ...)

        def loss(params: Any) -> jax.Array:
            return _cross_entropy(nnx.merge(graph, params, rest)(batch["tokens"]), batch["targets"])

        value, gradients = jax.value_and_grad(loss)(params)
        updates, opt_state = optimizer.update(gradients, opt_state, params)
        return nnx.merge(graph, optax.apply_updates(params, updates), rest), opt_state, value

    return Step(step, (model, optimizer.init(nnx.state(model, nnx.Param)), batch()), 2)


# ---- Equinox


class EqxBlock(eqx.Module):
    attention_norm: eqx.nn.LayerNorm
    attention: eqx.nn.MultiheadAttention
    mlp_norm: eqx.nn.LayerNorm
    up: eqx.nn.Linear
    down: eqx.nn.Linear
    activation: Callable[[jax.Array], jax.Array] = eqx.field(static=True)

    def __init__(self, key: jax.Array) -> None:
        keys = jax.random.split(key, 3)
        self.attention_norm = eqx.nn.LayerNorm(WIDTH, dtype=jnp.float64)
        self.attention = eqx.nn.MultiheadAttention(HEADS, WIDTH, dtype=jnp.float64, key=keys[0])
        self.mlp_norm = eqx.nn.LayerNorm(WIDTH, dtype=jnp.float64)
        self.up = eqx.nn.Linear(WIDTH, HIDDEN, use_bias=False, dtype=jnp.float64, key=keys[1])
        self.down = eqx.nn.Linear(HIDDEN, WIDTH, use_bias=False, dtype=jnp.float64, key=keys[2])
        self.activation = jax.nn.gelu

    def __call__(self, x: jax.Array) -> jax.Array:
        """One sequence, [S, D]."""
        y = jax.vmap(self.attention_norm)(x)
        x = x + self.attention(y, y, y, mask=jnp.tril(jnp.ones((len(x), len(x)), bool)))
        return x + jax.vmap(lambda row: self.down(self.activation(self.up(self.mlp_norm(row)))))(x)


class EqxModel(eqx.Module):
    embed: eqx.nn.Embedding
    blocks: list[EqxBlock]
    logits: eqx.nn.Linear
    name: str = eqx.field(static=True)

    def __init__(self, key: jax.Array) -> None:
        keys = jax.random.split(key, LAYERS + 2)
        self.embed = eqx.nn.Embedding(VOCAB, WIDTH, dtype=jnp.float64, key=keys[0])
        self.blocks = [EqxBlock(key) for key in keys[2:]]
        self.logits = eqx.nn.Linear(WIDTH, VOCAB, use_bias=False, dtype=jnp.float64, key=keys[1])
        self.name = "model"

    def __call__(self, tokens: jax.Array) -> jax.Array:
        """One sequence of tokens, [S]."""
        x = jax.vmap(self.embed)(tokens)
        for block in self.blocks:
            x = block(x)
        return jax.vmap(self.logits)(x)


def _eqx_loss(model: Any, batch: Any) -> jax.Array:
    return _cross_entropy(jax.vmap(model)(batch["tokens"]), batch["targets"])


def equinox_module(optimizer: optax.GradientTransformation) -> Step:
    """The arrays of a module as an argument, itself a module; what is no array is closed over."""
    params, static = eqx.partition(EqxModel(jax.random.key(0)), eqx.is_inexact_array)
    return _step(lambda p, b: _eqx_loss(eqx.combine(p, static), b), params, optimizer)


def equinox_mlp(optimizer: optax.GradientTransformation) -> Step:
    """Equinox's own MLP, whose activations are leaves that are no arrays."""
    model = eqx.nn.MLP(WIDTH, WIDTH, HIDDEN, 2, activation=jnp.tanh, dtype=jnp.float64, key=jax.random.key(0))
    params, static = eqx.partition(model, eqx.is_inexact_array)

    def loss(params: Any, batch: Any) -> jax.Array:
        return jnp.mean((jax.vmap(eqx.combine(params, static))(batch["x"]) - batch["y"]) ** 2)

    made = _step(loss, params, optimizer)
    rng = np.random.default_rng(0)
    return Step(made.fun, (*made.args[:2], {name: rng.standard_normal((BATCH, WIDTH)) for name in "xy"}), 2)


MODELS: dict[str, Callable[[optax.GradientTransformation], Step]] = {
    made.__name__: made for made in (linen, linen_train_state, nnx_split, nnx_dropout, nnx_module, equinox_module, equinox_mlp)
}

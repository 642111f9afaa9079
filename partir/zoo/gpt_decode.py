"""Greedy decoding with `gpt`'s parameters: a loop over steps that updates a cache of keys and values in place."""

from __future__ import annotations

import math
from typing import Any

import jax
import jax.numpy as jnp

from partir.zoo.example import Example
from partir.zoo.gpt import gpt

EPSILON = 1e-5
"""Added to the variance in Haiku's norms."""


def gpt_decode(
    layers: int = 2,
    d_model: int = 256,
    heads: int = 8,
    vocab: int = 1024,
    seq: int = 64,
    batch: int = 8,
    *,
    kv_heads: int | None = None,
    steps: int = 16,
    start: int = 0,
    dtype: str = "float32",
    name: str | None = None,
    **settings: Any,
) -> Example:
    """Greedy decoding of the transformer that `gpt` trains: `decode(params, cache, tokens) -> (generated, cache)`.

    With B = `batch`, S = `seq`, K = `kv_heads`, H = `d_model / heads`: `params` are those of `gpt(...)` with the same settings;
    `cache` is `layer_i/{key,value}` [B, S, K, H] for each layer i, of which the first `start` positions are filled; `tokens`
    int32[B] is the token at position `start` of each sequence. `generated` int32[B, `steps`] are the most likely tokens at the
    positions after it. The loop is one `jax.lax.scan` with `steps` iterations; the cache is donated.

    `kv_heads=1` is multi-query attention: all query heads read one key and value head, so heads alone cannot split the cache.

    >>> step = gpt_decode(layers=1, d_model=32, heads=4, vocab=64, seq=8, batch=2, kv_heads=1, steps=4)
    >>> step.args[1]["layer_0"]["key"].shape, jax.eval_shape(step.fun, *step.args)[0].shape
    ((2, 8, 1, 8), (2, 4))

    Sources: Shazeer 2019 (multi-query attention, incremental decoding); Pope et al. 2022 (how it is partitioned).

    Args:
        layers: number of blocks.
        d_model: width of the residual stream.
        heads: query heads; divides `d_model`.
        vocab: number of tokens.
        seq: number of positions in the cache.
        batch: sequences.
        kv_heads: key and value heads, by default `heads`; divides `heads`.
        steps: tokens to generate.
        start: number of positions of the cache that are filled already.
        dtype: of parameters, cache and activations; softmax and logits are computed in at least 32 bits.
        name: the name in reports.
        **settings: any other argument of `gpt` (`d_ff`, `bias`, `norm`, `mlp`, `tied`, `positions`, ...).

    Raises:
        ValueError: as `gpt` does, and for more positions than the cache has.
    """
    if start + steps > seq:
        raise ValueError(
            f"cannot decode {steps} steps from position {start}\n"
            f"  why     the cache has room for {seq} positions\n"
            f"  try     seq={start + steps}"
        )
    trained = gpt(layers, d_model, heads, vocab, seq, batch, kv_heads=kv_heads, dtype=dtype, **settings)
    of_parameters = trained.init
    assert of_parameters is not None

    def decode(params: Any, cache: Any, tokens: jax.Array) -> tuple[jax.Array, Any]:
        def step(carried: tuple[jax.Array, Any], position: jax.Array) -> tuple[tuple[jax.Array, Any], jax.Array]:
            tokens, cache = carried
            logits, cache = _logits(params, cache, tokens, position)
            following = jnp.argmax(logits, axis=-1).astype(tokens.dtype)
            return (following, cache), following

        (_, cache), generated = jax.lax.scan(step, (tokens, cache), jnp.arange(start, start + steps))
        return generated.T, cache

    kept = jax.ShapeDtypeStruct((batch, seq, kv_heads or heads, d_model // heads), dtype)
    cache = {f"layer_{i}": {"key": kept, "value": kept} for i in range(layers)}

    def init(key: jax.Array) -> tuple[Any, Any]:
        return of_parameters(key)[0], jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), cache)

    tokens = jax.ShapeDtypeStruct((batch,), "int32")
    return Example(
        decode,
        (trained.args[0], cache, tokens),
        (1,),
        name=name or "gpt_decode",
        init=init,
        integer_bounds={"tokens": vocab},
    )


def _logits(params: Any, cache: Any, tokens: jax.Array, position: jax.Array) -> tuple[jax.Array, Any]:
    """Maps the tokens [B] at one position to the logits [B, V] of the next, and fills that position of the cache."""
    table = params["embed"]["embeddings"]
    x = table[tokens]
    if "positions" in params:
        x = x + jax.lax.dynamic_index_in_dim(params["positions"]["embeddings"], position, keepdims=False)
    updated: dict[str, Any] = {}
    for layer, kept in cache.items():
        with jax.named_scope(layer):
            with jax.named_scope("attention-block"):
                added, updated[layer] = _attention(params, layer, kept, _norm(params[f"{layer}/attention_norm"], x), position)
                x = x + added
            with jax.named_scope("mlp-block"):
                x = x + _mlp(params, layer, _norm(params[f"{layer}/mlp_norm"], x))
    if "final_norm" in params:
        x = _norm(params["final_norm"], x)
    with jax.named_scope("logits"):
        logits = _linear(params["logits"], x) if "logits" in params else x @ table.T
    return logits.astype(jnp.promote_types(logits.dtype, jnp.float32)), updated


def _attention(params: Any, layer: str, kept: Any, x: jax.Array, position: jax.Array) -> tuple[jax.Array, Any]:
    """Attention of one position to itself and earlier ones: x [B, D] to [B, D], and the updated cache of this layer."""
    batch, seq, kv_heads, head_dim = kept["key"].shape

    def project(name: str) -> jax.Array:
        return _linear(params[f"{layer}/attention/{name}"], x)

    def with_new(name: str) -> jax.Array:
        new = project(name).reshape(batch, 1, kv_heads, head_dim)
        return jax.lax.dynamic_update_slice_in_dim(kept[name], new, position, axis=1)

    key, value = with_new("key"), with_new("value")
    # Letters: b batch, s positions, k key-value heads, g query heads per key-value head, h within a head.
    query = project("query").reshape(batch, kv_heads, -1, head_dim)
    scores = jnp.einsum("bkgh,bskh->bkgs", query, key) / math.sqrt(head_dim)
    scores = scores.astype(jnp.promote_types(scores.dtype, jnp.float32))
    seen = jnp.arange(seq) <= position
    weights = jax.nn.softmax(jnp.where(seen, scores, jnp.finfo(scores.dtype).min)).astype(x.dtype)
    mixed = jnp.einsum("bkgs,bskh->bkgh", weights, value).reshape(batch, -1)
    return _linear(params[f"{layer}/attention/output"], mixed), {"key": key, "value": value}


def _mlp(params: Any, layer: str, x: jax.Array) -> jax.Array:
    hidden = _linear(params[f"{layer}/mlp/up"], x)
    gate = params.get(f"{layer}/mlp/gate")
    hidden = jax.nn.gelu(hidden) if gate is None else jax.nn.silu(_linear(gate, x)) * hidden
    return _linear(params[f"{layer}/mlp/down"], hidden)


def _linear(own: Any, x: jax.Array) -> jax.Array:
    return x @ own["w"] + own["b"] if "b" in own else x @ own["w"]


def _norm(own: Any, x: jax.Array) -> jax.Array:
    """Layer norm over the last dim if there is an offset, else RMS norm."""
    if "offset" in own:
        x = x - jnp.mean(x, axis=-1, keepdims=True)
    normal = x * jax.lax.rsqrt(jnp.mean(x * x, axis=-1, keepdims=True) + EPSILON) * own["scale"]
    return normal + own["offset"] if "offset" in own else normal

"""Transformers with mixture-of-experts layers (GShard, Switch), with their training step."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import haiku as hk
import jax
import jax.numpy as jnp

from partir.zoo.example import Example
from partir.zoo.training import cross_entropy, optimizer_of, training_example

_GSHARD = {"d_model": 1024, "d_ff": 8192, "heads": 16, "head_dim": 128}

GSHARD: Mapping[str, Mapping[str, int]] = {
    "12.5B": {"layers": 12, "experts": 128, **_GSHARD},
    "37B": {"layers": 36, "experts": 128, **_GSHARD},
    "50B": {"layers": 12, "experts": 512, **_GSHARD},
    "150B": {"layers": 36, "experts": 512, **_GSHARD},
    "200B": {"layers": 12, "experts": 2048, **_GSHARD},
    "600B": {"layers": 36, "experts": 2048, **_GSHARD},
}
"""Sizes of GShard's translation models for `moe(**GSHARD["600B"])` (Lepikhin et al. 2020, arXiv 2006.16668, table 1 and
appendix A): "MoE(2048E, 36L)" is "600B". The layers of encoder and decoder are counted together, as in the paper."""

SWITCH: Mapping[str, Mapping[str, int]] = {
    "base": {"layers": 24, "d_model": 768, "d_ff": 3072, "heads": 12, "head_dim": 64, "experts": 128, "choices": 1},
    "c": {"layers": 30, "d_model": 2080, "d_ff": 6144, "heads": 32, "head_dim": 64, "experts": 2048, "choices": 1, "every": 1},
}
"""Sizes of Switch Transformers for `moe(**SWITCH["c"])` (Fedus et al. 2022, arXiv 2101.03961, table 9, and the released
checkpoint of Switch-Base): 7 and 1,571 billion parameters. The layers of encoder and decoder are counted together."""


def moe(
    layers: int = 2,
    d_model: int = 256,
    heads: int = 4,
    experts: int = 8,
    vocab: int = 1024,
    seq: int = 64,
    batch: int = 8,
    *,
    capacity_factor: float = 1.0,
    choices: int = 2,
    groups: int | None = None,
    every: int = 2,
    head_dim: int | None = None,
    mlp_ratio: float = 4,
    d_ff: int | None = None,
    balance: float = 0.01,
    clip: float | None = None,
    learning_rate: float = 1e-3,
    optimizer: str = "adam",
    dtype: str = "float32",
    name: str | None = None,
) -> Example:
    """A training step of a decoder-only transformer with experts: `train_step(params, opt_state, batch)`.

    With B = `batch`, S = `seq`, V = `vocab`: `batch = {"tokens": int32[B, S], "targets": int32[B, S]}`, both in [0, V).
    The step returns `(params, opt_state, loss)`; the loss is the mean over B x S of -log p(target), in nats, plus `balance`
    times the load-balancing loss of each layer with experts (which is 1 if all experts get the same load).

    Every `every`-th layer has E = `experts` MLPs instead of one. Tokens are in G = `groups` groups of T = B S / G. Each token
    goes to its `choices` best experts by a softmax of its gate, as long as they have capacity: each expert takes
    C = ceil(`capacity_factor` x `choices` x T / E) tokens of a group, first choices before second ones, then in order of
    position. A token beyond the capacity passes the experts on the residual alone. GShard takes the second choice at random;
    here it is always taken. One contraction, `GTEC,GTM->EGCM`, dispatches tokens to experts, and another combines the results.

    Blocks are pre-norm and residual, attention is causal. Each block is in a named scope within `layer_<i>`:
    `attention-block`, `mlp-block` or `moe-block`; inside the last, `gating` and `experts`.

    Parameters, with D = `d_model`, K = `heads` x `head_dim`, F = `d_ff`:

    - `embed/embeddings` [V, D], `positions/embeddings` [S, D];
    - in each layer i: `layer_i/attention_norm/{scale,offset}`, `layer_i/attention/{query,key,value}/w` [D, K],
      `layer_i/attention/output/w` [K, D], and either `layer_i/mlp_norm/{scale,offset}`, `layer_i/mlp/up/w` [D, F],
      `layer_i/mlp/down/w` [F, D], or `layer_i/moe_norm/{scale,offset}`, `layer_i/moe/gate/w` [D, E] and
      `layer_i/moe/experts/{up,down}` [E, D, F] and [E, F, D];
    - `final_norm/{scale,offset}`, `logits/w` [D, V].

    That is 10 tensors per layer, 11 in a layer with experts, and 5 others.

    >>> step = moe(layers=2, d_model=32, heads=4, experts=8, vocab=64, seq=8, batch=2)
    >>> step.args[0]["layer_1/moe/experts"]["up"].shape
    (8, 32, 128)
    >>> len(jax.tree.leaves(step.args[0]))
    26

    Sources: Lepikhin et al. 2020, arXiv 2006.16668, algorithms 1 and 2 (groups, capacity, top-2 gating, the two
    contractions); Fedus et al. 2022, arXiv 2101.03961 (one choice, weighted by its gate; the load-balancing loss' scale).

    Args:
        layers: number of blocks, with and without experts.
        d_model: width of the residual stream.
        heads: attention heads.
        experts: experts in each layer that has them.
        vocab: number of tokens.
        seq: positions per sequence.
        batch: sequences per step.
        capacity_factor: capacity of an expert, as a multiple of an equal share of the tokens.
        choices: experts per token: 2 in GShard, 1 in Switch.
        groups: groups of tokens, by default one per sequence; divides `batch` x `seq`.
        every: one in this many layers has experts.
        head_dim: width of a head, by default `d_model / heads`.
        mlp_ratio: `d_ff / d_model`, if `d_ff` is not given.
        d_ff: width of the hidden layer of MLPs and experts.
        balance: weight of the load-balancing loss.
        clip: the global norm that gradients are clipped to; `None` does not clip.
        learning_rate: of the optimizer.
        optimizer: a name of `partir.zoo.training.OPTIMIZERS`.
        dtype: of parameters and activations; gates and loss are computed in at least 32 bits.
        name: the name in reports.

    Raises:
        ValueError: for heads or groups that do not divide, more choices than experts, a capacity of zero, or an unknown
            optimizer.
    """
    groups = batch if groups is None else groups
    _check(d_model, heads, head_dim, batch * seq, groups, choices, experts, capacity_factor, every)
    model = _Mixture(
        layers=layers,
        d_model=d_model,
        heads=heads,
        head_dim=d_model // heads if head_dim is None else head_dim,
        d_ff=round(mlp_ratio * d_model) if d_ff is None else d_ff,
        experts=experts,
        choices=choices,
        capacity=math.ceil(capacity_factor * choices * batch * seq / groups / experts),
        groups=groups,
        every=every,
        vocab=vocab,
        dtype=dtype,
    )

    def loss(batch: Mapping[str, jax.Array]) -> jax.Array:
        logits, imbalance = _logits(model, batch["tokens"])
        return cross_entropy(logits, batch["targets"]) + balance * imbalance

    tokens = jax.ShapeDtypeStruct((batch, seq), "int32")
    return training_example(
        loss,
        optimizer_of(optimizer, learning_rate, clip),
        {"tokens": tokens, "targets": tokens},
        name=name or "moe",
        integer_bounds={"batch/tokens": vocab, "batch/targets": vocab},
    )


def _check(
    d_model: int,
    heads: int,
    head_dim: int | None,
    tokens: int,
    groups: int,
    choices: int,
    experts: int,
    capacity_factor: float,
    every: int,
) -> None:
    """Raise ValueError, naming all that is wrong at once."""
    wrong: list[str] = []
    if head_dim is None and d_model % heads:
        wrong.append(f"d_model {d_model} does not divide by heads {heads}")
    if groups < 1 or tokens % groups:
        wrong.append(f"batch x seq {tokens} does not divide by groups {groups}")
    if not 1 <= choices <= experts:
        wrong.append(f"choices {choices} is not between 1 and experts {experts}")
    if capacity_factor <= 0:
        wrong.append(f"capacity_factor {capacity_factor} is not positive")
    if every < 1:
        wrong.append(f"every {every} is not positive")
    if wrong:
        raise ValueError("cannot build a moe\n" + "\n".join(f"  why     {reason}" for reason in wrong))


@dataclass(frozen=True)
class _Mixture:
    """The sizes that the modules below use; the fields are `moe`'s arguments with the defaults filled in."""

    layers: int
    d_model: int
    heads: int
    head_dim: int
    d_ff: int
    experts: int
    choices: int
    capacity: int
    groups: int
    every: int
    vocab: int
    dtype: str


def _linear(width: int, name: str) -> hk.Linear:
    return hk.Linear(width, with_bias=False, name=name)


def _norm(x: jax.Array, name: str) -> jax.Array:
    """Normalise the last dim."""
    return hk.LayerNorm(axis=-1, create_scale=True, create_offset=True, name=name)(x)


class _Embedding(hk.Module):
    """A table [rows, D] in the model's dtype (`hk.Embed`'s is always float32)."""

    def __init__(self, model: _Mixture, rows: int, name: str) -> None:
        super().__init__(name=name)
        self._shape = (rows, model.d_model)
        self._dtype = model.dtype

    def __call__(self) -> jax.Array:
        return hk.get_parameter("embeddings", self._shape, self._dtype, init=hk.initializers.TruncatedNormal(0.02))


class _Attention(hk.Module):
    """Causal self-attention, [B, S, D] to [B, S, D]."""

    def __init__(self, model: _Mixture, name: str) -> None:
        super().__init__(name=name)
        self._model = model

    def __call__(self, x: jax.Array) -> jax.Array:
        batch, seq, width = x.shape
        heads, head_dim = self._model.heads, self._model.head_dim
        query, key, value = (
            _linear(heads * head_dim, name)(x).reshape(batch, seq, heads, head_dim) for name in ("query", "key", "value")
        )
        scores = jnp.einsum("bqnh,bsnh->bnqs", query, key) / math.sqrt(head_dim)
        mask = jnp.tril(jnp.ones((seq, seq), bool))
        weights = jax.nn.softmax(jnp.where(mask, scores, jnp.finfo(scores.dtype).min))
        mixed = jnp.einsum("bnqs,bsnh->bqnh", weights, value).reshape(batch, seq, heads * head_dim)
        return _linear(width, "output")(mixed)


class _Mlp(hk.Module):
    """The position-wise network, [B, S, D] to [B, S, D]."""

    def __init__(self, model: _Mixture, name: str) -> None:
        super().__init__(name=name)
        self._model = model

    def __call__(self, x: jax.Array) -> jax.Array:
        hidden = jax.nn.relu(_linear(self._model.d_ff, "up")(x))
        return _linear(self._model.d_model, "down")(hidden)


class _Experts(hk.Module):
    """E networks side by side, [E, G, C, D] to [E, G, C, D]."""

    def __init__(self, model: _Mixture, name: str) -> None:
        super().__init__(name=name)
        self._model = model

    def __call__(self, x: jax.Array) -> jax.Array:
        experts, width, hidden = self._model.experts, self._model.d_model, self._model.d_ff
        up, down = (
            hk.get_parameter(
                name,
                (experts, rows, columns),
                self._model.dtype,
                init=hk.initializers.TruncatedNormal(1 / math.sqrt(rows)),
            )
            for name, rows, columns in (("up", width, hidden), ("down", hidden, width))
        )
        return jnp.einsum("egch,ehm->egcm", jax.nn.relu(jnp.einsum("egcm,emh->egch", x, up)), down)


class _MixtureOfExperts(hk.Module):
    """Maps [B, S, D] to [B, S, D]; also returns the imbalance of the experts' load."""

    def __init__(self, model: _Mixture, name: str) -> None:
        super().__init__(name=name)
        self._model = model

    def __call__(self, x: jax.Array) -> tuple[jax.Array, jax.Array]:
        tokens = x.reshape(self._model.groups, -1, self._model.d_model)
        with jax.named_scope("gating"):
            logits = _linear(self._model.experts, "gate")(tokens.astype(jnp.promote_types(x.dtype, jnp.float32)))
            combine, imbalance = _gate(self._model, logits)
            dispatch = (combine > 0).astype(x.dtype)
        sent = jnp.einsum("gtec,gtm->egcm", dispatch, tokens)
        made = _Experts(self._model, "experts")(sent)
        fetched = jnp.einsum("gtec,egcm->gtm", combine.astype(x.dtype), made)
        return fetched.reshape(x.shape), imbalance


def _gate(model: _Mixture, logits: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Maps logits [G, T, E] to the weight [G, T, E, C] of each token at each place of each expert, and the imbalance."""
    gates = jax.nn.softmax(logits)
    _, chosen = jax.lax.top_k(jax.lax.stop_gradient(gates), model.choices)
    masks = [jax.nn.one_hot(chosen[..., k], model.experts, dtype="int32") for k in range(model.choices)]
    weights = [jnp.sum(gates * mask, axis=-1) for mask in masks]
    # A single choice keeps its gate as weight: nothing else would train the gate.
    total = sum(weights) if model.choices > 1 else jnp.ones_like(weights[0])
    combine = jnp.zeros((*gates.shape, model.capacity), gates.dtype)
    taken = jnp.zeros((model.groups, 1, model.experts), "int32")
    for mask, weight in zip(masks, weights, strict=True):
        place = jnp.sum((jnp.cumsum(mask, axis=1) - mask + taken) * mask, axis=-1)
        # one_hot of a place beyond the capacity is zero: the token is dropped.
        room = jax.nn.one_hot(place, model.capacity, dtype=gates.dtype)
        combine += (weight / total)[..., None, None] * mask[..., None] * room[..., None, :]
        taken += jnp.sum(mask, axis=1, keepdims=True)
    shares = jnp.mean(masks[0].astype(gates.dtype), axis=1) * jnp.mean(gates, axis=1)
    return combine, model.experts * jnp.mean(jnp.sum(shares, axis=-1))


class _Layer(hk.Module):
    """One transformer block, [B, S, D] to [B, S, D], and its imbalance: 0 without experts."""

    def __init__(self, model: _Mixture, *, has_experts: bool, name: str) -> None:
        super().__init__(name=name)
        self._model = model
        self._has_experts = has_experts

    def __call__(self, x: jax.Array) -> tuple[jax.Array, jax.Array | float]:
        with jax.named_scope("attention-block"):
            x = x + _Attention(self._model, "attention")(_norm(x, "attention_norm"))
        if self._has_experts:
            with jax.named_scope("moe-block"):
                change, imbalance = _MixtureOfExperts(self._model, "moe")(_norm(x, "moe_norm"))
                return x + change, imbalance
        with jax.named_scope("mlp-block"):
            return x + _Mlp(self._model, "mlp")(_norm(x, "mlp_norm")), 0.0


def _logits(model: _Mixture, tokens: jax.Array) -> tuple[jax.Array, jax.Array | float]:
    """Maps tokens [B, S] to logits [B, S, V] (position s depends on tokens up to s); also the total imbalance."""
    x = _Embedding(model, model.vocab, "embed")()[tokens] + _Embedding(model, tokens.shape[1], "positions")()
    imbalance: jax.Array | float = 0.0
    for i in range(model.layers):
        has_experts = i % model.every == model.every - 1
        x, own = _Layer(model, has_experts=has_experts, name=f"layer_{i}")(x)
        imbalance += own
    return _linear(model.vocab, "logits")(_norm(x, "final_norm")), imbalance

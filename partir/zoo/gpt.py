"""Decoder-only transformers (GPT and its descendants), with their training step."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import haiku as hk
import jax
import jax.numpy as jnp

from partir.zoo.example import Example
from partir.zoo.training import cross_entropy, optimizer_of, training_example

GPT2: Mapping[str, Mapping[str, int]] = {
    "small": {"layers": 12, "d_model": 768, "heads": 12, "vocab": 50257, "seq": 1024},
    "medium": {"layers": 24, "d_model": 1024, "heads": 16, "vocab": 50257, "seq": 1024},
    "large": {"layers": 36, "d_model": 1280, "heads": 20, "vocab": 50257, "seq": 1024},
    "xl": {"layers": 48, "d_model": 1600, "heads": 25, "vocab": 50257, "seq": 1024},
}
"""Sizes of GPT-2 for `gpt(**GPT2["small"], tied=True)` (Radford et al. 2019, table 2, and the released checkpoints)."""


def gpt(
    layers: int = 2,
    d_model: int = 256,
    heads: int = 4,
    vocab: int = 1024,
    seq: int = 64,
    batch: int = 8,
    *,
    kv_heads: int | None = None,
    mlp_ratio: float = 4,
    d_ff: int | None = None,
    tied: bool = False,
    bias: bool = True,
    norm: Literal["layer", "rms"] = "layer",
    mlp: Literal["gelu", "swiglu"] = "gelu",
    final_norm: bool = True,
    positions: Literal["learned", "none"] = "learned",
    flatten: bool = False,
    clip: float | None = None,
    learning_rate: float = 1e-3,
    optimizer: str = "adam",
    dtype: str = "float32",
    name: str | None = None,
) -> Example:
    """A training step of a decoder-only transformer: `train_step(params, opt_state, batch)`.

    With B = `batch`, S = `seq`, V = `vocab`: `batch = {"tokens": int32[B, S], "targets": int32[B, S]}`, both in [0, V).
    The step returns `(params, opt_state, loss)`; the loss is the mean over B x S of -log p(target), in nats.
    Blocks are pre-norm and residual, attention is causal. Every block is in a named scope: `attention-block` or
    `mlp-block`, within `layer_<i>`.

    Parameters, with D = `d_model`, K = `kv_heads`, H = D / `heads`, F = `d_ff`; [b] only with `bias`, [offset] only
    with `norm="layer"`:

    - `embed/embeddings` [V, D]; `positions/embeddings` [S, D] with learned positions;
    - in each layer i: `layer_i/attention_norm/{scale,[offset]}`, `layer_i/attention/query/{w,[b]}` [D, D],
      `…/key` and `…/value` [D, K H], `…/output` [D, D], `layer_i/mlp_norm/{scale,[offset]}`, `layer_i/mlp/up` [D, F],
      `…/down` [F, D], and `…/gate` [D, F] with "swiglu";
    - `final_norm/{scale,[offset]}` if any; `logits/w` [D, V] unless tied.

    With the defaults there are 16 tensors per layer and 5 others.

    >>> step = gpt(layers=1, d_model=32, heads=4, vocab=64, seq=8, batch=2)
    >>> step.args[0]["layer_0/attention/query"]["w"].shape
    (32, 32)
    >>> len(jax.tree.leaves(step.args[0]))
    21

    Sources: Vaswani et al. 2017 (attention); Radford et al. 2019 (pre-norm decoder); Ainslie et al. 2023 (grouped-query
    attention); Zhang and Sennrich 2019 (RMS norm); Shazeer 2020 (SwiGLU); Press and Wolf 2017 (tied embeddings).

    Args:
        layers: number of blocks.
        d_model: width of the residual stream.
        heads: query heads; divides `d_model`.
        vocab: number of tokens.
        seq: positions per sequence.
        batch: sequences per step.
        kv_heads: key and value heads, by default `heads`; divides `heads`; fewer is grouped-query attention.
        mlp_ratio: `d_ff / d_model`, if `d_ff` is not given.
        d_ff: width of the MLP's hidden layer.
        tied: logits use the embedding table.
        bias: whether projections have a bias (the one to the logits never has).
        norm: "layer" (scale and offset) or "rms" (scale).
        mlp: "gelu", or "swiglu" with a third matrix.
        final_norm: a norm before the logits.
        positions: "learned" or "none".
        flatten: reshape [B, S, D] to [B S, D] around the MLP.
        clip: the global norm that gradients are clipped to; `None` does not clip.
        learning_rate: of the optimizer.
        optimizer: a name of `partir.zoo.training.OPTIMIZERS`.
        dtype: of parameters and activations; the loss is computed in at least 32 bits.
        name: the name in reports.

    Raises:
        ValueError: for heads that do not divide, or an unknown norm, MLP, kind of positions or optimizer.
    """
    decoder = _Decoder(
        layers=layers,
        d_model=d_model,
        heads=heads,
        kv_heads=heads if kv_heads is None else kv_heads,
        d_ff=round(mlp_ratio * d_model) if d_ff is None else d_ff,
        vocab=vocab,
        tied=tied,
        bias=bias,
        norm=norm,
        mlp=mlp,
        final_norm=final_norm,
        positions=positions,
        flatten=flatten,
        dtype=dtype,
    )
    decoder.check()

    def loss(batch: Mapping[str, jax.Array]) -> jax.Array:
        return cross_entropy(_logits(decoder, batch["tokens"]), batch["targets"])

    tokens = jax.ShapeDtypeStruct((batch, seq), "int32")
    return training_example(
        loss,
        optimizer_of(optimizer, learning_rate, clip),
        {"tokens": tokens, "targets": tokens},
        name=name or "gpt",
        integer_bounds={"batch/tokens": vocab, "batch/targets": vocab},
    )


def partir_t32(
    layers: int = 32,
    d_model: int = 128,
    heads: int = 8,
    vocab: int = 512,
    seq: int = 32,
    batch: int = 8,
    **settings: Any,
) -> Example:
    """PartIR's 32-layer transformer, reconstructed from its published collective counts.

    Nine tensors per layer and one embedding: 9 x 32 + 1 = 289 parameter tensors, hence 290 all-reduces (one more for the
    loss) when the batch is partitioned. RMS norms, SwiGLU, tied logits, and neither biases, positions nor a final norm give
    this number. The sizes here are small: widths do not change the counts.

    Source: Alabed et al., "PartIR: Composing SPMD Partitioning Strategies for Machine Learning", arXiv 2401.11202, T32.

    >>> len(jax.tree.leaves(partir_t32().args[0]))
    289

    Args:
        layers: number of blocks.
        d_model: width of the residual stream.
        heads: attention heads.
        vocab: number of tokens.
        seq: positions per sequence.
        batch: sequences per step.
        **settings: any other argument of `gpt` (some change the number of tensors).

    Raises:
        ValueError: as `gpt` does.
    """
    published: dict[str, Any] = {
        "tied": True,
        "bias": False,
        "norm": "rms",
        "mlp": "swiglu",
        "final_norm": False,
        "positions": "none",
        "name": "partir_t32",
    }
    return gpt(layers, d_model, heads, vocab, seq, batch, **(published | settings))


@dataclass(frozen=True)
class _Decoder:
    """The sizes that the modules below use; the fields are `gpt`'s arguments with the defaults filled in."""

    layers: int
    d_model: int
    heads: int
    kv_heads: int
    d_ff: int
    vocab: int
    tied: bool
    bias: bool
    norm: str
    mlp: str
    final_norm: bool
    positions: str
    flatten: bool
    dtype: str

    def check(self) -> None:
        """Raise ValueError, naming all that is wrong at once."""
        wrong: list[str] = []
        if self.d_model % self.heads:
            wrong.append(f"d_model {self.d_model} does not divide by heads {self.heads}")
        if self.heads % self.kv_heads:
            wrong.append(f"heads {self.heads} does not divide by kv_heads {self.kv_heads}")
        for field, choices in (
            ("norm", ("layer", "rms")),
            ("mlp", ("gelu", "swiglu")),
            ("positions", ("learned", "none")),
        ):
            if (choice := getattr(self, field)) not in choices:
                wrong.append(f'{field} "{choice}" is not one of {", ".join(choices)}')
        if wrong:
            raise ValueError("cannot build a gpt\n" + "\n".join(f"  why     {reason}" for reason in wrong))

    @property
    def head_dim(self) -> int:
        return self.d_model // self.heads

    def linear(self, width: int, name: str) -> hk.Linear:
        return hk.Linear(width, with_bias=self.bias, name=name)

    def norm_of(self, x: jax.Array, name: str) -> jax.Array:
        """Normalise the last dim."""
        if self.norm == "rms":
            return hk.RMSNorm(axis=-1, name=name)(x)
        return hk.LayerNorm(axis=-1, create_scale=True, create_offset=True, name=name)(x)


class _Embedding(hk.Module):
    """A table [rows, width] in the model's dtype (`hk.Embed`'s is always float32)."""

    def __init__(self, rows: int, width: int, dtype: str, name: str) -> None:
        super().__init__(name=name)
        self._shape = (rows, width)
        self._dtype = dtype

    def __call__(self) -> jax.Array:
        return hk.get_parameter("embeddings", self._shape, self._dtype, init=hk.initializers.TruncatedNormal(0.02))


class _Attention(hk.Module):
    """Causal self-attention, [B, S, D] to [B, S, D]."""

    def __init__(self, decoder: _Decoder, name: str) -> None:
        super().__init__(name=name)
        self._decoder = decoder

    def __call__(self, x: jax.Array) -> jax.Array:
        decoder = self._decoder
        batch, seq, _ = x.shape
        kv_width = decoder.kv_heads * decoder.head_dim
        query = decoder.linear(decoder.d_model, "query")(x)
        key = decoder.linear(kv_width, "key")(x).reshape(batch, seq, decoder.kv_heads, decoder.head_dim)
        value = decoder.linear(kv_width, "value")(x).reshape(batch, seq, decoder.kv_heads, decoder.head_dim)
        # Letters: b batch, q and s positions, k key-value heads, g query heads per key-value head, h within a head.
        # With as many key-value heads as heads there is no g: the text of the program is that of plain attention.
        g = "" if decoder.kv_heads == decoder.heads else "g"
        groups = (decoder.heads // decoder.kv_heads,) if g else ()
        query = query.reshape(batch, seq, decoder.kv_heads, *groups, decoder.head_dim)
        scores = jnp.einsum(f"bqk{g}h,bskh->bk{g}qs", query, key) / math.sqrt(decoder.head_dim)
        mask = jnp.tril(jnp.ones((seq, seq), bool))
        weights = jax.nn.softmax(jnp.where(mask, scores, jnp.finfo(scores.dtype).min))
        mixed = jnp.einsum(f"bk{g}qs,bskh->bqk{g}h", weights, value).reshape(batch, seq, decoder.d_model)
        return decoder.linear(decoder.d_model, "output")(mixed)


class _Mlp(hk.Module):
    """The position-wise network, [B, S, D] to [B, S, D]."""

    def __init__(self, decoder: _Decoder, name: str) -> None:
        super().__init__(name=name)
        self._decoder = decoder

    def __call__(self, x: jax.Array) -> jax.Array:
        decoder = self._decoder
        shape = x.shape
        if decoder.flatten:
            x = x.reshape(-1, decoder.d_model)
        up = decoder.linear(decoder.d_ff, "up")(x)
        hidden = jax.nn.gelu(up) if decoder.mlp == "gelu" else jax.nn.silu(decoder.linear(decoder.d_ff, "gate")(x)) * up
        return decoder.linear(decoder.d_model, "down")(hidden).reshape(shape)


class _Layer(hk.Module):
    """One transformer block, [B, S, D] to [B, S, D]."""

    def __init__(self, decoder: _Decoder, name: str) -> None:
        super().__init__(name=name)
        self._decoder = decoder

    def __call__(self, x: jax.Array) -> jax.Array:
        decoder = self._decoder
        with jax.named_scope("attention-block"):
            x = x + _Attention(decoder, "attention")(decoder.norm_of(x, "attention_norm"))
        with jax.named_scope("mlp-block"):
            x = x + _Mlp(decoder, "mlp")(decoder.norm_of(x, "mlp_norm"))
        return x


def _logits(decoder: _Decoder, tokens: jax.Array) -> jax.Array:
    """Maps tokens [B, S] to logits [B, S, V]; position s depends on tokens up to s."""
    table = _Embedding(decoder.vocab, decoder.d_model, decoder.dtype, "embed")()
    x = table[tokens]
    if decoder.positions == "learned":
        x = x + _Embedding(tokens.shape[1], decoder.d_model, decoder.dtype, "positions")()
    for i in range(decoder.layers):
        x = _Layer(decoder, f"layer_{i}")(x)
    if decoder.final_norm:
        x = decoder.norm_of(x, "final_norm")
    if decoder.tied:
        with jax.named_scope("logits"):
            return jnp.einsum("bsd,vd->bsv", x, table)
    return hk.Linear(decoder.vocab, with_bias=False, name="logits")(x)

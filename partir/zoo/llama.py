"""Llama: a decoder whose layers are a scan over stacked parameters, in bfloat16 with float32 master weights."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp

from partir.zoo.example import Example
from partir.zoo.training import cross_entropy, optimizer_of, step_example

_LLAMA_2 = {"vocab": 32_000, "seq": 4096}
_LLAMA_3 = {"kv_heads": 8, "vocab": 128_256, "seq": 8192, "rope_base": 500_000.0}

LLAMA: Mapping[str, Mapping[str, Any]] = {
    "7b": {"layers": 32, "d_model": 4096, "heads": 32, "d_ff": 11_008, **_LLAMA_2},
    "13b": {"layers": 40, "d_model": 5120, "heads": 40, "d_ff": 13_824, **_LLAMA_2},
    "70b": {"layers": 80, "d_model": 8192, "heads": 64, "kv_heads": 8, "d_ff": 28_672, **_LLAMA_2},
}
"""Sizes of Llama 2 for `llama(**LLAMA["7b"])` (Touvron et al. 2023, arXiv 2307.09288, and the released checkpoints)."""

LLAMA3: Mapping[str, Mapping[str, Any]] = {
    "8b": {"layers": 32, "d_model": 4096, "heads": 32, "d_ff": 14_336, **_LLAMA_3},
    "70b": {"layers": 80, "d_model": 8192, "heads": 64, "d_ff": 28_672, **_LLAMA_3},
}
"""Sizes of Llama 3 (Grattafiori et al. 2024, arXiv 2407.21783, table 3, and the released checkpoints)."""

EPSILON = 1e-5
"""Added to the mean square in RMS norms (the released checkpoints' `norm_eps`)."""


def llama(
    layers: int = 2,
    d_model: int = 256,
    heads: int = 8,
    d_ff: int = 704,
    vocab: int = 1024,
    seq: int = 64,
    batch: int = 8,
    *,
    kv_heads: int | None = None,
    rope_base: float = 10_000.0,
    remat: bool = True,
    training: bool = True,
    clip: float | None = None,
    learning_rate: float = 3e-4,
    optimizer: str = "adamw",
    dtype: str = "float32",
    compute_dtype: str | None = "bfloat16",
    name: str | None = None,
) -> Example:
    """A training step of Llama, `train_step(params, opt_state, batch)`, or its forward pass, `forward(params, tokens)`.

    With B = `batch`, S = `seq`, V = `vocab`: `batch = {"tokens": int32[B, S], "targets": int32[B, S]}`, both in [0, V).
    The step returns `(params, opt_state, loss)`, the loss a mean over B x S in nats; the forward pass returns logits [B, S, V].

    Parameters, with L = `layers`, D = `d_model`, K = `kv_heads`, H = D / `heads`, F = `d_ff`:

    - `embed` [V, D], `final_norm` [D], `logits` [D, V];
    - stacked over layers: `layers/attention_norm` and `layers/mlp_norm` [L, D], `layers/query` and `layers/output` [L, D, D],
      `layers/key` and `layers/value` [L, D, K H], `layers/gate` and `layers/up` [L, D, F], `layers/down` [L, F, D].

    The layers are one `jax.lax.scan` over the stack, with `remat` under `jax.checkpoint`: only the residual stream between
    layers is kept for the backward pass. Blocks are in the named scopes `attention-block` and `mlp-block`.

    >>> step = llama(layers=3, d_model=32, heads=4, kv_heads=2, d_ff=48, vocab=64, seq=8, batch=2)
    >>> step.args[0]["layers"]["key"].shape, len(jax.tree.leaves(step.args[0]))
    ((3, 32, 16), 12)

    Sources: Touvron et al. 2023; Su et al. 2021 (rotary positions); Ainslie et al. 2023 (grouped-query attention); Shazeer 2020
    (SwiGLU); Zhang and Sennrich 2019 (RMS norm); Micikevicius et al. 2018 (master weights).

    Args:
        layers: number of blocks.
        d_model: width of the residual stream.
        heads: query heads; divides `d_model` into an even head width.
        d_ff: width of the MLP's hidden layer.
        vocab: number of tokens.
        seq: positions per sequence.
        batch: sequences per step.
        kv_heads: key and value heads, by default `heads`; divides `heads`; fewer is grouped-query attention.
        rope_base: the base of the rotary angles (theta).
        remat: recompute each layer in the backward pass.
        training: whether to return the training step; otherwise the forward pass.
        clip: the global norm that gradients are clipped to; `None` does not clip.
        learning_rate: of the optimizer.
        optimizer: a name of `partir.zoo.training.OPTIMIZERS`.
        dtype: of parameters, gradients and optimizer state.
        compute_dtype: of activations, and of parameters as they are used; `None` computes in the parameters' own dtype.
        name: the name in reports.

    Raises:
        ValueError: for heads that do not divide, or an unknown optimizer.
    """
    model = _Llama(
        layers, d_model, heads, heads if kv_heads is None else kv_heads, d_ff, vocab, rope_base, remat, compute_dtype
    )
    model.check()

    def loss(params: Any, batch: Any) -> jax.Array:
        return cross_entropy(model.logits(params, batch["tokens"]), batch["targets"])

    def init(key: jax.Array) -> Any:
        return model.init(key, dtype)

    def forward(params: Any, tokens: jax.Array) -> jax.Array:
        return model.logits(params, tokens)

    shape = jax.ShapeDtypeStruct((batch, seq), "int32")
    if training:
        return step_example(
            loss,
            init,
            optimizer_of(optimizer, learning_rate, clip),
            {"tokens": shape, "targets": shape},
            name=name or "llama",
            integer_bounds={"batch/tokens": vocab, "batch/targets": vocab},
        )
    params = jax.eval_shape(init, jax.random.key(0))
    return Example(
        forward, (params, shape), name=name or "llama", init=lambda key: (init(key),), integer_bounds={"tokens": vocab}
    )


@dataclass(frozen=True)
class _Llama:
    """The model as functions of its parameters; the fields are `llama`'s arguments with the defaults filled in."""

    layers: int
    d_model: int
    heads: int
    kv_heads: int
    d_ff: int
    vocab: int
    rope_base: float
    remat: bool
    compute_dtype: str | None

    def check(self) -> None:
        """Raise ValueError, naming all that is wrong at once."""
        wrong: list[str] = []
        if self.d_model % self.heads:
            wrong.append(f"d_model {self.d_model} does not divide by heads {self.heads}")
        elif self.head_dim % 2:
            wrong.append(f"heads of width {self.head_dim} have no pairs to rotate")
        if self.heads % self.kv_heads:
            wrong.append(f"heads {self.heads} does not divide by kv_heads {self.kv_heads}")
        if wrong:
            raise ValueError("cannot build a llama\n" + "\n".join(f"  why     {reason}" for reason in wrong))

    @property
    def head_dim(self) -> int:
        return self.d_model // self.heads

    def init(self, key: jax.Array, dtype: str) -> dict[str, Any]:
        """Initial parameters: matrices are normal with deviation 0.02 (0.02 / sqrt(2 L) for output and down), scales are 1."""
        width, kv_width, stack = self.d_model, self.kv_heads * self.head_dim, self.layers
        back = 0.02 / math.sqrt(2 * stack)
        matrices = {
            "query": ((stack, width, width), 0.02),
            "key": ((stack, width, kv_width), 0.02),
            "value": ((stack, width, kv_width), 0.02),
            "output": ((stack, width, width), back),
            "gate": ((stack, width, self.d_ff), 0.02),
            "up": ((stack, width, self.d_ff), 0.02),
            "down": ((stack, self.d_ff, width), back),
        }
        first, second, *keys = jax.random.split(key, 2 + len(matrices))
        drawn = {
            name: deviation * jax.random.normal(own, shape, dtype)
            for own, (name, (shape, deviation)) in zip(keys, matrices.items(), strict=True)
        }
        norms = {name: jnp.ones((stack, width), dtype) for name in ("attention_norm", "mlp_norm")}
        return {
            "embed": 0.02 * jax.random.normal(first, (self.vocab, width), dtype),
            "layers": norms | drawn,
            "final_norm": jnp.ones(width, dtype),
            "logits": 0.02 * jax.random.normal(second, (width, self.vocab), dtype),
        }

    def logits(self, params: Any, tokens: jax.Array) -> jax.Array:
        """Maps tokens [B, S] to logits [B, S, V]; position s depends on tokens up to s."""
        angles = self.angles(tokens.shape[1])
        x = self.computed(params["embed"][tokens])

        def layer(x: jax.Array, stacked: Any) -> tuple[jax.Array, None]:
            own = jax.tree.map(self.computed, stacked)
            with jax.named_scope("attention-block"):
                x = x + self.attention(own, _rms_norm(x, own["attention_norm"]), angles)
            with jax.named_scope("mlp-block"):
                x = x + _mlp(own, _rms_norm(x, own["mlp_norm"]))
            return x, None

        # XLA cannot merge ops across iterations of a scan, so checkpoint's optimization barriers against that are left out.
        body = jax.checkpoint(layer, prevent_cse=False) if self.remat else layer
        with jax.named_scope("layers"):
            x, _ = jax.lax.scan(body, x, params["layers"])
        x = _rms_norm(x, self.computed(params["final_norm"]))
        with jax.named_scope("logits"):
            return x @ self.computed(params["logits"])

    def computed(self, x: jax.Array) -> jax.Array:
        """A value converted to the compute dtype."""
        return x if self.compute_dtype is None else x.astype(self.compute_dtype)

    def angles(self, seq: int) -> jax.Array:
        """Rotary angles [S, H / 2]: position times base^(-2 i / H)."""
        exponents = jnp.arange(0, self.head_dim, 2) / self.head_dim
        return jnp.arange(seq)[:, None] * self.rope_base**-exponents

    def attention(self, own: Any, x: jax.Array, angles: jax.Array) -> jax.Array:
        """Causal grouped-query attention of one layer, [B, S, D] to [B, S, D]."""
        batch, seq, width = x.shape
        # Letters: b batch, q and s positions, k key-value heads, g query heads per key-value head, h within a head.
        query = (x @ own["query"]).reshape(batch, seq, self.kv_heads, self.heads // self.kv_heads, self.head_dim)
        key = (x @ own["key"]).reshape(batch, seq, self.kv_heads, self.head_dim)
        value = (x @ own["value"]).reshape(batch, seq, self.kv_heads, self.head_dim)
        query, key = _rotate(query, angles[:, None, None]), _rotate(key, angles[:, None])
        scores = jnp.einsum("bqkgh,bskh->bkgqs", query, key) / math.sqrt(self.head_dim)
        scores = scores.astype(_at_least_32_bits(scores.dtype))
        mask = jnp.tril(jnp.ones((seq, seq), bool))
        weights = jax.nn.softmax(jnp.where(mask, scores, jnp.finfo(scores.dtype).min)).astype(x.dtype)
        mixed = jnp.einsum("bkgqs,bskh->bqkgh", weights, value).reshape(batch, seq, width)
        return mixed @ own["output"]


def _mlp(own: Any, x: jax.Array) -> jax.Array:
    return (jax.nn.silu(x @ own["gate"]) * (x @ own["up"])) @ own["down"]


def _rotate(x: jax.Array, angles: jax.Array) -> jax.Array:
    """Rotate the pairs (x[i], x[i + H/2]) of the last dim by their angles."""
    first, second = jnp.split(x, 2, axis=-1)
    cosine, sine = jnp.cos(angles).astype(x.dtype), jnp.sin(angles).astype(x.dtype)
    return jnp.concatenate([first * cosine - second * sine, second * cosine + first * sine], axis=-1)


def _rms_norm(x: jax.Array, scale: jax.Array) -> jax.Array:
    """x / rms(x) over the last dim, computed in at least 32 bits, times the scale."""
    wide = x.astype(_at_least_32_bits(x.dtype))
    normal = wide * jax.lax.rsqrt(jnp.mean(wide * wide, axis=-1, keepdims=True) + EPSILON)
    return normal.astype(x.dtype) * scale


def _at_least_32_bits(dtype: Any) -> Any:
    return jnp.promote_types(dtype, jnp.float32)

"""Vision transformers: an encoder over the patches of an image, for classification, with its training step."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import haiku as hk
import jax
import jax.numpy as jnp

from partir.zoo.example import Example
from partir.zoo.training import cross_entropy, level, optimizer_of, training_example

VIT: Mapping[str, Mapping[str, int]] = {
    "b16": {"layers": 12, "d_model": 768, "heads": 12, "d_ff": 3072, "patch": 16, "image": 224, "classes": 1000},
    "l16": {"layers": 24, "d_model": 1024, "heads": 16, "d_ff": 4096, "patch": 16, "image": 224, "classes": 1000},
    "h14": {"layers": 32, "d_model": 1280, "heads": 16, "d_ff": 5120, "patch": 14, "image": 224, "classes": 1000},
}
"""Sizes of ViT-B/16, L/16 and H/14 on ImageNet for `vit(**VIT["b16"])` (Dosovitskiy et al. 2021, arXiv 2010.11929, table 1)."""


def vit(
    layers: int = 2,
    d_model: int = 192,
    heads: int = 4,
    d_ff: int = 768,
    patch: int = 8,
    image: int = 32,
    classes: int = 16,
    batch: int = 8,
    *,
    channels: int = 3,
    pooling: Literal["token", "mean"] = "token",
    clip: float | None = None,
    learning_rate: float = 1e-3,
    optimizer: str = "adam",
    dtype: str = "float32",
    name: str | None = None,
) -> Example:
    """A training step of a vision transformer: `train_step(params, opt_state, batch)`.

    With B = `batch`, I = `image`, C = `channels`: `batch = {"images": dtype[B, I, I, C], "labels": int32[B]}`, labels in
    [0, `classes`). The step returns `(params, opt_state, loss)`, the loss a mean over B in nats. An image is split into
    N = (I / `patch`)^2 patches, each embedded by one matrix; blocks are pre-norm and residual, attention is not masked. Blocks
    are in the named scopes `attention-block` and `mlp-block`, within `layer_<i>`.

    Parameters, with D = `d_model`, F = `d_ff`, P = `patch`^2 C, and T = N (N + 1 with a class token):

    - `patches/{w,b}` [P, D]; `token/embeddings` [1, D] with a class token; `positions/embeddings` [T, D];
    - in each layer i: `layer_i/attention_norm` and `layer_i/mlp_norm` {scale, offset}, `layer_i/attention/{query,key,value,
      output}/{w,b}` [D, D], `layer_i/mlp/{up,down}/{w,b}`;
    - `final_norm/{scale,offset}`, `head/{w,b}` [D, `classes`].

    >>> step = vit(layers=1, d_model=32, heads=4, d_ff=64, patch=4, image=16, classes=8, batch=2)
    >>> step.args[0]["positions"]["embeddings"].shape, len(jax.tree.leaves(step.args[0]))
    ((17, 32), 24)

    Source: Dosovitskiy et al. 2021; Zhai et al. 2022 (mean pooling in place of the class token).

    Args:
        layers: number of blocks.
        d_model: width of the residual stream.
        heads: attention heads; divides `d_model`.
        d_ff: width of the MLP's hidden layer.
        patch: side of a patch in pixels; divides `image`.
        image: side of an image in pixels.
        classes: number of labels.
        batch: images per step.
        channels: channels of an image.
        pooling: what is classified: a class "token" before the patches, or the "mean" of the patches.
        clip: the global norm that gradients are clipped to; `None` does not clip.
        learning_rate: of the optimizer.
        optimizer: a name of `partir.zoo.training.OPTIMIZERS`.
        dtype: of images, parameters and activations; the loss is computed in at least 32 bits.
        name: the name in reports.

    Raises:
        ValueError: for heads or patches that do not divide, or an unknown pooling or optimizer.
    """
    encoder = _Encoder(layers, d_model, heads, d_ff, patch, image, classes, pooling)
    encoder.check()

    def loss(batch: Mapping[str, jax.Array]) -> jax.Array:
        return cross_entropy(encoder.logits(batch["images"]), batch["labels"])

    return training_example(
        loss,
        optimizer_of(optimizer, learning_rate, clip),
        {
            "images": jax.ShapeDtypeStruct((batch, image, image, channels), dtype),
            "labels": jax.ShapeDtypeStruct((batch,), "int32"),
        },
        name=name or "vit",
        integer_bounds={"batch/labels": classes},
    )


@dataclass(frozen=True)
class _Encoder:
    """The model; the fields are `vit`'s arguments."""

    layers: int
    d_model: int
    heads: int
    d_ff: int
    patch: int
    image: int
    classes: int
    pooling: str

    def check(self) -> None:
        """Raise ValueError, naming all that is wrong at once."""
        wrong: list[str] = []
        if self.d_model % self.heads:
            wrong.append(f"d_model {self.d_model} does not divide by heads {self.heads}")
        if self.image % self.patch:
            wrong.append(f"image {self.image} does not divide by patch {self.patch}")
        if self.pooling not in ("token", "mean"):
            wrong.append(f'pooling "{self.pooling}" is not one of token, mean')
        if wrong:
            raise ValueError("cannot build a vit\n" + "\n".join(f"  why     {reason}" for reason in wrong))

    def logits(self, images: jax.Array) -> jax.Array:
        """From images [B, I, I, C] to logits [B, classes]."""
        x = hk.Linear(self.d_model, name="patches")(self.patches(images))
        if self.pooling == "token":
            token = _table(1, self.d_model, x.dtype, "token")
            x = jnp.concatenate([jnp.broadcast_to(token, (len(x), 1, self.d_model)), x], axis=1)
        x = x + _table(x.shape[1], self.d_model, x.dtype, "positions")
        for i in range(self.layers):
            with level(f"layer_{i}"):
                x = self.layer(x)
        x = _norm(x, "final_norm")
        pooled = x[:, 0] if self.pooling == "token" else jnp.mean(x, axis=1)
        return hk.Linear(self.classes, name="head")(pooled)

    def patches(self, images: jax.Array) -> jax.Array:
        """Maps [B, I, I, C] to [B, N, P]: patches in row-major order, and the pixels of each in row-major order."""
        batch, side, _, channels = images.shape
        rows = side // self.patch
        tiles = images.reshape(batch, rows, self.patch, rows, self.patch, channels)
        return tiles.transpose(0, 1, 3, 2, 4, 5).reshape(batch, rows * rows, self.patch * self.patch * channels)

    def layer(self, x: jax.Array) -> jax.Array:
        """One block, [B, T, D] to [B, T, D]."""
        with jax.named_scope("attention-block"):
            x = x + self.attention(_norm(x, "attention_norm"))
        with jax.named_scope("mlp-block"):
            return x + self.mlp(_norm(x, "mlp_norm"))

    def attention(self, x: jax.Array) -> jax.Array:
        """Attention of every position to all positions, [B, T, D] to [B, T, D]."""
        split = (*x.shape[:2], self.heads, self.d_model // self.heads)
        with hk.name_scope("attention"):
            query, key, value = (hk.Linear(self.d_model, name=name)(x).reshape(split) for name in ("query", "key", "value"))
            # Letters: b batch, q and s positions, n heads, h within a head.
            scores = jnp.einsum("bqnh,bsnh->bnqs", query, key) / math.sqrt(split[-1])
            mixed = jnp.einsum("bnqs,bsnh->bqnh", jax.nn.softmax(scores), value)
            return hk.Linear(self.d_model, name="output")(mixed.reshape(x.shape))

    def mlp(self, x: jax.Array) -> jax.Array:
        """The position-wise network, [B, T, D] to [B, T, D]."""
        with hk.name_scope("mlp"):
            return hk.Linear(self.d_model, name="down")(jax.nn.gelu(hk.Linear(self.d_ff, name="up")(x)))


def _table(rows: int, width: int, dtype: jnp.dtype, name: str) -> jax.Array:
    """A learned table [rows, width], as the parameter `<name>/embeddings`."""
    with hk.name_scope(name):
        return hk.get_parameter("embeddings", (rows, width), dtype, init=hk.initializers.TruncatedNormal(0.02))


def _norm(x: jax.Array, name: str) -> jax.Array:
    return hk.LayerNorm(axis=-1, create_scale=True, create_offset=True, name=name)(x)

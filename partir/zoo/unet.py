"""Diffusion U-Nets, which predict the noise in an image, with their training step."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import haiku as hk
import jax
import jax.numpy as jnp
import numpy as np

from partir.zoo.example import Example
from partir.zoo.training import level, optimizer_of, training_example

DDPM: Mapping[str, Mapping[str, Any]] = {
    "cifar10": {"channels": 128, "multipliers": (1, 2, 2, 2), "image": 32, "attention_at": (16,), "batch": 128},
    "256": {"channels": 128, "multipliers": (1, 1, 2, 2, 4, 4), "image": 256, "attention_at": (16,), "batch": 64},
}
"""Sizes of Ho et al. 2020, appendix B, for `unet(**DDPM["cifar10"])`: 35.7 and 114 million parameters."""


def unet(
    channels: int = 128,
    multipliers: Sequence[int] = (1, 2, 2, 2),
    blocks: int = 2,
    image: int = 32,
    batch: int = 8,
    *,
    attention_at: Sequence[int] = (16,),
    heads: int = 1,
    groups: int = 32,
    colors: int = 3,
    noise_levels: int = 1000,
    clip: float | None = None,
    learning_rate: float = 2e-4,
    optimizer: str = "adam",
    dtype: str = "float32",
    name: str | None = None,
) -> Example:
    """A training step of a diffusion model: `train_step(params, opt_state, batch)`; the default is DDPM's for CIFAR-10.

    With B = `batch`, I = `image`, K = `colors`: `batch = {"images": dtype[B, I, I, K], "noise": dtype[B, I, I, K], "times":
    int32[B]}`, times in [0, `noise_levels`). Images are mixed with noise according to their time, the U-Net predicts the noise,
    and the loss is the mean squared error. The step returns `(params, opt_state, loss)`.

    On the way down, each level has `channels` x `multipliers[level]` channels and `blocks` residual blocks, and halves the
    image (except the last level). On the way up, each level has `blocks` + 1 blocks, which also read the activations that the
    way down left at that level, and doubles the image. A block is a group norm, a SiLU and a 3x3 convolution, twice, with an
    embedding of the time added in between. Blocks at the sizes `attention_at`, and one in the middle, are followed by
    self-attention over positions. Scopes: `down_<level>/block_<i>`, `middle/…`, `up_<level>/block_<i>`, `…/attention_<i>`.

    Parameters: `time/{hidden,output}/{w,b}`; `input`, `output` and in blocks `conv_k` `{w,b}` [3, 3, in, out]; in blocks
    `norm_k/{scale,offset}`, `time/{w,b}` and, where the width changes, `shortcut/{w,b}`; in attention `norm`, `query`,
    `key`, `value`, `output`; `down_<level>/half`, `up_<level>/double` `{w,b}`; `norm/{scale,offset}`.

    >>> step = unet(channels=8, multipliers=(1, 2), blocks=1, image=8, attention_at=(4,), groups=4, batch=2)
    >>> step.args[0]["up_1/block_0/conv_0"]["w"].shape
    (3, 3, 32, 16)
    >>> sum(leaf.size for leaf in jax.tree.leaves(unet(**DDPM["cifar10"]).args[0]))
    35746307

    Sources: Ho et al. 2020, "Denoising Diffusion Probabilistic Models" (section 4 and appendix B; without its dropout);
    Ronneberger et al. 2015 (U-Net); Vaswani et al. 2017 (embedding of times).

    Args:
        channels: channels of the outermost level.
        multipliers: channels of each level, as a multiple of `channels`.
        blocks: residual blocks in each level on the way down.
        image: height and width; divides by 2 as often as there are levels, less one.
        batch: images per step.
        attention_at: image heights at which blocks are followed by attention.
        heads: attention heads; divides `channels`.
        groups: groups of channels in a group norm; divides `channels`.
        colors: channels of an image.
        noise_levels: steps of the diffusion; the variance added in each goes linearly from 1e-4 to 0.02.
        clip: the global norm that gradients are clipped to; `None` does not clip.
        learning_rate: of the optimizer.
        optimizer: a name of `partir.zoo.training.OPTIMIZERS`.
        dtype: of images, parameters and activations.
        name: the name in reports.

    Raises:
        ValueError: for sizes that do not divide, or an unknown optimizer.
    """
    network = _Network(channels, tuple(multipliers), blocks, image, tuple(attention_at), heads, groups, colors)
    network.check()
    variances = np.linspace(1e-4, 0.02, noise_levels)
    kept = np.cumprod(1 - variances)

    def loss(batch: Mapping[str, jax.Array]) -> jax.Array:
        images, noise, times = batch["images"], batch["noise"], batch["times"]
        share = jnp.asarray(kept, images.dtype)[times][:, None, None, None]
        mixed = jnp.sqrt(share) * images + jnp.sqrt(1 - share) * noise
        return jnp.mean((_noise(network, mixed, times) - noise) ** 2)

    images = jax.ShapeDtypeStruct((batch, image, image, colors), dtype)
    return training_example(
        loss,
        optimizer_of(optimizer, learning_rate, clip),
        {"images": images, "noise": images, "times": jax.ShapeDtypeStruct((batch,), "int32")},
        name=name or "unet",
        integer_bounds={"batch/times": noise_levels},
    )


@dataclass(frozen=True)
class _Network:
    """The sizes that the modules below use; the fields are `unet`'s arguments."""

    channels: int
    multipliers: tuple[int, ...]
    blocks: int
    image: int
    attention_at: tuple[int, ...]
    heads: int
    groups: int
    colors: int

    def check(self) -> None:
        """Raise ValueError, naming all that is wrong at once."""
        wrong: list[str] = []
        halvings = len(self.multipliers) - 1
        if self.image % 2**halvings:
            wrong.append(f"image {self.image} does not divide by 2 at {halvings} levels")
        if self.channels % self.groups:
            wrong.append(f"channels {self.channels} do not divide by groups {self.groups}")
        if self.channels % self.heads:
            wrong.append(f"channels {self.channels} do not divide by heads {self.heads}")
        if wrong:
            raise ValueError("cannot build a unet\n" + "\n".join(f"  why     {reason}" for reason in wrong))

    def norm_of(self, x: jax.Array, name: str) -> jax.Array:
        """Normalise each image of [B, H, W, C] over groups of channels."""
        return hk.GroupNorm(self.groups, create_scale=True, create_offset=True, name=name)(x)


class _Block(hk.Module):
    """A residual block: maps [B, H, W, C] and embedded times [B, T] to [B, H, W, channels]."""

    def __init__(self, network: _Network, channels: int, name: str) -> None:
        super().__init__(name=name)
        self._network = network
        self._channels = channels

    def __call__(self, x: jax.Array, times: jax.Array) -> jax.Array:
        y = jax.nn.silu(self._network.norm_of(x, "norm_0"))
        y = hk.Conv2D(self._channels, 3, name="conv_0")(y)
        y = y + hk.Linear(self._channels, name="time")(times)[:, None, None, :]
        y = jax.nn.silu(self._network.norm_of(y, "norm_1"))
        y = hk.Conv2D(self._channels, 3, name="conv_1")(y)
        if x.shape[-1] != self._channels:
            x = hk.Linear(self._channels, name="shortcut")(x)
        return x + y


class _Attention(hk.Module):
    """Self-attention over positions with a residual, [B, H, W, C] to [B, H, W, C]."""

    def __init__(self, network: _Network, name: str) -> None:
        super().__init__(name=name)
        self._network = network

    def __call__(self, x: jax.Array) -> jax.Array:
        images, height, width, channels = x.shape
        heads = self._network.heads
        y = self._network.norm_of(x, "norm").reshape(images, height * width, channels)
        query, key, value = (
            hk.Linear(channels, name=name)(y).reshape(images, height * width, heads, channels // heads)
            for name in ("query", "key", "value")
        )
        scores = jnp.einsum("bqnc,bsnc->bnqs", query, key) / math.sqrt(channels // heads)
        mixed = jnp.einsum("bnqs,bsnc->bqnc", jax.nn.softmax(scores), value)
        return x + hk.Linear(channels, name="output")(mixed.reshape(images, height * width, channels)).reshape(x.shape)


class _Time(hk.Module):
    """Embeds times [B] as [B, 4 channels]: `channels` sines and cosines, then two linear layers with SiLUs."""

    def __init__(self, channels: int, name: str) -> None:
        super().__init__(name=name)
        self._channels = channels

    def __call__(self, times: jax.Array, dtype: Any) -> jax.Array:
        half = self._channels // 2
        frequencies = jnp.asarray(np.exp(-math.log(10000) * np.arange(half) / (half - 1)), dtype)
        angles = times[:, None].astype(dtype) * frequencies
        x = jnp.concatenate([jnp.sin(angles), jnp.cos(angles)], axis=-1)
        x = jax.nn.silu(hk.Linear(4 * self._channels, name="hidden")(x))
        return jax.nn.silu(hk.Linear(4 * self._channels, name="output")(x))


def _doubled(x: jax.Array) -> jax.Array:
    """Repeat each position in both directions: [B, H, W, C] to [B, 2 H, 2 W, C]."""
    return jnp.repeat(jnp.repeat(x, 2, axis=1), 2, axis=2)


def _noise(network: _Network, x: jax.Array, times: jax.Array) -> jax.Array:
    """The predicted noise [B, I, I, K] in noisy images of that shape."""
    time = _Time(network.channels, "time")(times, x.dtype)
    x = hk.Conv2D(network.channels, 3, name="input")(x)
    left = [x]

    def blocks(x: jax.Array, channels: int, i: int) -> jax.Array:
        x = _Block(network, channels, f"block_{i}")(x, time)
        return _Attention(network, f"attention_{i}")(x) if x.shape[1] in network.attention_at else x

    last = len(network.multipliers) - 1
    for depth, multiplier in enumerate(network.multipliers):
        with level(f"down_{depth}"):
            for i in range(network.blocks):
                x = blocks(x, network.channels * multiplier, i)
                left.append(x)
            if depth < last:
                x = hk.Conv2D(x.shape[-1], 3, 2, name="half")(x)
                left.append(x)
    with level("middle"):
        x = _Block(network, x.shape[-1], "block_0")(x, time)
        x = _Attention(network, "attention_0")(x)
        x = _Block(network, x.shape[-1], "block_1")(x, time)
    for depth, multiplier in reversed(list(enumerate(network.multipliers))):
        with level(f"up_{depth}"):
            for i in range(network.blocks + 1):
                x = blocks(jnp.concatenate([x, left.pop()], axis=-1), network.channels * multiplier, i)
            if depth:
                x = hk.Conv2D(x.shape[-1], 3, name="double")(_doubled(x))
    return hk.Conv2D(network.colors, 3, name="output")(jax.nn.silu(network.norm_of(x, "norm")))

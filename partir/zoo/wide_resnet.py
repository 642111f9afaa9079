"""Wide residual networks for image classification, with their training step."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import haiku as hk
import jax
import jax.numpy as jnp
import optax

from partir.zoo.example import Example
from partir.zoo.training import cross_entropy, level, optimizer_of

WRN: Mapping[str, Mapping[str, int]] = {
    "40-4": {"depth": 40, "width": 4},
    "16-8": {"depth": 16, "width": 8},
    "28-10": {"depth": 28, "width": 10},
}
"""Sizes for CIFAR of Zagoruyko and Komodakis 2016, table 4, for `wide_resnet(**WRN["28-10"])`: 8.9, 11.0 and 36.5 million
parameters."""

WRESNET: Mapping[str, Mapping[str, Any]] = {
    size: {"block": "bottleneck", "depth": depth, "channels": channels, "width": width, "image": 224, "classes": 1024}
    for size, depth, channels, width in [
        ("250M", 50, 160, 2),
        ("500M", 50, 224, 2),
        ("1B", 50, 320, 2),
        ("2B", 50, 448, 2),
        ("4B", 50, 640, 2),
        ("6.8B", 50, 320, 16),
        ("13B", 101, 320, 16),
    ]
}
"""Sizes of Alpa's Wide-ResNet for ImageNet, for `wide_resnet(**WRESNET["250M"])` (Zheng et al. 2022, and the benchmark suite
of its repository)."""

STAGES: Mapping[int, tuple[int, ...]] = {
    26: (2, 2, 2, 2),
    50: (3, 4, 6, 3),
    101: (3, 4, 23, 3),
    152: (3, 8, 36, 3),
}
"""Blocks in each stage of a network of bottlenecks, by depth (He et al. 2015, table 1; 26 is the smallest of this form)."""

MOMENTUM = 0.9
"""The weight of the old value in a moving average."""


def wide_resnet(
    depth: int = 28,
    width: int = 10,
    channels: int = 16,
    classes: int = 10,
    image: int = 32,
    batch: int = 128,
    *,
    block: Literal["basic", "bottleneck"] = "basic",
    norm: Literal["batch", "group"] = "batch",
    groups: int = 8,
    clip: float | None = None,
    learning_rate: float = 0.1,
    optimizer: str = "momentum",
    dtype: str = "float32",
    name: str | None = None,
) -> Example:
    """A training step of a wide residual network: `train_step(params, opt_state, batch)`; the default is WRN-28-10.

    With B = `batch`, I = `image`: `batch = {"images": dtype[B, I, I, 3], "labels": int32[B]}`, labels in [0, `classes`).
    The step returns `(params, opt_state, loss)`; the loss is the mean cross entropy in nats.

    `block="basic"` is the network of Zagoruyko and Komodakis: a 3x3 convolution to `channels`, three stages of
    (`depth` - 4) / 6 blocks with `channels` x `width` x 1, 2, 4 channels (a norm and a ReLU before each of two 3x3
    convolutions), a norm. `block="bottleneck"` is the ResNet for ImageNet as Alpa widens it: a 7x7 convolution and a max
    pool, four stages with C = `channels` x 1, 2, 4, 8, of blocks of a 1x1 convolution to C, a 3x3 to C x `width` and a 1x1
    to 4 C (a norm after each); `depth` is one of `STAGES`. Both halve the image at the first block of all stages but the
    first, and end in a mean over positions and a linear layer. Blocks stand in scopes `stage_<i>/block_<j>`.

    `norm="batch"`, as published, normalises over the full batch, over however many devices that is sharded: under data
    parallelism a norm needs three all_reduces of [C] besides those of its parameters' gradients, for the mean, the mean square
    and the gradient of the mean. `opt_state` is then `(optimizer's state, averages)`, with the moving mean and mean square of
    each norm, which inference would use. `norm="group"` normalises each image by itself, over `groups` groups of
    channels, and `opt_state` is the optimizer's state alone.

    Parameters: `conv/w`, in blocks `norm_k/{scale,offset}`, `conv_k/w` [height, width, in, out] and, where the shape
    changes, `shortcut/w` (with `shortcut_norm` in bottlenecks), `norm/{scale,offset}`, `logits/{w,b}`.

    >>> step = wide_resnet(depth=10, width=1, batch=8)
    >>> step.args[0]["stage_1/block_0/conv_0"]["w"].shape
    (3, 3, 16, 32)
    >>> sum(leaf.size for leaf in jax.tree.leaves(wide_resnet(depth=28, width=10).args[0]))
    36479194

    Sources: Zagoruyko and Komodakis 2016, "Wide Residual Networks" (36.5 million parameters for WRN-28-10); He et al. 2015;
    Zheng et al. 2022, "Alpa" (the widened bottlenecks); Ioffe and Szegedy 2015 (batch norm); Wu and He 2018 (group norm).

    Args:
        depth: number of convolutions, as in the names of published networks.
        width: multiple of the plain network's channels.
        channels: channels of the first convolution.
        classes: number of labels.
        image: height and width of images.
        batch: images per step.
        block: "basic" or "bottleneck".
        norm: "batch" or "group".
        groups: groups of channels in a group norm; divides the channels.
        clip: the global norm that gradients are clipped to; `None` does not clip.
        learning_rate: of the optimizer.
        optimizer: a name of `partir.zoo.training.OPTIMIZERS`.
        dtype: of images, parameters and activations; the loss is computed in at least 32 bits.
        name: the name in reports.

    Raises:
        ValueError: for a depth that no network of this form has, groups that do not divide, or an unknown optimizer.
    """
    network = _Network(depth, width, channels, classes, block, norm, groups)
    network.check()

    def loss(batch: Mapping[str, jax.Array]) -> jax.Array:
        return cross_entropy(_logits(network, batch["images"]), batch["labels"])

    return _example(
        loss,
        optimizer_of(optimizer, learning_rate, clip),
        {
            "images": jax.ShapeDtypeStruct((batch, image, image, 3), dtype),
            "labels": jax.ShapeDtypeStruct((batch,), "int32"),
        },
        name=name or "wide_resnet",
        classes=classes,
        averages=norm == "batch",
    )


def _example(
    loss: Any,
    optimizer: optax.GradientTransformation,
    batch: Mapping[str, jax.ShapeDtypeStruct],
    *,
    name: str,
    classes: int,
    averages: bool,
) -> Example:
    """As `training_example`, for a model with moving averages, which are in `opt_state` beside the optimizer's state."""
    model = hk.without_apply_rng(hk.transform_with_state(loss))

    def train_step(params: Any, opt_state: Any, batch: Any) -> tuple[Any, Any, jax.Array]:
        moments, old = opt_state if averages else (opt_state, {})
        (value, new), gradients = jax.value_and_grad(model.apply, has_aux=True)(params, old, batch)
        with jax.named_scope("optimizer"):
            updates, moments = optimizer.update(gradients, moments, params)
            params = optax.apply_updates(params, updates)
        return params, (moments, new) if averages else moments, value

    def init(key: jax.Array) -> tuple[Any, Any]:
        params, start = model.init(key, jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), batch))
        moments = optimizer.init(params)
        return params, (moments, start) if averages else moments

    params, opt_state = jax.eval_shape(init, jax.random.key(0))
    bounds = {"batch/labels": classes}
    return Example(train_step, (params, opt_state, dict(batch)), (0, 1), name=name, init=init, integer_bounds=bounds)


@dataclass(frozen=True)
class _Network:
    """The sizes that the modules below use; the fields are `wide_resnet`'s arguments."""

    depth: int
    width: int
    channels: int
    classes: int
    block: str
    norm: str
    groups: int

    def check(self) -> None:
        """Raise ValueError, naming all that is wrong at once."""
        wrong: list[str] = []
        if self.block not in ("basic", "bottleneck"):
            wrong.append(f'block "{self.block}" is not one of basic, bottleneck')
        if self.norm not in ("batch", "group"):
            wrong.append(f'norm "{self.norm}" is not one of batch, group')
        if self.block == "basic" and (self.depth < 10 or (self.depth - 4) % 6):
            wrong.append(f"depth {self.depth} of a network of basic blocks is not 6 n + 4")
        if self.block == "bottleneck" and self.depth not in STAGES:
            wrong.append(f"depth {self.depth} of a network of bottlenecks is not one of {', '.join(map(str, STAGES))}")
        if self.norm == "group" and self.channels % self.groups:
            wrong.append(f"channels {self.channels} do not divide by groups {self.groups}")
        if wrong:
            raise ValueError("cannot build a wide_resnet\n" + "\n".join(f"  why     {reason}" for reason in wrong))

    @property
    def stages(self) -> tuple[int, ...]:
        """The number of blocks in each stage."""
        return ((self.depth - 4) // 6,) * 3 if self.block == "basic" else STAGES[self.depth]

    def norm_of(self, x: jax.Array, name: str) -> jax.Array:
        """Normalise [B, H, W, C]: each channel over all images, or each image over groups of its channels."""
        if self.norm == "batch":
            return _BatchNorm(name=name)(x)
        return hk.GroupNorm(self.groups, create_scale=True, create_offset=True, name=name)(x)


class _BatchNorm(hk.Module):
    """Normalise each channel of [B, H, W, C] by its mean and variance over all other dims, and keep moving averages of both."""

    def __call__(self, x: jax.Array) -> jax.Array:
        channels = x.shape[-1:]
        mean, square = jnp.mean(x, axis=(0, 1, 2)), jnp.mean(x**2, axis=(0, 1, 2))
        for name, now, start in (("mean", mean, jnp.zeros), ("mean_square", square, jnp.ones)):
            old = hk.get_state(name, channels, x.dtype, init=start)
            hk.set_state(name, MOMENTUM * old + (1 - MOMENTUM) * jax.lax.stop_gradient(now))
        scale = hk.get_parameter("scale", channels, x.dtype, init=hk.initializers.Constant(1))
        offset = hk.get_parameter("offset", channels, x.dtype, init=hk.initializers.Constant(0))
        return (x - mean) * (jax.lax.rsqrt(square - mean**2 + 1e-5) * scale) + offset


def _convolution(x: jax.Array, channels: int, window: int, stride: int, name: str) -> jax.Array:
    """A convolution with a square window and no bias: [B, H, W, C] to [B, H / stride, W / stride, channels]."""
    init = hk.initializers.VarianceScaling(2.0, "fan_out", "truncated_normal")
    return hk.Conv2D(channels, window, stride, with_bias=False, w_init=init, name=name)(x)


class _Basic(hk.Module):
    """A norm and a ReLU before each of two 3x3 convolutions."""

    def __init__(self, network: _Network, name: str) -> None:
        super().__init__(name=name)
        self._network = network

    def __call__(self, x: jax.Array, channels: int, stride: int) -> jax.Array:
        y = jax.nn.relu(self._network.norm_of(x, "norm_0"))
        changes = x.shape[-1] != channels or stride > 1
        shortcut = _convolution(y, channels, 1, stride, "shortcut") if changes else x
        y = _convolution(y, channels, 3, stride, "conv_0")
        y = jax.nn.relu(self._network.norm_of(y, "norm_1"))
        return shortcut + _convolution(y, channels, 3, 1, "conv_1")


class _Bottleneck(hk.Module):
    """Convolutions 1x1, 3x3 (wide) and 1x1, with a norm after each."""

    def __init__(self, network: _Network, name: str) -> None:
        super().__init__(name=name)
        self._network = network

    def __call__(self, x: jax.Array, channels: int, stride: int) -> jax.Array:
        network = self._network
        y = jax.nn.relu(network.norm_of(_convolution(x, channels, 1, 1, "conv_0"), "norm_0"))
        y = _convolution(y, channels * network.width, 3, stride, "conv_1")
        y = jax.nn.relu(network.norm_of(y, "norm_1"))
        y = network.norm_of(_convolution(y, 4 * channels, 1, 1, "conv_2"), "norm_2")
        if x.shape != y.shape:
            x = network.norm_of(_convolution(x, 4 * channels, 1, stride, "shortcut"), "shortcut_norm")
        return jax.nn.relu(x + y)


def _logits(network: _Network, images: jax.Array) -> jax.Array:
    """Maps images [B, I, I, 3] to logits [B, classes]."""
    basic = network.block == "basic"
    if basic:
        x = _convolution(images, network.channels, 3, 1, "conv")
    else:
        x = jax.nn.relu(network.norm_of(_convolution(images, network.channels, 7, 2, "conv"), "norm"))
        x = hk.max_pool(x, (3, 3, 1), (2, 2, 1), "SAME")
    for i, blocks in enumerate(network.stages):
        channels = network.channels * 2**i * (network.width if basic else 1)
        with level(f"stage_{i}"):
            for j in range(blocks):
                x = (_Basic if basic else _Bottleneck)(network, f"block_{j}")(x, channels, 2 if i and not j else 1)
    if basic:
        x = jax.nn.relu(network.norm_of(x, "norm"))
    return hk.Linear(network.classes, name="logits")(jnp.mean(x, axis=(1, 2)))

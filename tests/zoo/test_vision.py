"""Convolutional models have the parameters their papers say, and compute what they are named for."""

import functools
import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from partir.zoo import DDPM, WRESNET, WRN, Example, unet, wide_resnet

pytestmark = pytest.mark.jax

SMALL_NET = {"depth": 10, "width": 2, "channels": 8, "classes": 8, "image": 8, "batch": 4}
SMALL_BOTTLENECKS = {"block": "bottleneck", "depth": 26, "channels": 4, "width": 2, "classes": 8, "image": 32, "batch": 4}
SMALL_UNET = {"channels": 8, "multipliers": (1, 2), "blocks": 1, "image": 8, "attention_at": (4,), "groups": 4, "batch": 4}

VARIANTS: dict[str, Example] = {
    "wide_resnet": wide_resnet(**SMALL_NET),
    "wide_resnet with group norms": wide_resnet(**SMALL_NET, norm="group", clip=1.0),
    "wide_resnet of bottlenecks": wide_resnet(**SMALL_BOTTLENECKS, optimizer="adamw"),
    "unet": unet(**SMALL_UNET, heads=2, clip=1.0, optimizer="momentum"),
}


@functools.cache
def loss_of(name: str) -> Callable[..., float]:
    """The loss alone: XLA leaves out what it does not need."""
    jitted = jax.jit(lambda *args: VARIANTS[name].fun(*args)[2])
    return lambda *args: float(jitted(*args))


def parameter_count(example: Example) -> int:
    return sum(leaf.size for leaf in jax.tree.leaves(example.args[0]))


@pytest.mark.parametrize(("name", "millions"), [("40-4", 8.9), ("16-8", 11.0), ("28-10", 36.5)])
def test_wide_resnets_have_the_published_number_of_parameters(name, millions):
    """Zagoruyko and Komodakis 2016, table 4."""
    assert parameter_count(wide_resnet(**WRN[name])) / 1e6 == pytest.approx(millions, abs=0.05)


@pytest.mark.parametrize(
    ("name", "millions"),
    [("250M", 250), ("1B", 1000), ("6.8B", 6800), ("13B", 13000)],
)
def test_alpas_wide_resnets_have_about_the_parameters_they_are_named_for(name, millions):
    assert parameter_count(wide_resnet(**WRESNET[name], batch=2)) / 1e6 == pytest.approx(millions, rel=0.03)


@pytest.mark.parametrize(("name", "millions"), [("cifar10", 35.7), ("256", 114)])
def test_unets_have_the_published_number_of_parameters(name, millions):
    """Ho et al. 2020, appendix B."""
    assert parameter_count(unet(**DDPM[name])) / 1e6 == pytest.approx(millions, rel=0.005)


@pytest.mark.parametrize("name", VARIANTS)
def test_one_step_in_double_precision_is_finite_and_stays_so(name, x64):
    example = VARIANTS[name]
    args = example.concrete(dtype="float64")

    params, opt_state, loss = jax.jit(example.fun)(*args)

    assert math.isfinite(loss)
    assert loss.dtype == np.float64
    for old, new in zip(jax.tree.leaves(args[:2]), jax.tree.leaves((params, opt_state)), strict=True):
        assert (old.shape, old.dtype) == (new.shape, new.dtype)
    changed = [bool(np.any(old != new)) for old, new in zip(jax.tree.leaves(args[0]), jax.tree.leaves(params), strict=True)]
    assert any(changed)


def test_batch_norms_keep_moving_averages(x64):
    """After one step an average is 0.9 of what it was and 0.1 of the batch's; the first norm's input can be made by hand."""
    example = VARIANTS["wide_resnet"]
    params, (moments, averages), batch = example.concrete(dtype="float64")
    kernel = params["conv"]["w"]
    x = jax.lax.conv_general_dilated(batch["images"], kernel, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))

    _, (_, new), _ = jax.jit(example.fun)(params, (moments, averages), batch)

    first = new["stage_0/block_0/norm_0"]
    np.testing.assert_allclose(first["mean"], 0.1 * jnp.mean(x, (0, 1, 2)), rtol=1e-9, atol=1e-15)
    np.testing.assert_allclose(first["mean_square"], 0.9 + 0.1 * jnp.mean(x**2, (0, 1, 2)), rtol=1e-9)
    assert len(new) == sum("norm" in path for path in params)


@pytest.mark.parametrize(("name", "alone"), [("wide_resnet", False), ("wide_resnet with group norms", True)])
def test_images_meet_in_batch_norms_only(name, alone, x64):
    """With group norms the loss of a batch is the mean of its halves' losses."""
    params, opt_state, batch = VARIANTS[name].concrete(dtype="float64")
    halves = [{name: leaf[i : i + 2] for name, leaf in batch.items()} for i in (0, 2)]

    loss = loss_of(name)(params, opt_state, batch)
    losses = [loss_of(name)(params, opt_state, half) for half in halves]

    assert (loss == pytest.approx(np.mean(losses), rel=1e-9)) == alone


def test_unet_sees_less_of_the_image_the_later_the_time(x64):
    """At time 0 nearly all is image, at the last time nearly all is noise."""
    params, opt_state, batch = VARIANTS["unet"].concrete(dtype="float64")

    def change(time: int) -> float:
        at = batch | {"times": np.full_like(batch["times"], time)}
        other = at | {"images": 1.1 * at["images"]}
        return abs(loss_of("unet")(params, opt_state, other) - loss_of("unet")(params, opt_state, at))

    assert change(0) > 10 * change(999)


def test_unet_depends_on_the_time(x64):
    params, opt_state, batch = VARIANTS["unet"].concrete(dtype="float64")
    zero = batch | {"images": np.zeros_like(batch["images"]), "noise": np.zeros_like(batch["noise"])}

    def loss(time: int) -> float:
        return loss_of("unet")(params, opt_state, zero | {"times": np.full_like(batch["times"], time)})

    assert loss(3) != pytest.approx(loss(700), rel=1e-3)


@pytest.mark.parametrize(
    ("name", "scopes"),
    [
        ("wide_resnet", ["stage_0)/block_0/conv_0", "stage_2)/block_0/shortcut", "stage_1)/block_0/norm_1"]),
        ("unet", ["down_1)/block_0/conv_0", "middle)/attention_0/query", "up_0)/block_1/norm_0", "up_1)/double"]),
    ],
)
def test_blocks_stand_in_named_scopes(name: str, scopes: list[str]) -> None:
    example = VARIANTS[name]

    text = jax.jit(example.fun).lower(*example.args).as_text(debug_info=True)

    for scope in scopes:
        assert f"jvp({scope}" in text


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"depth": 27}, "depth 27 of a network of basic blocks is not 6 n"),
        ({"block": "bottleneck", "depth": 28}, "depth 28 of a network of bottlenecks is not one of 26, 50, 101, 152"),
        ({"norm": "group", "channels": 20}, "channels 20 do not divide by groups 8"),
        ({"norm": "layer"}, 'norm "layer" is not one of batch, group'),
        ({"block": "plain"}, 'block "plain" is not one of basic, bottleneck'),
        ({"optimizer": "adan"}, 'no optimizer "adan"'),
    ],
)
def test_wide_resnet_refuses(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        wide_resnet(**settings)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"image": 20}, "image 20 does not divide by 2 at 3 levels"),
        ({"channels": 48}, "channels 48 do not divide by groups 32"),
        ({"heads": 3}, "channels 128 do not divide by heads 3"),
    ],
)
def test_unet_refuses(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        unet(**settings)

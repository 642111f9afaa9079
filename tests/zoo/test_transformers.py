"""Llama, the vision transformer and the decoding loop: sizes as published, and numbers that another program agrees with."""

from typing import Any

import haiku as hk
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from partir.zoo import LLAMA, LLAMA3, VIT, Example, gpt_decode, llama, vit
from partir.zoo.gpt import _Decoder, _logits
from partir.zoo.llama import _rotate

pytestmark = pytest.mark.jax

SMALL = {"layers": 2, "d_model": 32, "heads": 4, "d_ff": 48, "vocab": 64, "seq": 8, "batch": 4}
SMALL_VIT = {"layers": 1, "d_model": 32, "heads": 4, "d_ff": 64, "patch": 4, "image": 8, "classes": 8, "batch": 4}
SMALL_GPT = {"layers": 2, "d_model": 32, "heads": 4, "vocab": 64}

VARIANTS: dict[str, Example] = {
    "llama": llama(**SMALL, kv_heads=2, clip=1.0),
    "llama all in bfloat16": llama(**SMALL, dtype="bfloat16", optimizer="sgd", remat=False),
    "vit in bfloat16": vit(**SMALL_VIT, dtype="bfloat16", clip=1.0, optimizer="sgd"),
}


def _parameters(example: Example) -> int:
    return sum(leaf.size for leaf in jax.tree.leaves(example.args[0]))


def _shapes(tree: Any) -> Any:
    return jax.tree.map(lambda leaf: (leaf.shape, leaf.dtype), tree)


@pytest.mark.parametrize("name", VARIANTS)
def test_one_step_gives_a_finite_loss_and_changes_parameters(name: str) -> None:
    example = VARIANTS[name]
    args = example.concrete()
    assert _shapes(args) == _shapes(example.args)

    params, opt_state, loss = jax.jit(example.fun)(*args)

    assert np.isfinite(loss)
    assert _shapes((params, opt_state)) == _shapes(args[:2])
    changed = jax.tree.map(lambda old, new: bool((old != new).any()), args[0], params)
    assert any(jax.tree.leaves(changed))


@pytest.mark.parametrize(
    ("example", "parameters"),
    [
        (llama(**LLAMA["7b"]), 6_738_415_616),
        (llama(**LLAMA["13b"]), 13_015_864_320),
        (llama(**LLAMA["70b"]), 68_976_648_192),
        (llama(**LLAMA3["8b"]), 8_030_261_248),
        (llama(**LLAMA3["70b"]), 70_553_706_496),
        (vit(**VIT["b16"]), 86_567_656),
        (vit(**VIT["l16"]), 304_326_632),
        (vit(**VIT["h14"]), 632_045_800),
    ],
    ids=["7b", "13b", "70b", "3-8b", "3-70b", "b16", "l16", "h14"],
)
def test_published_sizes_have_the_parameters_of_the_released_checkpoints(example: Example, parameters: int) -> None:
    assert _parameters(example) == parameters


def test_llama_has_nine_stacks_and_three_tensors_whatever_its_depth() -> None:
    assert len(jax.tree.leaves(llama(layers=2).args[0])) == len(jax.tree.leaves(llama(layers=64).args[0])) == 9 + 3


def test_llama_is_one_loop_over_layers_in_bfloat16_with_float32_master_weights() -> None:
    example = llama(**SMALL)

    text = jax.jit(example.fun).lower(*example.args).as_text()

    assert {leaf.dtype.name for leaf in jax.tree.leaves(example.args[0])} == {"float32"}
    assert text.count("stablehlo.while") == 2  # forward and backward
    products = [line for line in text.splitlines() if "stablehlo.dot_general" in line]
    assert products
    assert all("bf16" in line.split("->")[1] for line in products)


def test_checkpointing_changes_no_number(x64: None) -> None:
    settings = SMALL | {"kv_heads": 1, "optimizer": "sgd", "compute_dtype": None}
    kept, recomputed = (llama(**settings, remat=remat) for remat in (False, True))
    args = kept.concrete(dtype="float64")

    expected, actual = (jax.jit(example.fun)(*args) for example in (kept, recomputed))

    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-6, atol=1e-9), actual, expected)


def test_llama_forward_sees_no_later_token(x64: None) -> None:
    example = llama(**SMALL, compute_dtype=None, training=False)
    params, tokens = example.concrete(dtype="float64")
    later = tokens.copy()
    later[:, 5:] = (later[:, 5:] + 1) % SMALL["vocab"]

    logits, others = (jax.jit(example.fun)(params, given) for given in (tokens, later))

    assert logits.shape == (4, 8, 64)
    np.testing.assert_array_equal(logits[:, :5], others[:, :5])
    assert (logits[:, 5:] != others[:, 5:]).any()


def test_rotary_positions_are_relative(x64: None) -> None:
    query, key = np.random.default_rng(0).normal(size=(2, 8))
    frequencies = 100.0 ** -(jnp.arange(4) / 4)

    def score(i: int, j: int) -> jax.Array:
        return _rotate(jnp.asarray(query), i * frequencies) @ _rotate(jnp.asarray(key), j * frequencies)

    np.testing.assert_allclose(score(7, 3), score(11, 7), rtol=1e-12)
    assert abs(score(7, 3) - score(7, 4)) > 1e-3


def test_patches_are_squares_of_the_image() -> None:
    example = vit(**(SMALL_VIT | {"layers": 0}), pooling="mean")
    params, opt_state, batch = example.concrete()
    swapped = batch["images"].copy()
    swapped[:, :4], swapped[:, 4:] = batch["images"][:, 4:], batch["images"][:, :4]  # upper and lower patches, as they are
    params["positions"] = jax.tree.map(np.zeros_like, params["positions"])

    losses = [jax.jit(example.fun)(params, opt_state, batch | {"images": images})[2] for images in (batch["images"], swapped)]

    assert abs(losses[0] - losses[1]) < 1e-6  # the mean over patches does not see their order


DECODERS: dict[str, dict[str, Any]] = {
    "plain": {},
    "multi-query, tied": {"kv_heads": 1, "bias": False, "tied": True, "final_norm": False},
    "like llama": {"kv_heads": 2, "d_ff": 48, "norm": "rms", "mlp": "swiglu", "bias": False, "positions": "none"},
}


@pytest.mark.parametrize("variant", DECODERS)
def test_decoding_picks_the_tokens_that_gpt_finds_most_likely(variant: str, x64: None) -> None:
    settings = DECODERS[variant]
    example = gpt_decode(**SMALL_GPT, seq=12, batch=4, steps=6, **settings)
    params, cache, tokens = example.concrete(dtype="float64")
    defaults = {
        "kv_heads": 4, "d_ff": 128, "tied": False, "bias": True, "norm": "layer", "mlp": "gelu", "final_norm": True,
        "positions": "learned", "flatten": False, "dtype": "float64",
    }  # fmt: skip
    decoder = _Decoder(**SMALL_GPT, **(defaults | settings))
    logits = hk.without_apply_rng(hk.transform(lambda tokens: _logits(decoder, tokens)))

    generated, filled = jax.jit(example.fun)(params, cache, tokens)

    sequence = np.concatenate([tokens[:, None], generated], axis=1)
    cut = {"positions": {"embeddings": params["positions"]["embeddings"][:7]}} if "positions" in params else {}
    expected = jnp.argmax(jax.jit(logits.apply)(params | cut, sequence), axis=-1)
    np.testing.assert_array_equal(generated, expected[:, :-1])
    written = np.asarray(filled["layer_0"]["key"] != 0).any(axis=(0, 2, 3))
    assert written.tolist() == [True] * 6 + [False] * 6


def test_decoding_goes_on_where_it_stopped(x64: None) -> None:
    whole = gpt_decode(**SMALL_GPT, seq=12, batch=4, steps=6)
    first, second = (gpt_decode(**SMALL_GPT, seq=12, batch=4, steps=3, start=start) for start in (0, 3))
    params, cache, tokens = whole.concrete(dtype="float64")

    expected, _ = jax.jit(whole.fun)(params, cache, tokens)
    begun, cache = jax.jit(first.fun)(params, cache, tokens)
    ended, _ = jax.jit(second.fun)(params, cache, begun[:, -1])

    np.testing.assert_array_equal(np.concatenate([begun, ended], axis=1), expected)


def test_decoding_lowers_with_its_default_sizes() -> None:
    example = gpt_decode()

    lowered = jax.jit(example.fun, donate_argnums=example.donate_argnums).trace(*example.args).lower()

    tokens, cache = lowered.out_info
    assert tokens.shape == (8, 16)
    assert _shapes(cache) == _shapes(example.args[1])


@pytest.mark.parametrize(
    ("model", "settings", "message"),
    [
        (llama, {"d_model": 30}, "d_model 30 does not divide by heads 4"),
        (llama, {"d_model": 20}, "heads of width 5 have no pairs to rotate"),
        (llama, {"kv_heads": 3}, "heads 4 does not divide by kv_heads 3"),
        (llama, {"optimizer": "adan"}, 'no optimizer "adan"'),
        (vit, {"image": 10}, "image 10 does not divide by patch 4"),
        (vit, {"d_model": 30}, "d_model 30 does not divide by heads 4"),
        (vit, {"pooling": "max"}, 'pooling "max" is not one of token, mean'),
        (gpt_decode, {"seq": 8, "steps": 6, "start": 3}, "6 steps from position 3\n.*room for 8 positions\n.*seq=9"),
        (gpt_decode, {"kv_heads": 3}, "heads 4 does not divide by kv_heads 3"),
    ],
)
def test_models_refuse(model: Any, settings: dict[str, Any], message: str) -> None:
    sizes = {llama: SMALL, vit: SMALL_VIT, gpt_decode: SMALL_GPT}[model]

    with pytest.raises(ValueError, match=message):
        model(**(sizes | settings))

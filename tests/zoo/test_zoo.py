"""Every model is an ordinary step: it lowers, has the parameters it says, and runs on one device."""

from typing import Any

import jax
import numpy as np
import pytest

from partir.zoo import GPT2, MODELS, Example, gpt, mlp, partir_t32

pytestmark = pytest.mark.jax

SMALL = {"layers": 1, "d_model": 32, "heads": 4, "vocab": 64, "seq": 8, "batch": 4}

VARIANTS: dict[str, Example] = {
    "gpt": gpt(**SMALL),
    "gpt with grouped queries": gpt(**SMALL, kv_heads=2),
    "gpt with merged rows": gpt(**SMALL, flatten=True),
    "gpt with tied logits": gpt(**SMALL, tied=True),
    "gpt with clipping": gpt(**SMALL, clip=1.0, optimizer="adamw"),
    "gpt like llama": gpt(**SMALL, kv_heads=1, bias=False, norm="rms", mlp="swiglu", d_ff=48, positions="none"),
    "gpt in bfloat16": gpt(**SMALL, dtype="bfloat16"),
    "partir_t32": partir_t32(**(SMALL | {"layers": 2})),
    "mlp": mlp(widths=(16, 32, 8), batch=4),
    "mlp with adam": mlp(widths=(16, 32, 32, 8), batch=4, optimizer="adam", bias=False, clip=0.5),
}


def _tensors(example: Example) -> int:
    """The number of parameter tensors."""
    return len(jax.tree.leaves(example.args[0]))


def _shapes(tree: Any) -> Any:
    return jax.tree.map(lambda leaf: (leaf.shape, leaf.dtype), tree)


@pytest.mark.parametrize("name", sorted(set(MODELS) - {"gpt_decode"}))  # which trains nothing
def test_model_lowers_with_its_default_sizes(name: str) -> None:
    example = MODELS[name]()

    lowered = jax.jit(example.fun, donate_argnums=example.donate_argnums).trace(*example.args).lower()

    assert example.name == name
    params, opt_state, loss = lowered.out_info
    assert _shapes(params) == _shapes(example.args[0])
    assert _shapes(opt_state) == _shapes(example.args[1])
    assert loss.shape == ()


@pytest.mark.parametrize("name", VARIANTS)
def test_one_step_gives_a_finite_loss_and_changes_parameters(name: str) -> None:
    example = VARIANTS[name]
    args = example.concrete()
    assert _shapes(args) == _shapes(example.args)

    params, _, loss = jax.jit(example.fun)(*args)

    assert np.isfinite(loss)
    changed = jax.tree.map(lambda old, new: bool((old != new).any()), args[0], params)
    assert any(jax.tree.leaves(changed))


def test_gpt_has_sixteen_tensors_a_layer_and_five_besides() -> None:
    assert _tensors(gpt(layers=1)) == 16 + 5
    assert _tensors(gpt(layers=24)) == 24 * 16 + 5


def test_partir_t32_has_the_published_number_of_tensors() -> None:
    assert _tensors(partir_t32()) == 289
    assert _tensors(partir_t32(layers=1)) == 9 + 1


def test_gpt2_small_has_the_published_number_of_parameters() -> None:
    example = gpt(**GPT2["small"], tied=True)

    assert sum(leaf.size for leaf in jax.tree.leaves(example.args[0])) == 124_439_808  # as released, 124M


def test_grouped_queries_repeat_no_key() -> None:
    example = gpt(**SMALL, kv_heads=2)

    assert example.args[0]["layer_0/attention/key"]["w"].shape == (32, 16)
    text = jax.jit(example.fun).lower(*example.args).as_text()
    assert "tensor<4x8x2x2x8xf32>" in text  # query: batch, position, key-value head, group, within
    assert "tensor<4x8x2x8xf32>" in text  # key


def test_blocks_stand_in_named_scopes_within_their_layer() -> None:
    example = VARIANTS["gpt"]

    text = jax.jit(example.fun).lower(*example.args).as_text(debug_info=True)

    assert "jvp(layer_0)/attention-block/attention/query/dot_general" in text
    assert "transpose(jvp(layer_0))/mlp-block/mlp/down/dot_general" in text


def test_concrete_arguments_depend_on_the_seed_only() -> None:
    example = VARIANTS["gpt"]

    first, again, other = example.concrete(seed=1), example.concrete(seed=1), example.concrete(seed=2)

    jax.tree.map(np.testing.assert_array_equal, first, again)
    assert (first[0]["logits"]["w"] != other[0]["logits"]["w"]).any()
    assert (first[2]["tokens"] != other[2]["tokens"]).any()
    assert first[2]["tokens"].max() < 64


def test_concrete_arguments_in_double_precision_stay_so(x64: None) -> None:
    example = VARIANTS["gpt with merged rows"]

    args = example.concrete(dtype="float64")
    results = jax.jit(example.fun)(*args)

    assert _shapes(results[:2]) == _shapes(args[:2])
    assert args[0]["embed"]["embeddings"].dtype == results[2].dtype == np.float64


def test_double_precision_needs_64_bit_mode() -> None:
    with pytest.raises(ValueError, match=r"float64 arguments for gpt\n.*32-bit mode"):
        VARIANTS["gpt"].concrete(dtype="float64")


def test_integers_without_a_bound_are_all_named() -> None:
    def pick(table: Any, ids: Any) -> Any:
        return table[ids["a"]] + table[ids["b"]]

    ids = jax.ShapeDtypeStruct((4,), "int32")
    example = Example(pick, (jax.ShapeDtypeStruct((8,), "float32"), {"a": ids, "b": ids}))

    with pytest.raises(ValueError, match="cannot draw integers for ids/a, ids/b of pick"):
        example.concrete()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"d_model": 30}, "d_model 30 does not divide by heads 4"),
        ({"kv_heads": 3}, "heads 4 does not divide by kv_heads 3"),
        ({"norm": "batch"}, 'norm "batch" is not one of layer, rms'),
        ({"optimizer": "adan"}, 'no optimizer "adan"\n.*adam'),
    ],
)
def test_gpt_refuses(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        gpt(**(SMALL | settings))


def test_mlp_refuses_a_single_width() -> None:
    with pytest.raises(ValueError, match=r"widths \(784,\)"):
        mlp(widths=(784,))

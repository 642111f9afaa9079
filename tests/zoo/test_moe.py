"""The mixture of experts: gates and capacity as in the paper's pseudo-code, sizes as published, scopes, and one step."""

from typing import Any

import jax
import numpy as np
import pytest

from partir.zoo import GSHARD, SWITCH, Example, moe

pytestmark = pytest.mark.jax

SMALL = {"layers": 2, "d_model": 16, "heads": 2, "experts": 4, "vocab": 32, "seq": 8, "batch": 4}

VARIANTS: dict[str, Example] = {
    "two choices": moe(**SMALL),
    "one choice": moe(**SMALL, choices=1, optimizer="adamw", clip=1.0),
    "three choices": moe(**SMALL, choices=3, capacity_factor=0.5),
    "fewer groups than sequences": moe(**SMALL, groups=2),
    "more groups than sequences": moe(**SMALL, groups=8),
    "experts in each layer": moe(**SMALL, every=1, head_dim=4, d_ff=24),
    "bfloat16": moe(**SMALL, dtype="bfloat16"),
}

DOUBLED = {np.dtype("float32"): np.dtype("float64")}


def parameters_of(example: Example) -> int:
    return sum(leaf.size for leaf in jax.tree.leaves(example.args[0]))


def shapes_of(tree: Any) -> Any:
    return jax.tree.map(lambda leaf: (leaf.shape, leaf.dtype), tree)


@pytest.mark.parametrize("name", VARIANTS)
def test_a_step_hands_on_what_it_takes(name):
    example = VARIANTS[name]

    params, opt_state, loss = jax.eval_shape(example.fun, *example.args)

    assert shapes_of((params, opt_state)) == shapes_of(example.args[:2])
    assert (loss.shape, loss.dtype) == ((), np.float32)


def test_double_precision_stays_double(x64):
    example = VARIANTS["two choices"]
    doubled = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, DOUBLED.get(leaf.dtype, leaf.dtype)), example.args)

    params, opt_state, loss = jax.eval_shape(example.fun, *doubled)

    assert shapes_of((params, opt_state)) == shapes_of(doubled[:2])
    assert loss.dtype == np.float64


@pytest.mark.parametrize("choices", [1, 2])
def test_one_step_gives_a_finite_loss_and_changes_gate_and_every_expert(choices):
    example = moe(**SMALL | {"layers": 1}, every=1, choices=choices, optimizer="sgd")
    args = example.concrete()

    params, _, loss = jax.jit(example.fun)(*args)

    assert np.isfinite(loss)
    before, after = args[0]["layer_0/moe/experts"], params["layer_0/moe/experts"]
    for name in ("up", "down"):
        assert (np.asarray(before[name]) != np.asarray(after[name])).any(axis=(1, 2)).all()
    assert (args[0]["layer_0/moe/gate"]["w"] != params["layer_0/moe/gate"]["w"]).any()


def test_every_second_layer_has_experts():
    params = moe(**SMALL | {"layers": 4}).args[0]

    assert [i for i in range(4) if f"layer_{i}/moe/experts" in params] == [1, 3]
    assert [i for i in range(4) if f"layer_{i}/mlp/up" in params] == [0, 2]
    assert len(jax.tree.leaves(params)) == 2 * 10 + 2 * 11 + 5
    assert params["layer_1/moe/experts"]["up"].shape == (4, 16, 64)


def test_blocks_stand_in_named_scopes():
    text = jax.jit(VARIANTS["two choices"].fun).lower(*VARIANTS["two choices"].args).as_text(debug_info=True)

    for scope in (
        "jvp(layer_0)/attention-block/attention/query/dot_general",
        "jvp(layer_0)/mlp-block/mlp/up/dot_general",
        "jvp(layer_1)/moe-block/moe/gating/gate/dot_general",
        "transpose(jvp(layer_1))/moe-block/moe/experts/",
    ):
        assert scope in text


# ---- gates


def moe_of_plain_loops(params: Any, tokens: Any, *, choices: int, capacity: int) -> tuple[Any, float]:
    """One group of tokens [T, D] by the paper's algorithm 1, a token at a time; and its load-balancing loss."""
    gate, up, down = params
    logits = tokens @ gate
    gates = np.exp(logits - logits.max(-1, keepdims=True))
    gates /= gates.sum(-1, keepdims=True)
    best = np.argsort(-gates, axis=-1, kind="stable")[:, :choices]
    taken = np.zeros(gates.shape[1], int)
    result = np.zeros_like(tokens)
    for choice in range(choices):
        for s, token in enumerate(tokens):
            expert = best[s, choice]
            weight = gates[s, expert] / (gates[s, best[s]].sum() if choices > 1 else 1)
            if taken[expert] < capacity:
                result[s] += weight * (np.maximum(token @ up[expert], 0) @ down[expert])
            taken[expert] += 1
    share = np.bincount(best[:, 0], minlength=gates.shape[1]) / len(tokens)
    return result, gates.shape[1] * float(np.sum(share * gates.mean(0)))


@pytest.mark.parametrize(("choices", "capacity_factor"), [(2, 1.0), (2, 0.5), (1, 1.25), (3, 1.0)])
def test_tokens_go_where_plain_loops_send_them(choices, capacity_factor, x64, rng):
    """A model that is one layer of experts and nothing else, in effect: what it adds to the residual, and its imbalance."""
    import haiku as hk

    from partir.zoo.moe import _Mixture, _MixtureOfExperts

    groups, size, width, hidden, experts = 3, 8, 6, 10, 4
    capacity = int(np.ceil(capacity_factor * choices * size / experts))
    model = _Mixture(1, width, 1, width, hidden, experts, choices, capacity, groups, 1, 8, "float64")
    layer = hk.without_apply_rng(hk.transform(lambda x: _MixtureOfExperts(model, "moe")(x)))
    x = rng.standard_normal((groups, size, width))
    weights = [rng.standard_normal(shape) for shape in ((width, experts), (experts, width, hidden), (experts, hidden, width))]
    params = {"moe/gate": {"w": weights[0]}, "moe/experts": {"up": weights[1], "down": weights[2]}}

    made, imbalance = layer.apply(params, x)

    expected = [moe_of_plain_loops(weights, tokens, choices=choices, capacity=capacity) for tokens in x]
    np.testing.assert_allclose(made, [result for result, _ in expected], rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(imbalance, np.mean([loss for _, loss in expected]), rtol=1e-12)
    dropped = np.all(np.asarray(made) == 0, axis=-1).sum()
    assert (dropped > 0) == (capacity_factor * choices < 2), "some tokens find no room at all, where there is little"


# ---- published sizes


@pytest.mark.parametrize("size", ["12.5B", "600B"])
def test_gshard_has_the_published_number_of_parameters(size):
    example = moe(**GSHARD[size], vocab=64_000, seq=128)

    assert parameters_of(example) == pytest.approx(float(size[:-1]) * 1e9, rel=0.08)


@pytest.mark.parametrize(("size", "billions"), [("base", 7.4), ("c", 1571)])
def test_switch_has_the_published_number_of_parameters(size, billions):
    example = moe(**SWITCH[size], vocab=32_128, seq=512)

    assert parameters_of(example) == pytest.approx(billions * 1e9, rel=0.02)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"d_model": 15}, "d_model 15 does not divide by heads 2"),
        ({"groups": 5}, "batch x seq 32 does not divide by groups 5"),
        ({"groups": 0}, "batch x seq 32 does not divide by groups 0"),
        ({"choices": 5}, "choices 5 is not between 1 and experts 4"),
        ({"capacity_factor": 0}, "capacity_factor 0 is not positive"),
        ({"every": 0}, "every 0 is not positive"),
        ({"optimizer": "adan"}, 'no optimizer "adan"\n.*adam'),
    ],
)
def test_moe_refuses(settings, message):
    with pytest.raises(ValueError, match=message):
        moe(**(SMALL | settings))


def test_moe_refuses_all_at_once():
    with pytest.raises(ValueError, match=r"d_model 15 .*\n.*groups 5\n.*choices 9"):
        moe(**(SMALL | {"d_model": 15, "groups": 5, "choices": 9}))

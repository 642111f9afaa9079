"""Sizes that do not divide: the class stays replicated over that axis and is named, everything else is as it would be."""

import re

import jax
import pytest
from equal import assert_close_to_largest, assert_same, mesh_of

import partir
from partir import DataParallel, EmbeddingParallel, Megatron, NoEffectError, SequenceParallel, ZeRO, zoo
from partir.zoo.gpt import GPT2

pytestmark = pytest.mark.jax

D, M, E = DataParallel("data"), Megatron("model"), EmbeddingParallel("model")
ZERO = ZeRO("data", stage=3)

_SMALL = {"layers": 1, "d_model": 32, "heads": 4, "seq": 8, "batch": 8}


def partitioned(vocab, schedule, mesh=None, **settings):
    example = zoo.gpt(**_SMALL | settings, vocab=vocab)
    step = partir.jit(example.fun, mesh=mesh or partir.Mesh(data=2, model=4), donate_argnums=example.donate_argnums)
    return step.trace(*example.args).partition(schedule)


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("rest", [[D], [M], [D, M], [D, M, ZERO], [M, SequenceParallel("model")]])
def test_a_vocabulary_that_does_not_divide_stays_whole_and_is_named(rest, tied):
    part = partitioned(57, [*rest, E], tied=tied)
    without = partitioned(57, rest, tied=tied)

    (line,) = (line for line in part.replicated if line not in without.replicated)
    assert line == (
        'params/embed/embeddings dim 0 (57) stays replicated over "model": '
        "57 does not divide by 4 (57 mod 4 = 1); 56 or 60 would"
    )
    assert line in str(part.report())
    assert part.in_specs == without.in_specs
    assert part.out_specs == without.out_specs
    assert part.collectives == without.collectives


def test_the_same_vocabulary_on_an_axis_that_divides_it_is_split():
    """57 = 3 x 19."""
    part = partitioned(57, [D, E], mesh=partir.Mesh(data=2, model=3))

    assert part.in_specs[0]["embed"]["embeddings"] == jax.P("model")
    assert part.replicated == []


def test_a_schedule_that_comes_to_nothing_is_an_error_with_the_same_numbers():
    with pytest.raises(NoEffectError, match=re.escape("(57) stays replicated over")) as raised:
        partitioned(57, [E])

    assert "EmbeddingParallel(axis='model', scope=None) changes nothing" in str(raised.value)
    assert "57 mod 4 = 1" in str(raised.value)
    assert "56 or 60 would" in str(raised.value)


@pytest.mark.parametrize(("schedule", "tied"), [([D, M, E], True), ([E, D, M, ZERO], False)])
def test_what_stays_whole_computes_the_same(schedule, tied, x64):
    example = zoo.gpt(**_SMALL, vocab=57, tied=tied, optimizer="sgd")
    args = example.concrete(dtype="float64")
    step = partir.jit(example.fun, mesh=mesh_of("2x4"), schedule=schedule)

    assert_same(step(*args), jax.jit(example.fun)(*args))


@pytest.mark.parametrize("axis", ["data", "model"])
def test_zero_takes_the_width_where_the_vocabulary_does_not_divide(axis):
    part = partitioned(57, [D, M, ZeRO(axis, stage=3)])

    assert part.in_specs[0]["embed"]["embeddings"] == jax.P(None, axis)


# ---- GPT-2 as it was published


def test_gpt_2_small_is_planned_and_its_vocabulary_reported():
    example = zoo.gpt(**GPT2["small"], tied=True)
    step = partir.jit(example.fun, mesh=partir.Mesh(data=2, model=4), donate_argnums=example.donate_argnums)

    traced = step.trace(*example.args)
    part = traced.partition([D, M, ZERO, E])
    without = traced.partition([D, M, ZERO])

    line = (
        'params/embed/embeddings dim 0 (50257) stays replicated over "model": '
        "50257 does not divide by 4 (50257 mod 4 = 1); 50256 or 50260 would"
    )
    assert part.replicated == [line]
    assert line in str(part.report())
    assert without.replicated == []
    assert part.collectives == without.collectives
    params = part.in_specs[0]
    assert params["embed"]["embeddings"] == jax.P(None, "data")
    assert params["layer_11/attention/query"]["w"] == jax.P("data", "model")
    assert params["layer_11/mlp/down"]["w"] == jax.P("model", "data")


def test_gpt_2s_vocabulary_runs():
    """Fewer layers and a smaller width, in float32; the loss is that of one device."""
    example = zoo.gpt(1, d_model=16, heads=4, vocab=GPT2["small"]["vocab"], seq=4, batch=4, tied=True, optimizer="sgd")
    args = example.concrete()
    step = partir.jit(example.fun, mesh=mesh_of("2x4"), schedule=[D, M, ZERO, E])

    params, _, loss = step(*args)

    expected = jax.jit(example.fun)(*args)
    assert abs(loss - expected[2]) < 1e-5
    assert_close_to_largest(params, expected[0], 1e-5)

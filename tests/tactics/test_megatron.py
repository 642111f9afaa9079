"""Hidden classes: what some matrices make and others use up."""

import jax
import jax.numpy as jnp
import pytest
from tiny import undecided

import partir
from partir import Megatron, NoEffectError, Tile
from partir.tactics.megatron import hidden_classes

pytestmark = pytest.mark.jax


def normal(x):
    """A norm: it sums over the width, which is therefore no hidden class."""
    return x - jnp.mean(x, axis=-1, keepdims=True)


def step(params, x):
    """Two blocks on a residual width, trained."""

    def loss(params):
        h = x
        for number in (0, 1):
            with partir.scope(f"block_{number}"):
                h = h + jnp.tanh(normal(h) @ params["up"][number]) @ params["down"][number]
        return jnp.mean(normal(h) ** 2)

    return jax.tree.map(lambda p, g: p - g, params, jax.grad(loss)(params))


def blocks(hidden=32):
    return undecided(step, {"up": [(8, hidden)] * 2, "down": [(hidden, 8)] * 2}, (16, 8), a=4)


def test_the_hidden_dim_of_each_block_is_tiled_and_the_width_is_not():
    assert {str(action) for action in Megatron("a").actions(blocks())} == {
        "Tile(value='params/down/0', dim=0, axis='a')",
        "Tile(value='params/down/1', dim=0, axis='a')",
    }


def test_what_hidden_classes_know():
    first, second = hidden_classes(blocks())

    assert (first.contractions, first.bytes) == (1, 2 * 8 * 32 * 4)
    assert first.matrices.isdisjoint(second.matrices)


def test_a_scope_limits_it():
    (action,) = Megatron("a", scope="block_1").actions(blocks())

    assert action == Tile("params/down/1", 0, "a")


def test_sizes_that_do_not_divide_are_named():
    with pytest.raises(NoEffectError, match=r"none is free and divides by 4: params/down/0 dim 0 \(30\)"):
        Megatron("a").actions(blocks(hidden=30))


def test_a_class_that_is_claimed_is_left():
    with pytest.raises(NoEffectError) as raised:
        Megatron("a").actions(blocks().apply(*Megatron("a").actions(blocks())))

    assert set(raised.value.held) == set(Megatron("a").actions(blocks()))

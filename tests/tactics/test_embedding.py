"""The looked-up dim of tables that are parameters."""

import jax
import jax.numpy as jnp
import pytest

import partir
from partir import EmbeddingParallel, NoEffectError, Tile

pytestmark = pytest.mark.jax


def step(table, tokens):
    """A table that is trained, looked up in a scope."""

    def loss(table):
        with partir.scope("embed"):
            return jnp.mean(jnp.tanh(table[tokens]) ** 2)

    return table - jax.grad(loss)(table)


def assignment():
    args = jax.ShapeDtypeStruct((32, 8), "float32"), jax.ShapeDtypeStruct((16,), "int32")
    return partir.jit(step, mesh=partir.Mesh(a=2)).trace(*args).partition([]).assignment


def test_the_vocabulary_is_tiled():
    assert EmbeddingParallel("a").actions(assignment()) == [Tile("table", 0, "a")]


def test_a_scope_limits_it():
    assert EmbeddingParallel("a", scope="embed").actions(assignment()) == [Tile("table", 0, "a")]
    with pytest.raises(NoEffectError, match='no parameter is looked up by index in scope "other"'):
        EmbeddingParallel("a", scope="other").actions(assignment())


def test_what_holds_already_is_told_with_the_refusal():
    with pytest.raises(NoEffectError) as raised:
        EmbeddingParallel("a").actions(assignment().apply(Tile("table", 0, "a")))

    assert raised.value.held == (Tile("table", 0, "a"),)

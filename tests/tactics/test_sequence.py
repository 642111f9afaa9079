"""The sequence: a later dim of an input that no parameter is contracted over."""

import jax.numpy as jnp
import pytest
from tiny import undecided

from partir import NoEffectError, SequenceParallel, Tile

pytestmark = pytest.mark.jax


def step(w, x):
    """x [batch, sequence, width]: w is trained, and handed on."""
    return w - jnp.einsum("bsd,bse->de", x, jnp.tanh(x @ w))


def test_neither_batch_nor_width():
    assert SequenceParallel("a").actions(undecided(step, (8, 8), (4, 16, 8))) == [Tile("x", 1, "a")]


def test_a_model_without_sequence_is_refused():
    with pytest.raises(NoEffectError, match="finds no sequence dim"):
        SequenceParallel("a").actions(undecided(lambda w, x: w - x.T @ jnp.tanh(x @ w), (8, 4), (16, 8)))


def test_the_sequence_that_is_taken_is_told():
    with pytest.raises(NoEffectError) as raised:
        SequenceParallel("a").actions(undecided(step, (8, 8), (4, 16, 8)).apply(Tile("x", 1, "a")))

    assert raised.value.held == (Tile("x", 1, "a"),)

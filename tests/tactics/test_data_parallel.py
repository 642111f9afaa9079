"""The batch of every input, and of nothing else."""

import jax.numpy as jnp
import pytest
from tiny import undecided

from partir import DataParallel, PathError, ReduceIn, Tile, TilingError

pytestmark = pytest.mark.jax


def step(w, x, y):
    """w is state: it is handed on."""
    return w - x.T @ (jnp.tanh(x @ w) - y)


def test_inputs_of_one_class_take_one_tile():
    assert DataParallel("a").actions(undecided(step, (8, 4), (16, 8), (16, 4))) == [Tile("x", 0, "a")]


def test_a_batch_that_was_named_and_does_not_divide_raises():
    assignment = undecided(step, (8, 4), (15, 8), (15, 4))

    assert DataParallel("a").actions(assignment) == [Tile("x", 0, "a")], "reported, where it was not named"
    with pytest.raises(TilingError, match=r"15 does not divide by the 2 devices"):
        DataParallel("a", inputs="x").actions(assignment)


def test_without_inputs_it_says_so():
    with pytest.raises(PathError, match="finds no input to split"):
        DataParallel("a").actions(undecided(lambda s: s * 2, ()))


def test_the_dtype_of_sums_comes_first():
    actions = DataParallel("a", reduce_dtype="float32").actions(undecided(step, (8, 4), (16, 8), (16, 4)))

    assert actions == [ReduceIn("a", "float32"), Tile("x", 0, "a")]


def test_what_holds_already_is_said_again():
    assignment = undecided(step, (8, 4), (16, 8), (16, 4)).apply(Tile("x", 0, "a"))

    assert DataParallel("a").actions(assignment) == [Tile("x", 0, "a")]

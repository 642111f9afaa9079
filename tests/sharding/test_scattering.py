"""Where a sum is scattered: every use of it wants the same slice."""

import jax
import jax.numpy as jnp
import pytest
from tiny import planned, undecided

from partir import Pin, Tile
from partir.sharding.indices import ValueIndex
from partir.sharding.reshard import Place
from partir.sharding.scattering import Scattering

pytestmark = pytest.mark.jax


def step(w, x):
    """w less the gradient of the mean of tanh(x @ w)."""
    return w - jax.grad(lambda w: jnp.mean(jnp.tanh(x @ w)))(w)


SPLIT_STATE = undecided(step, (8, 4), (16, 8)).apply(Tile("x", 0, "a"), Tile("w", 0, "a"))


def reductions(plan):
    return sorted((step.kind, step.axes) for reduction in plan.reductions.values() for step in reduction.steps)


def test_a_gradient_of_split_state_is_scattered():
    assert reductions(planned(SPLIT_STATE)) == [("reduce_scatter", ("a",))]


def test_a_gradient_of_replicated_state_is_not():
    assignment = undecided(step, (8, 4), (16, 8))

    assert reductions(planned(assignment, Pin("w", 0, ""), Tile("x", 0, "a"))) == [("all_reduce", ("a",))]


def test_neighbouring_scatters_of_one_place_are_one():
    steps = Scattering(SPLIT_STATE).steps(ValueIndex(0), [(), ()], [("a", 0), ("b", 0)])

    assert [(step.kind, step.axes, step.place) for step in steps] == [("reduce_scatter", ("a", "b"), Place(0))]


def test_a_place_counts_the_blocks_before_it():
    """24 is 4 x 6; of the 4 a device has 2, and the 6 of each is cut."""
    assignment = undecided(lambda x: jnp.tanh(x.reshape(4, 6)), (24,))

    (step,) = Scattering(assignment).steps(ValueIndex(0), [("a",), ()], [("b", 1)])

    assert step.place == Place(0, outer=2)

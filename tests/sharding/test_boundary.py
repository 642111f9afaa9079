"""How arguments come in and results leave."""

import jax.numpy as jnp
import pytest
from tiny import planned, undecided

import partir
from partir import Pin, Tile

pytestmark = pytest.mark.jax


def step(w, x):
    """One step of gradient descent on w, by hand."""
    return w - 0.1 * (x.T @ jnp.tanh(x @ w))


def test_state_leaves_as_it_came():
    plan = planned(undecided(step, (8, 4), (16, 8)), Pin("w", 0, "a"))

    assert plan.arguments[0] == plan.outputs[0] == (((8, ("a",)),), ((4, ()),))


def test_a_part_that_no_spec_can_say_is_gathered_at_the_boundary():
    """The inner 4 of 12 = 3 x 4 is cut in the program; the argument itself is whole."""
    assignment = undecided(lambda x: jnp.tanh(x.reshape(3, 4)), (12,))

    plan = planned(assignment, Tile("@forward:tanh.0", 1, "a"))

    assert plan.arguments[0] == (((12, ()),),)
    assert plan.entries[0] == (((3, ()), (4, ("a",))),)


def test_axes_of_one_device_are_named_as_pinned():
    plan = planned(undecided(step, (8, 4), (16, 8), a=2, one=1), Pin("w", 0, "one"))

    assert plan.arguments[0] == (((8, ("one",)),), ((4, ()),))


def test_a_result_without_elements_is_replicated():
    plan = planned(undecided(lambda x: x[:0] * 2, (8, 4)), Tile("x", 1, "a"))

    assert plan.outputs == [(((0, ()),), ((4, ()),))]


def test_a_fixed_result_leaves_open_dims_as_they_lie():
    jitted = partir.jit(lambda x: x * 2, mesh=partir.Mesh(a=2, b=2), out_shardings=partir_spec("a", open_dims=1))

    part = jitted.trace(jnp.zeros((4, 8))).partition([Tile("x", 1, "b")])

    assert part.out_specs == partir_spec("a", "b")


def partir_spec(*axes, open_dims=0):
    """A PartitionSpec with some dims left open after those that are named."""
    from jax.sharding import PartitionSpec

    return PartitionSpec(*axes, *[PartitionSpec.UNCONSTRAINED] * open_dims)

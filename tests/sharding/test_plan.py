"""What an assignment owes: on one matmul, by hand."""

import jax.numpy as jnp
import pytest
from tiny import planned, result_of, undecided

from partir import Replicate, Tile

pytestmark = pytest.mark.jax

MATMUL = undecided(lambda x, w: x @ w, (16, 8), (8, 32))


def test_rows_and_columns_owe_nothing():
    plan = planned(MATMUL, Tile("x", 0, "a"), Tile("w", 1, "b"))

    assert plan.collectives == {}
    assert plan.outputs == [(((16, ("a",)),), ((32, ("b",)),))]


def test_what_is_contracted_is_summed():
    plan = planned(MATMUL, Tile("x", 1, "a"))

    (reduction,) = plan.reductions.values()
    assert [(step.kind, step.axes) for step in reduction.steps] == [("all_reduce", ("a",))]
    assert plan.arguments[1] == (((8, ("a",)),), ((32, ()),)), "w shares the class"


def test_what_lies_otherwise_than_wanted_is_moved_before_its_reader():
    assignment = undecided(lambda x, w: jnp.sin(x) @ w, (16, 8), (8, 32))

    plan = planned(assignment, Replicate("w", "a"), Tile("x", 1, "a"))

    reshard = plan.reshard_for(1, 1)
    assert reshard is not None
    assert [step.kind for step in reshard.steps] == ["all_slice"], "w is whole, and a slice of it costs nothing"
    assert plan.reshard_for(1, 0) is None


def test_two_uses_that_want_the_same_share_a_reshard():
    assignment = undecided(lambda x, w: (x @ w, jnp.sin(x) @ w), (16, 8), (8, 32))

    plan = planned(assignment, Tile("x", 0, "a"), Tile("w", 1, "a"))

    assert plan.collectives == {"all_gather": 1}, "w, which is columns at home, is whole at both"
    assert plan.layouts[result_of(assignment, "sine")] == (((16, ("a",)),), ((8, ()),))


def test_steps_over_one_device_are_left_out():
    assignment = undecided(lambda x, w: x @ w, (16, 8), (8, 32), a=1)

    assert planned(assignment, Tile("x", 1, "a")).collectives == {}

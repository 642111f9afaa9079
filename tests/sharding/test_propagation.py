"""From claims to the factors of rows, to the atoms of values, to layouts."""

import jax.numpy as jnp
import pytest
from tiny import undecided

from partir import Tile
from partir.sharding.propagation import Propagation

pytestmark = pytest.mark.jax

MATMUL = undecided(lambda x, w: x @ w, (16, 8), (8, 32), a=2, b=2, c=2)


def claimed(*actions):
    propagation = Propagation(MATMUL.apply(*actions))
    return propagation, propagation.claimed()


def test_each_axis_has_its_factor():
    """Factors i (16), j (32), k (8)."""
    propagation, taken = claimed(Tile("x", 0, "a"), Tile("w", 1, "b"), Tile("x", 1, "c"))

    assert taken == {0: {"a": 0, "b": 1, "c": 2}}
    assert propagation.own == {0: (("a",), ("b",), ("c",))}


@pytest.mark.parametrize("order", [("a", "b", "c"), ("c", "a", "b"), ("b", "c", "a")])
def test_axes_of_one_factor_come_in_the_order_of_their_claims(order):
    propagation, _ = claimed(*(Tile("x", 0, axis) for axis in order))

    assert propagation.own == {0: (order, (), ())}


def test_rows_alike_are_told_apart_by_the_order_of_claims():
    """Two matmuls of one shape whose i has a and b, claimed in two orders: the key must tell."""
    assignment = undecided(lambda x, y, w: (x @ w, y @ w), (16, 8), (16, 8), (8, 32))
    decided = assignment.apply(Tile("x", 0, "a"), Tile("x", 0, "b"), Tile("y", 0, "b"), Tile("y", 0, "a"))

    propagation = Propagation(decided)
    propagation.claimed()

    assert propagation.own == {0: (("a", "b"), (), ()), 1: (("b", "a"), (), ())}


def test_a_row_cut_along_what_it_sums_leaves_its_result_unreduced():
    propagation, taken = claimed(Tile("x", 1, "a"))

    found = propagation.cut(0, MATMUL.structure.tables.rows[0], propagation.own[0])

    assert found.sums == {"a": "add"}
    assert found.operands == ((((16, ()),), ((8, ("a",)),)), (((8, ("a",)),), ((32, ()),)))
    assert found.results == ((((16, ()),), ((32, ()),)),)
    axes, sums = propagation.tentative(taken)
    assert sums == {0: {"a": "add"}}
    assert axes[2] == frozenset()


def test_a_pass_through_row_lies_as_its_operand():
    assignment = undecided(lambda x: jnp.tanh(x.reshape(4, 4)), (16,)).apply(Tile("x", 0, "a"))
    propagation = Propagation(assignment)

    axes, _ = propagation.tentative(propagation.claimed())

    assert [sorted(own) for own in axes] == [["a"], ["a"], ["a"]]

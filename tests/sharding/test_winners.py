"""Which factor has an axis at an op."""

import jax
import pytest
from tiny import undecided

from partir import Tile

pytestmark = pytest.mark.jax

P = jax.P


def test_the_factor_of_the_earliest_claim_has_it():
    """The example of `winners`."""
    assignment = undecided(lambda x, w: x @ w, (16, 8), (8, 32))

    decided = assignment.apply(Tile("x", 0, "a"), Tile("w", 1, "a"))

    assert decided.structure.atoms.shapes[0].sizes == (16, 32, 8)
    assert decided.winners["a"].tolist() == [0]
    assert decided.winners["b"].tolist() == [-1]


def test_a_class_that_does_not_divide_has_nothing():
    assignment = undecided(lambda x, w: x @ w, (15, 8), (8, 32))

    decided = assignment.apply(Tile("x", 0, "a"), Tile("w", 1, "a"))

    assert decided.winners["a"].tolist() == [-1], "it keeps the axis from the other one"


def test_a_constraint_has_its_axis_whatever_was_claimed():
    def constrained(x):
        return jax.lax.with_sharding_constraint(x * 2, P(None, "a")) * 3

    decided = undecided(constrained, (16, 8)).apply(Tile("x", 0, "a"))

    names = [row.op.name for row in decided.structure.tables.rows]
    at = dict(zip(names, decided.winners["a"].tolist(), strict=True))
    starts = dict(zip(names, decided.structure.atoms.factor_start, strict=True))
    assert at["sdy.sharding_constraint"] - starts["sdy.sharding_constraint"] == 1

"""`with_sharding_constraint`: exact at its own op, held through what follows, and said where it cannot be done."""

import jax
import jax.numpy as jnp
import pytest
from tiny import planned, result_of, undecided

pytestmark = pytest.mark.jax

P = jax.P


def constrained(*axes):
    return lambda x: jnp.sum(jnp.tanh(jax.lax.with_sharding_constraint(jnp.sin(x), P(*axes))), axis=1)


def test_it_holds_through_pointwise_ops_and_sums():
    assignment = undecided(constrained("a"), (16, 8))

    plan = planned(assignment)

    assert plan.layouts[result_of(assignment, "tanh")] == (((16, ("a",)),), ((8, ()),))
    assert plan.outputs == [(((16, ("a",)),),)]


def test_it_is_read_as_factors_tiles_and_what_is_held():
    assignment = undecided(constrained("a", "b"), (16, 8))

    wishes = assignment.structure.wishes(assignment.mesh)

    assert list(wishes.factors.values()) == [{"a": 0, "b": 1}]
    assert [(tile.dim, tile.axis) for tile in wishes.actions] == [(0, "a"), (1, "b")]
    assert set(wishes.held_on) == {"a", "b"}
    rows, factors = wishes.held_on["b"]
    assert (len(rows), factors.tolist()) == (2, [1, 1]), "tanh and the sum"


def test_what_does_not_divide_is_said():
    assignment = undecided(constrained("a"), (15, 8))

    (line,) = assignment.structure.wishes(assignment.mesh).refused

    assert 'dim 0 (15) was asked for over "a" and stays replicated: 15 does not divide by 2 (15 mod 2 = 1)' in line

"""How a program is read: which ops are rows, what is looked through, what is made again at each use."""

import jax
import jax.numpy as jnp
import pytest
from tiny import undecided

from partir.sharding.tables import View

pytestmark = pytest.mark.jax


def tables_of(fun, *shapes):
    return undecided(fun, *shapes).structure.tables


def test_a_transpose_is_a_view_of_its_source():
    tables = tables_of(lambda x, w: x.T @ w, (8, 4), (8, 16))

    (row,) = tables.rows
    assert row.op.name == "stablehlo.dot_general"
    assert row.operands[0] in (View(0, (1, 0)), View(0, (0, 1)))
    assert [use for use in tables.uses[0] if use[0] >= 0] == [(0, 0)]


def test_a_broadcast_dim_comes_from_nowhere():
    tables = tables_of(lambda x, b: x + b, (8, 4), (4,))

    assert tables.rows[0].operands == (View(0, (0, 1)), View(1, (-1, 0)))


def test_a_constant_is_no_operand():
    tables = tables_of(lambda x: jnp.where(jnp.tril(jnp.ones((4, 4))) > 0, x, 0.0), (4, 4))

    (row,) = tables.rows
    assert row.op.name == "stablehlo.select"
    assert row.operands == (None, View(0, (0, 1)), None)


def test_a_reshape_that_splits_a_dim_passes_its_layout_through():
    tables = tables_of(lambda x: jnp.tanh(x.reshape(2, 4)), (8,))

    assert [row.kind for row in tables.rows] == ["pass_through", "claim"]
    assert tables.passed_through == [View(0, (0,)), None]


def test_results_are_readers_of_their_own():
    tables = tables_of(lambda x: (jnp.sin(x), x), (8,))

    assert tables.readers[0] == (-2, 0), "result 1, then row 0"
    assert tables.outputs == [View(1, (0,)), View(0, (0,))]


def test_a_loop_is_carry_rows_and_what_is_inside():
    def scanned(stack, x):
        return jax.lax.scan(lambda h, w: (jnp.tanh(h @ w), None), x, stack)[0]

    tables = tables_of(scanned, (3, 4, 4), (2, 4))

    (loop,) = tables.controls
    assert loop.trips == 3
    assert {tables.rows[carry].kind for carry in loop.carries} == {"carry"}
    body = loop.regions[1].number
    assert tables.times(body) == 3
    assert {row.op.name for row in tables.rows if row.region == body} >= {"stablehlo.dot_general", "stablehlo.tanh"}
    assert {(tables.shapes[value], dim) for value, dim in tables.scanned} == {((3, 4, 4), 0)}


def test_what_a_loop_carries_and_only_adds_to_is_an_accumulator():
    def summed(xs, w):
        return jax.lax.scan(lambda total, x: (total + x @ w, None), jnp.zeros((4, 8)), xs)[0]

    tables = tables_of(summed, (3, 4, 6), (6, 8))

    (accumulator,) = tables.accumulators.values()
    assert tables.rows[accumulator.add].op.name == "stablehlo.add"
    assert accumulator.trips == 3

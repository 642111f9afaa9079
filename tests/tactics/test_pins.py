"""`in_shardings` and `out_shardings` as first decisions."""

import jax
import pytest
from tiny import undecided

from partir import Pin, Tile, TilingError
from partir.tactics.pins import pins_of

pytestmark = pytest.mark.jax

P = jax.P
OPEN = P.UNCONSTRAINED
START = undecided(lambda x, w: x @ w, (16, 8), (8, 30), a=4, b=2)


def test_every_dim_is_pinned_and_what_is_named_is_tiled():
    found = pins_of(START, (P("a"), None), None)

    assert found.actions == (Pin("x", 0, "a"), Pin("x", 1, ""), Tile("x", 0, "a"))


def test_an_unconstrained_dim_is_left_open():
    assert pins_of(START, (P(OPEN, "b"), None), None).actions == (Pin("x", 1, "b"), Tile("x", 1, "b"))


def test_results_are_axes_by_dim():
    assert pins_of(START, None, P(OPEN, "b")).outputs == ((0, (None, ("b",))),)


def test_all_that_does_not_divide_is_named_at_once():
    with pytest.raises(TilingError) as raised:
        pins_of(START, (None, P(None, "a")), P(None, "a"))

    assert str(raised.value).count("30 mod 4 = 2") == 2

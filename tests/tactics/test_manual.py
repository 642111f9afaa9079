"""What a user names, by pattern."""

import jax
import pytest
from tiny import undecided

import partir
from partir import FIRST_DIVISIBLE_DIM, Manual, PathError, Pin, ProgramError, Replicate, Tile, TilingError

pytestmark = pytest.mark.jax

P = jax.P
TWO = undecided(lambda p, x: (x @ p["u"], x @ p["v"]), {"u": (8, 32), "v": (8, 30)}, (16, 8), a=4, b=2)


@pytest.mark.parametrize(
    ("specs", "axis", "actions"),
    [
        ({"p/u": 1}, "a", [Tile("p/u", 1, "a")]),
        ({"p/*": 0}, "a", [Tile("p/u", 0, "a")]),  # v shares the class
        ({"p/u": P(None, "a")}, None, [Tile("p/u", 1, "a")]),
        ({"p/u": P(None, ("a", "b"))}, None, [Tile("p/u", 1, "a"), Tile("p/u", 1, "b")]),
        ({"x": FIRST_DIVISIBLE_DIM}, "a", [Tile("x", 0, "a")]),
        ({"p": {"v": P("b")}}, None, [Tile("p/v", 0, "b")]),
    ],
)
def test_specs_become_tiles(specs, axis, actions):
    assert Manual(specs, axis=axis).actions(TWO) == actions


def test_an_argument_whose_axis_another_class_has_is_pinned():
    assert Manual({"x": P("a"), "p/u": P(None, "a")}).actions(TWO) == [Tile("x", 0, "a"), Tile("p/u", 1, "a")]
    assert Manual({"p/u": P("a", None), "p/v": P(None, "b")}).actions(TWO) == [Tile("p/u", 0, "a"), Tile("p/v", 1, "b")]
    taken = TWO.apply(Tile("p/u", 0, "b"))
    assert Manual({"p/u": P(None, "a")}).actions(taken) == [Tile("p/u", 1, "a")]


@pytest.mark.parametrize(
    ("specs", "axis", "error", "text"),
    [
        ({"p/v": 1}, "a", TilingError, "30 does not divide by the 4 devices"),
        ({"p/u": 2}, "a", TilingError, "dim 2 is out of range for 2 dims"),
        ({"p/w": 0}, "a", PathError, "p/w"),
        ({"#hidden": 0}, "a", PathError, "hidden"),
        ({"p/u": 0}, None, ProgramError, "names dims"),
        ({"p/u": 0.5}, "a", ProgramError, "not a dim of p/u: 0.5"),
    ],
)
def test_what_cannot_be_is_refused(specs, axis, error, text):
    with pytest.raises(error, match=text):
        Manual(specs, axis=axis).actions(TWO)


def test_a_value_that_is_kept_replicated_is_not_laid():
    with pytest.raises(TilingError, match="it is kept replicated over it"):
        Manual({"x": P("a")}).actions(TWO.apply(Replicate("x", "a")))


def test_a_tag_is_a_name():
    tagged = undecided(lambda x: partir.tag(x * 2, "hidden") + 1, (16, 8))

    assert Manual({"#hidden": 0}, axis="a").actions(tagged) == [Tile("#hidden.0", 0, "a")]
    assert Pin("x", 0, "a,b").names == ("a", "b")

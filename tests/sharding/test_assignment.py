"""What a tactic asks of an assignment, and that deciding never changes one."""

import jax.numpy as jnp
import pytest
from tiny import undecided, value

import partir
from partir import Cut, Pin, Replicate, Tile, TilingError

pytestmark = pytest.mark.jax


def step(w, x):
    """A dense layer, trained: w is state."""
    loss, gradient = jnp.mean((x @ w) ** 2), x.T @ jnp.tanh(x @ w)
    return w - 0.1 * gradient, loss


def trained() -> partir.sharding.assignment.Assignment:
    return undecided(step, (8, 4), (16, 8), a=4, b=2)


def test_apply_and_undo():
    before = trained()
    after = before.apply(Tile("x", 0, "a"), Tile("w", 1, "b"))

    assert before.actions == ()
    assert after.undo() == before.apply(Tile("x", 0, "a"))
    assert after.undo(2) == before
    assert hash(after) == hash(before.apply(Tile("x", 0, "a")).apply(Tile("w", 1, "b")))


def test_dims_with_their_classes():
    assignment = undecided(lambda x, y: x * 2 + y, (4, 1, 8), (4, 1, 8))

    dims = assignment.dims_of([value(assignment, "y")])

    assert [(dim.name, dim.dim) for dim in dims] == [("y", 0), ("y", 2)], "a dim of one element has no class"
    assert [dim.class_ for dim in dims] == [assignment.class_of(0, 0), assignment.class_of(0, 2)]


def test_results_are_dims_of_what_is_returned():
    assignment = undecided(lambda x: (x * 2).T, (4, 8))

    assert [(dim.name, dim.dim) for dim in assignment.result_dims] == [("@forward:multiply.0", 1), ("@forward:multiply.0", 0)]


def test_fits_counts_what_a_class_is_split_over_already():
    assignment = trained()
    batch, width = assignment.class_of(1, 0), assignment.class_of(0, 1)

    after = assignment.apply(Tile("w", 1, "a"))

    assert assignment.fits(width, "a")
    assert assignment.fits(width, "b")
    assert not after.fits(width, "b"), "4 elements, on 4 devices already"
    assert after.fits(batch, "b")


def test_can_tile_is_free_fitting_and_not_walked_along():
    assignment = trained().apply(Tile("x", 0, "a"))
    batch, width = assignment.class_of(1, 0), assignment.class_of(0, 1)

    assert not assignment.can_tile(batch, "a")
    assert assignment.can_tile(batch, "b")
    assert assignment.can_tile(width, "a")


def test_tile_names_a_class():
    assignment = trained()

    assert assignment.tile(assignment.class_of(0, 1), "b") == Tile("w", 1, "b")


def test_has_axis():
    assignment = trained().apply(Replicate("w", "a"), Tile("w", 0, "a"))

    assert not assignment.has_axis(value(assignment, "w"), "a")
    assert assignment.has_axis(value(assignment, "x"), "a")


def test_of_two_pins_the_first_counts():
    decided = trained().apply(Pin("x", 0, "b"), Pin("x", 0, "a"))

    assert decided.pinned == {value(decided, "x"): {0: ("b",)}}
    assert decided.lies(value(decided, "x"), 0) == ("b",)


def test_a_cut_gives_other_classes():
    assignment = undecided(lambda x: jnp.tanh(jnp.sin(x)), (8,))

    assert assignment.apply(Cut("@forward:sine.0", 0)).classes.count == assignment.classes.count + 1


def test_a_dim_that_is_not_there_is_refused():
    with pytest.raises(TilingError, match=r"dim 2 is out of range for 2 dims"):
        trained().apply(Tile("x", 2, "a"))


def test_the_same_effect_by_other_actions():
    assignment = trained()

    assert assignment.apply(Tile("w", 0, "a")).same_effect(assignment.apply(Tile("x", 1, "a")))
    assert not assignment.apply(Tile("w", 0, "a")).same_effect(assignment)

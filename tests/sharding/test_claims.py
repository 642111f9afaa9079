"""What `Tile` actions claim, in order, and what is said of sizes that do not divide."""

import pytest
from tiny import undecided

from partir import Prefer, Replicate, Tile
from partir.sharding.claims import NEVER

pytestmark = pytest.mark.jax

MATMUL = undecided(lambda x, w: x @ w, (16, 8), (8, 12), a=4, b=2)


def test_the_example_of_claims():
    claims = MATMUL.apply(Tile("x", 0, "a"), Tile("w", 1, "a")).claims

    assert claims.order["a"].tolist() == [0, NEVER, 1, NEVER]
    assert claims.divides["a"].tolist() == [1, 0, 1, 0]


def test_a_class_that_does_not_divide_is_claimed_and_not_split():
    decided = MATMUL.apply(Tile("w", 1, "a"), Tile("w", 1, "b"))
    class_ = decided.classes.class_of(1, 1)

    assert decided.is_claimed(class_, "b")
    assert not decided.is_split(class_, "b")
    assert str(decided.claims.undivided[0]) == (
        'w dim 1 (12) stays replicated over "b": 12 does not divide by 8 (12 mod 8 = 4); 8 or 16 would'
    )


def test_two_classes_on_one_axis_are_a_conflict_that_the_earlier_wins():
    decided = MATMUL.apply(Tile("x", 0, "b"), Tile("w", 1, "b"))

    (conflict,) = decided.conflicts
    assert decided.classes.of_factor[conflict.winner] == decided.classes.class_of(0, 0)
    assert [decided.classes.of_factor[loser] for loser in conflict.losers] == [decided.classes.class_of(1, 1)]


def test_a_preference_turns_a_conflict():
    decided = MATMUL.apply(Tile("x", 0, "b"), Tile("w", 1, "b"), Prefer("*", "w", 1, "b"))

    assert decided.classes.of_factor[decided.winners["b"][0]] == decided.classes.class_of(1, 1)


def test_what_is_replicated_first_is_not_split():
    assert MATMUL.apply(Replicate("x", "b"), Tile("x", 0, "b")).argument_axes[0] == ((), ())
    assert MATMUL.apply(Tile("x", 0, "b"), Replicate("x", "b")).argument_axes[0] == (("b",), ())

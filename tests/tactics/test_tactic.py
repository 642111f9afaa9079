"""How a schedule is run: what a tactic without effect is told, and what holds already."""

import jax.numpy as jnp
import pytest
from tiny import undecided

from partir import DataParallel, Manual, NoEffectError, ProgramError, Replicate, Tile
from partir.tactics import Decisions, run
from partir.tactics.tactic import holds

pytestmark = pytest.mark.jax


def step(w, x):
    return w - x.T @ jnp.tanh(x @ w)


START = undecided(step, (8, 4), (16, 8))


def test_each_tactic_decides_on_what_the_earlier_ones_left():
    first, second = run([DataParallel("a"), Manual({"w": 1}, axis="b")], START)

    assert first.assignment.actions == (Tile("x", 0, "a"),)
    assert second.assignment.actions == (Tile("x", 0, "a"), Tile("w", 1, "b"))


def test_a_tactic_that_changes_nothing_raises():
    with pytest.raises(NoEffectError, match="changes nothing"):
        run([DataParallel("a"), Decisions((Tile("x", 0, "a"),))], START)


def test_what_is_no_tactic_is_refused():
    with pytest.raises(ProgramError, match="schedule item 0 is not a tactic"):
        run([DataParallel], START)


def test_keeping_what_nobody_would_shard_is_refused():
    with pytest.raises(NoEffectError, match="no tactic after it would have sharded"):
        run([Decisions((Replicate("w", "b"),)), DataParallel("a")], START)


def test_a_tile_holds_where_its_class_and_its_argument_have_the_axis():
    assert not holds(START, Tile("x", 0, "a"))
    assert holds(START.apply(Tile("x", 0, "a")), Tile("x", 0, "a"))
    assert not holds(START.apply(Replicate("w", "a"), Tile("w", 1, "a")), Tile("w", 1, "a"))

"""Strategies and single actions as items of a schedule."""

import pytest
from tiny import undecided

from partir import Replicate, Tile, TilingError
from partir.sharding.strategy import Strategy
from partir.tactics.replay import Decisions, Replay, scheduled

pytestmark = pytest.mark.jax

START = undecided(lambda p, x: x @ p["u"] + x @ p["v"], {"u": (8, 4), "v": (8, 4)}, (16, 8))


def test_neighbouring_actions_are_one_item():
    first, tactic, last = Tile("x", 0, "a"), object(), Strategy.of(START)

    found = scheduled([first, Replicate("x", "b"), tactic, last])

    assert found == [Decisions((first, Replicate("x", "b"))), tactic, Replay(last)]


def test_a_pattern_is_an_action_for_each_argument():
    assert Decisions((Replicate("p/*", "a"),)).actions(START) == (Replicate("p/u", "a"), Replicate("p/v", "a"))


def test_keeping_what_is_tiled_is_refused():
    with pytest.raises(TilingError, match="an earlier tactic has tiled it"):
        Decisions((Replicate("x", "a"),)).actions(START.apply(Tile("x", 0, "a")))


def test_a_strategy_replays_what_is_not_taken():
    decided = START.apply(Tile("x", 0, "a"), Tile("p/u", 1, "b"))

    assert Replay(Strategy.of(decided)).actions(START.apply(Tile("x", 0, "a"))) == [Tile("p/u", 1, "b")]

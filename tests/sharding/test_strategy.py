"""Strategies as files: what is written is read, what differs is named."""

import json

import pytest
from tiny import undecided

from partir import StrategyError, Tile
from partir.sharding.strategy import Strategy, load_strategy

pytestmark = pytest.mark.jax

DECIDED = undecided(lambda x, w: x @ w, (16, 8), (8, 32)).apply(Tile("x", 0, "a"))


def test_what_is_saved_is_loaded(tmp_path):
    strategy = Strategy.of(DECIDED)
    strategy.save(tmp_path / "s.json")

    assert load_strategy(tmp_path / "s.json") == strategy
    assert [file.name for file in tmp_path.iterdir()] == ["s.json"]


def test_actions_that_are_taken_are_not_taken_again():
    strategy = Strategy.of(DECIDED)

    assert strategy.actions_for(DECIDED) == []
    assert strategy.actions_for(DECIDED.undo()) == [Tile("x", 0, "a")]


def test_another_function_is_named():
    other = undecided(lambda y, w: y @ w, (16, 8), (8, 32))

    with pytest.raises(StrategyError, match="argument x is gone; argument y is new"):
        Strategy.of(DECIDED).check(other.structure.program)


def test_a_file_that_is_none_is_refused(tmp_path):
    (tmp_path / "s.json").write_text(json.dumps({"format": "else"}))

    with pytest.raises(StrategyError, match='it has no "format": "partir-strategy"'):
        load_strategy(tmp_path / "s.json")

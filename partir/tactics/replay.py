"""A saved strategy, or single actions, as an item of a schedule."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from partir.sharding.actions import Action
from partir.sharding.assignment import Assignment
from partir.sharding.strategy import Strategy


@dataclass(frozen=True)
class Replay:
    """Take the actions of `strategy`, as far as they are not taken yet. Raises StrategyError for another program."""

    strategy: Strategy

    def actions(self, assignment: Assignment) -> Sequence[Action]:
        return self.strategy.actions_for(assignment)

    def __repr__(self) -> str:
        return f"Strategy({self.strategy.name}, {len(self.strategy.actions)} actions)"


@dataclass(frozen=True)
class Decisions:
    """Single actions, as a schedule item that is not a tactic: `partir.Tile(...)` and its like."""

    chosen: tuple[Action, ...]

    def actions(self, assignment: Assignment) -> Sequence[Action]:
        return self.chosen

    def __repr__(self) -> str:
        return ", ".join(map(repr, self.chosen))

"""A saved strategy, or single actions, as an item of a schedule."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

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


def scheduled(schedule: Sequence[Any]) -> list[Any]:
    """A schedule with strategies and single actions (neighbours together) wrapped as tactics."""
    found: list[Any] = []
    for item in schedule:
        if isinstance(item, Action):
            last = found.pop() if found and isinstance(found[-1], Decisions) else Decisions(())
            found.append(Decisions((*last.chosen, item)))
        else:
            found.append(Replay(item) if isinstance(item, Strategy) else item)
    return found

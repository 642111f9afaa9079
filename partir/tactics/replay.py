"""A saved strategy, or single actions, as an item of a schedule."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from partir.errors import TilingError, error_text, error_texts
from partir.sharding.actions import Action, ReduceIn, Replicate
from partir.sharding.assignment import Assignment
from partir.sharding.strategy import Strategy
from partir.tactics.manual import describe


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
    """Single actions, as a schedule item that is not a tactic: `partir.Tile(...)` and its like.

    The value of an action is an address, or a path pattern: then there is an action for each argument that it names.
    Raises PathError for a pattern that names none, TilingError for a `Replicate` of what is tiled over that axis already.
    """

    chosen: tuple[Action, ...]

    def actions(self, assignment: Assignment) -> Sequence[Action]:
        found = dict.fromkeys(action for chosen in self.chosen for action in _named(chosen, assignment))
        kept = [action for action in found if isinstance(action, Replicate)]
        for axis in dict.fromkeys(action.axis for action in kept):
            assignment.mesh.check(axis)
        problems = [text for action in kept if (text := _tiled_already(action, assignment)) is not None]
        if problems:
            raise TilingError(error_texts(problems))
        return tuple(found)

    def __repr__(self) -> str:
        return ", ".join(map(repr, self.chosen))


def _named(action: Action, assignment: Assignment) -> Sequence[Action]:
    """An action for each argument that its value names, as a path pattern; itself where that is an address."""
    if isinstance(action, ReduceIn) or action.value[:1] in "#@" or action.value in assignment.structure.addresses:
        return [action]
    signature = assignment.structure.program.signature
    return [replace(action, value=signature.arguments[index].name) for index in signature.select(action.value)]


def _tiled_already(action: Replicate, assignment: Assignment) -> str | None:
    """What is wrong with an action that keeps an argument replicated: an earlier tactic has tiled it."""
    value = assignment.structure.addresses.find(action.value)
    if value >= assignment.structure.tables.argument_count or not assignment.has_axis(value, action.axis):
        return None
    return error_text(
        f'cannot keep {action.value} replicated over mesh axis "{action.axis}"',
        where=describe(assignment, value),
        why="an earlier tactic has tiled it",
        hint="put Replicate before that tactic",
    )


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

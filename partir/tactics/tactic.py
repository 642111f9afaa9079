"""What a tactic is, and how a schedule of them is run: each yields actions on what the earlier ones decided."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

from partir.collector import paused
from partir.cost.target import Target
from partir.errors import NoEffectError, ProgramError, error_text
from partir.sharding.actions import Action, Replicate, Tile
from partir.sharding.assignment import Assignment


@runtime_checkable
class Tactic(Protocol):
    """Anything that yields actions: a frozen dataclass with one method."""

    def actions(self, assignment: Assignment) -> Sequence[Action]:
        """The decisions this tactic adds to `assignment`. Raises PartirError for what cannot be done."""
        ...


@runtime_checkable
class Judging(Protocol):
    """A tactic that prices what it decides, on its own `target` or on that of the partition."""

    target: Target | str | None

    def actions_on(self, assignment: Assignment, target: Target | None) -> Sequence[Action]:
        """As `Tactic.actions`, judged by `target`."""
        ...


@dataclass(frozen=True, eq=False)
class AppliedTactic:
    """One tactic of a schedule, and the assignment after it."""

    tactic: Tactic
    assignment: Assignment


@paused()
def run(schedule: Sequence[Any], assignment: Assignment, target: Target | None = None) -> list[AppliedTactic]:
    """Run a schedule, on `target` where a tactic prices what it decides.

    Raises NoEffectError for a tactic that changes nothing. Where that is only because sizes do not divide, the dims stay
    replicated and the report says so, as long as the schedule changes something: a vocabulary of 50,257 is no reason to refuse
    the rest. Nor is a tactic refused that would only decide what the program's own shardings say: its row shows no change.
    """
    stages: list[AppliedTactic] = []
    misfits: list[str] = []
    for number, tactic in enumerate(schedule):
        if isinstance(tactic, type) or not isinstance(tactic, Tactic) or not callable(tactic.actions):
            raise ProgramError(
                error_text(
                    f"schedule item {number} is not a tactic: {_short(tactic)}",
                    hint="an instance, as in [partir.DataParallel('data')], or a Strategy",
                )
            )
        before = stages[-1].assignment if stages else assignment
        judging = isinstance(tactic, Judging)
        try:
            actions = tuple(tactic.actions_on(before, target) if judging else tactic.actions(before))
        except NoEffectError as error:
            if not _is_satisfied(error.held, before, assignment):
                raise
            actions = error.held
        after = before.apply(*actions)
        if _is_satisfied(actions, before, assignment):
            stages.append(AppliedTactic(tactic, after if after.claims.undivided != before.claims.undivided else before))
            continue
        stages.append(AppliedTactic(tactic, after))
        keeps_whole = all(isinstance(action, Replicate) for action in actions) and bool(actions)
        leaves_it = judging and not actions
        if not keeps_whole and not leaves_it and after.same_effect(before):
            misfits.append(_no_effect(tactic, before, after))
            if after.claims.undivided == before.claims.undivided:
                raise NoEffectError(misfits[-1])
    if misfits and stages[-1].assignment.same_effect(assignment):
        raise NoEffectError(misfits[0])
    _check_pins(stages)
    return stages


def _short(item: object) -> str:
    """What a message calls an item of a schedule: the repr of some would fill pages."""
    text = repr(item)
    return text if len(text) < 80 else f"an object of type {type(item).__name__}"


def holds(assignment: Assignment, action: Action) -> bool:
    """Whether the dim that a `Tile` names, and its class, have the axis already."""
    if not isinstance(action, Tile):
        return False
    value = assignment.structure.addresses.find(action.value)
    dim = assignment.dim_of(value, action.dim)
    class_ = assignment.class_of(value, dim)
    if class_ is None or not assignment.is_split(class_, action.axis):
        return False
    if value >= assignment.structure.tables.argument_count:
        return True
    return action.axis in assignment.lies(value, dim)


def _is_satisfied(actions: Sequence[Action], before: Assignment, start: Assignment) -> bool:
    """Whether all that a tactic would decide holds, or does not divide, and the program's own shardings decided some of it."""
    if not any(holds(start, action) for action in actions):
        return False
    rest = [action for action in actions if not holds(before, action)]
    misfits = {(item.value, item.dim, item.axis) for item in before.apply(*rest).claims.undivided}
    return all(isinstance(action, Tile) and (action.value, action.dim, action.axis) in misfits for action in rest)


def _no_effect(tactic: Tactic, before: Assignment, after: Assignment) -> str:
    new = after.claims.undivided[len(before.claims.undivided) :]
    if new:
        why = "; ".join(str(item) for item in new[:3])
        hint = "another axis, or sizes that divide"
    else:
        why = "every op and argument it speaks of already has that axis on another dim, or is whole there for another reason"
        hint = "leave it out, or put it before the tactic that took the axis"
    return error_text(f"{tactic!r} changes nothing", why=why, hint=hint)


def _check_pins(stages: Sequence[AppliedTactic]) -> None:
    """A tactic that only keeps values replicated must keep something from a later one."""
    final = stages[-1].assignment if stages else None
    done = 0
    for stage in stages:
        own = stage.assignment.actions[done:]
        done = len(stage.assignment.actions)
        if final is None or not own or not all(isinstance(action, Replicate) for action in own):
            continue
        without = final.restarted(final.actions[: done - len(own)] + final.actions[done:])
        if without.same_effect(final):
            raise NoEffectError(
                error_text(
                    f"{stage.tactic!r} changes nothing",
                    why="no tactic after it would have sharded what it keeps replicated",
                    hint="put it before the tactic it is to hold off, or leave it out",
                )
            )

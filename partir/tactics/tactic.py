"""What a tactic is, and how a schedule of them is run: each yields actions on what the earlier ones decided."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

from partir.collector import paused
from partir.cost.targets import Target
from partir.errors import NoEffectError, ProgramError, word
from partir.sharding.actions import Action, Replicate
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
class Stage:
    """One tactic of a schedule, and the assignment after it."""

    tactic: Tactic
    assignment: Assignment


@paused()
def run(schedule: Sequence[Any], assignment: Assignment, target: Target | None = None) -> list[Stage]:
    """Run a schedule, on `target` where a tactic prices what it decides.

    Raises NoEffectError for a tactic that changes nothing. Where that is only because sizes do not divide, the dims stay whole
    and the report says so, as long as the schedule changes something: a vocabulary of 50,257 is no reason to refuse the rest.
    """
    stages: list[Stage] = []
    misfits: list[str] = []
    for number, tactic in enumerate(schedule):
        if isinstance(tactic, type) or not isinstance(tactic, Tactic):
            raise ProgramError(
                word(
                    f"schedule item {number} is not a tactic: {tactic!r}",
                    hint="an instance, as in [partir.DataParallel('data')], or a Strategy",
                )
            )
        before = stages[-1].assignment if stages else assignment
        judging = isinstance(tactic, Judging)
        actions = tuple(tactic.actions_on(before, target) if judging else tactic.actions(before))
        after = before.apply(*actions)
        stages.append(Stage(tactic, after))
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


def _no_effect(tactic: Tactic, before: Assignment, after: Assignment) -> str:
    new = after.claims.undivided[len(before.claims.undivided) :]
    if new:
        why = "; ".join(str(item) for item in new[:3])
        hint = "another axis, or sizes that divide"
    else:
        why = "every op and argument it speaks of already has that axis on another dim, or is whole there for another reason"
        hint = "leave it out, or put it before the tactic that took the axis"
    return word(f"{tactic!r} changes nothing", why=why, hint=hint)


def _check_pins(stages: Sequence[Stage]) -> None:
    """A tactic that only keeps values whole must keep something from a later one."""
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
                word(
                    f"{stage.tactic!r} changes nothing",
                    why="no tactic after it would have sharded what it keeps whole",
                    hint="put it before the tactic it is to hold off, or leave it out",
                )
            )

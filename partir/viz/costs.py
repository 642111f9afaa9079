"""Lists the largest costs of a step, and what a step would cost if conflicts were decided the other way."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field

from partir.cost.estimate import CollectiveCost, Estimate, estimate
from partir.sharding import plan as plan_
from partir.sharding.actions import Action
from partir.sharding.assignment import Assignment
from partir.sharding.indices import ClassId
from partir.sharding.scopes import without_numbers
from partir.viz.report import bytes_text, seconds_text

LARGEST = 4
"""How many costs of each kind a report names."""
PRICED = 3
"""How many conflicts a report prices: each takes a plan and an estimate."""


@dataclass
class _Cost:
    """One row: seconds and bytes sent in a step, how many kernels or collectives it adds up, and their causes (in order)."""

    seconds: float = 0.0
    bytes: float = 0.0
    times: int = 0
    causes: dict[str, None] = field(default_factory=dict[str, None])


def largest(found: Estimate, tactic_of: dict[Action, str]) -> list[str]:
    """The largest costs of a step, added up over repeated layers: computation, then collectives with their causes.

    `tactic_of` has the tactic that made each action, as its user writes it.
    """
    computing: dict[str, _Cost] = defaultdict(_Cost)
    for kernel in found.kernels:
        own = computing[f"computing {kernel.op} in {_place(kernel.scope, kernel.phase)}"]
        own.seconds += kernel.seconds
        own.times += kernel.times
    moving: dict[str, _Cost] = defaultdict(_Cost)
    for collective in found.collectives:
        place = _place(collective.scope, collective.phase)
        own = moving[f"{collective.kind} over {' and '.join(collective.axes)} in {place}"]
        own.seconds += collective.seconds
        own.bytes += collective.bytes
        own.times += collective.times
        own.causes[_cause(collective, tactic_of)] = None
    return [
        f"{seconds_text(cost.seconds):>8}  {name}{_details(cost)}"
        for costs in (computing, moving)
        for name, cost in sorted(costs.items(), key=lambda item: -item[1].seconds)[:LARGEST]
    ]


def _place(scope: str, phase: str) -> str:
    return f"{without_numbers(scope) or 'the program'}" + ("" if phase == "forward" else f" [{phase}]")


def _cause(collective: CollectiveCost, tactic_of: dict[Action, str]) -> str:
    by = tactic_of.get(collective.action) if collective.action is not None else None
    return collective.reason + (f", sharded by {by}" if by is not None else "")


def _details(cost: _Cost) -> str:
    times = f", {cost.times} times" if cost.times > 1 else ""
    sent = f", {bytes_text(int(cost.bytes))} sent" if cost.bytes else ""
    return times + sent + (f": {next(iter(cost.causes))}" if cost.causes else "")


def priced_conflicts(now: Estimate) -> list[str]:
    """The conflicts whose ops have the largest results, each with the step time if the other dim had the axis there.

    `now` is the estimate of the current assignment.
    """
    assignment = now.plan.assignment
    sites = _sites(assignment)
    lines: list[str] = []
    for (scope, axis, loser), _ in sorted(sites.items(), key=lambda item: -item[1])[:PRICED]:
        preferences = assignment.preferences(scope, loser, axis)
        if not preferences or not scope:
            continue
        name, dim = preferences[0].value, preferences[0].dim
        other = estimate(plan_.make(assignment.apply(*preferences)), now.target)
        change = other.step_seconds - now.step_seconds
        sign = "+" if change >= 0 else "-"
        lines.append(
            f'{scope}: with "{axis}" on {name}:{dim} there, a step would take {seconds_text(other.step_seconds)} '
            f"({sign}{seconds_text(abs(change))}), peak {bytes_text(other.peak_bytes)}"
        )
    return lines


def _sites(assignment: Assignment) -> dict[tuple[str, str, ClassId], int]:
    """For each (scope without layer numbers, axis, losing class): the bytes of the results of the ops in conflict.

    Classes that are alike in repeated layers count as the first of them.
    """
    tables, classes = assignment.structure.tables, assignment.classes
    sites: dict[tuple[str, str, ClassId], int] = defaultdict(int)

    def first_of(class_: ClassId) -> ClassId:
        group = assignment.group_of.get(class_)
        return class_ if group is None else group.classes[0]

    for conflict in assignment.conflicts:
        row = tables.rows[conflict.row]
        size = sum(tables.bytes_of[result] for result in row.results)
        for loser in {first_of(ClassId(int(classes.of_factor[factor]))) for factor in conflict.losers}:
            sites[without_numbers(tables.scope(row)), conflict.axis, loser] += size
    return sites

"""Where a pending sum is settled: passed on as long as that saves bytes, else at once.

A tiled reduction factor leaves its result pending. Passing it on pays where pending values meet (the gradients that three
projections send to one input are added first, then reduced once) or shrink (a sum over the rest of the dims). Elsewhere the
earliest place is best: nothing has to be masked, and each op after it keeps its own claim.

Three sweeps: forward, which values could be pending; backward, the least bytes that settling could cost from here on;
and then `plan` walks forward once more and does it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from partir.sharding.assignment import Assignment
from partir.sharding.linear import passing
from partir.sharding.tables import OpRow

Sums = dict[str, str]
"""Pending axes of one value, each with its kind."""


@dataclass(eq=False)
class Passes:
    """`keep[value]`: the axes over which that value stays pending into the op that reads it."""

    keep: dict[int, frozenset[str]]


def decide(assignment: Assignment, axes_of_value: Sequence[frozenset[str]]) -> Passes:
    """Decide for every value over which axes it stays pending. `axes_of_value[v]` are the axes v is cut over."""
    possible = _possible(assignment, axes_of_value)
    return Passes(_worth(assignment, possible, axes_of_value))


def own_sums(assignment: Assignment) -> dict[int, dict[str, str]]:
    """By row: the axes its own cut reduction leaves pending, with the kind. A host callback runs on one device: the others
    have nothing, and the sum is what it returned."""
    atoms, classes = assignment.structure.atoms, assignment.classes
    found: dict[int, dict[str, str]] = {}
    for axis in assignment.mesh.names:
        winners = assignment.winners[axis]
        hit = (winners >= 0) & classes.reduction[winners]
        for row in hit.nonzero()[0].tolist():
            kind = atoms.shapes[row].kind
            assert kind is not None
            found.setdefault(row, {})[axis] = kind
    for position in assignment.structure.tables.host_effects:
        row = assignment.structure.tables.rows[position]
        if row.results:
            kind = "or" if str(row.op.results[0].type).endswith("xi1>") else "add"
            found[position] = dict.fromkeys(assignment.mesh.names, kind)
    return found


def _possible(assignment: Assignment, axes_of_value: Sequence[frozenset[str]]) -> dict[int, Sums]:
    """Values that are pending if everything that may pass is passed, in program order."""
    tables = assignment.structure.tables
    own = own_sums(assignment)
    possible: dict[int, Sums] = {}
    for position, row in enumerate(tables.rows):
        sums = dict(own.get(position, {}))
        candidates = {
            axis: kind
            for view in row.operands
            if view is not None and view.source in possible
            for axis, kind in possible[view.source].items()
        }
        for axis, kind in candidates.items():
            if axis not in sums and may_pass(assignment, position, row, axis, kind, possible, axes_of_value):
                sums[axis] = kind
        if len(set(sums.values())) > 1:
            sums = dict(own.get(position, {}))
        if sums:
            for result in row.results:
                possible[result] = sums
    return possible


def may_pass(
    assignment: Assignment,
    position: int,
    row: OpRow,
    axis: str,
    kind: str,
    pending: dict[int, Sums],
    axes_of_value: Sequence[frozenset[str]],
) -> bool:
    """Whether a row lets its pending operands through on `axis`: it is linear, and the others are whole there.

    A row that has a claim of its own on the axis gives it up only when all its operands are pending.
    """
    flags = [
        view is not None and pending.get(view.source, {}).get(axis) == kind and row.op.name != "sdy.sharding_constraint"
        for view in row.operands
    ]
    if not any(flags) or len(row.results) != 1 or row.captured:
        return False
    for flag, view in zip(flags, row.operands, strict=True):
        if not flag and view is not None and axis in axes_of_value[view.source]:
            return False
    if row.kind != "follow" and assignment.winners[axis][position] >= 0 and not all(flags):
        return False
    return passing(row.op, flags, kind) is not None


def _worth(
    assignment: Assignment, possible: dict[int, Sums], axes_of_value: Sequence[frozenset[str]]
) -> dict[int, frozenset[str]]:
    """Backward: pass a value on where that costs strictly fewer bytes than settling it at once."""
    tables = assignment.structure.tables
    keep: dict[int, set[str]] = {}
    least: dict[tuple[int, str], float] = {}
    for value in reversed(list(possible)):
        devices = assignment.mesh.size_of(*axes_of_value[value]) if axes_of_value[value] else 1
        for axis in possible[value]:
            here = tables.bytes_of[value] / devices
            least[value, axis] = here
            meeting = _meeting(assignment, value, axis, possible)
            if meeting is None:
                continue
            through, result, sharers = meeting
            after = least[result, axis] / sharers
            if after < here:
                least[value, axis] = after
                for passed in through:
                    keep.setdefault(passed, set()).add(axis)
    return {value: frozenset(axes) for value, axes in keep.items()}


REACH = 16
"""How many ops between a value and the op where all its paths meet are looked at."""


def _meeting(assignment: Assignment, value: int, axis: str, possible: dict[int, Sums]) -> tuple[list[int], int, int] | None:
    """The one op through which all that is computed from a pending value goes: (values kept pending, its result, sharers).

    `sharers` counts the pending operands that meet there and are read nowhere else. None if some path leaves the linear part
    first.
    """
    tables = assignment.structure.tables
    through = [value]
    frontier = {value}
    for _ in range(REACH):
        rows = sorted({position for v in frontier for position, _ in tables.uses[v]})
        if not rows or rows[0] < 0:
            return None
        row = tables.rows[rows[0]]
        if len(row.results) != 1 or axis not in possible.get(row.results[0], {}):
            return None
        result = row.results[0]
        read = {view.source for view in row.operands if view is not None}
        done = {v for v in frontier if all(position == rows[0] for position, _ in tables.uses[v])}
        if len(rows) == 1:
            inner = set(through) - {value}
            sharers = sum(
                axis in possible.get(source, {}) and all(position == rows[0] for position, _ in tables.uses[source])
                for source in read - inner
            )
            return through, result, sharers or 1
        frontier = (frontier - (done & read)) | {result}
        through.append(result)
    return None

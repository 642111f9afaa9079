"""Where an unreduced sum is reduced: passed on as long as that saves bytes, else at once.

A tiled reduction factor leaves its result unreduced. Passing it on pays where unreduced values meet (the gradients that three
projections send to one input are added first, then reduced once) or shrink (a sum over the rest of the dims). Elsewhere the
earliest place is best: nothing has to be masked, and each op after it keeps its own claim.

Three sweeps: forward, which values could be unreduced; backward, the least bytes that reducing could cost from here on;
and then `plan` walks forward once more and does it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from partir.sharding.assignment import Assignment
from partir.sharding.linear import passing
from partir.sharding.sums import item_bytes, summed_in
from partir.sharding.tables import OpRow

Sums = dict[str, str]
"""Unreduced axes of one value, each with its kind."""


@dataclass(eq=False)
class Passes:
    """`keep[value]`: the axes over which that value stays unreduced into the op that reads it; `carries[row]`: those over which
    a loop carries a sum unreduced, so that it is reduced once after the loop and not in every round."""

    keep: dict[int, frozenset[str]]
    carries: dict[int, Sums]


def decide(assignment: Assignment, axes_of_value: Sequence[frozenset[str]], own: Mapping[int, Sums]) -> Passes:
    """Decide for every value over which axes it stays unreduced. `axes_of_value[v]` are the axes v is cut over, `own[row]` the
    sums that a row's own cut reduction leaves unreduced."""
    possible = _possible(assignment, axes_of_value, own)
    keep = _worth(assignment, possible, axes_of_value)
    carries: dict[int, Sums] = {}
    for sum_ in assignment.structure.tables.accumulators.values():
        made = assignment.structure.tables.rows[sum_.add].results[0]
        kept = keep.get(sum_.addend, frozenset()) & keep.get(made, frozenset())
        keep[made] = kept
        if kept:
            carries[sum_.carry] = dict.fromkeys(sorted(kept), "add")
    return Passes(keep, carries)


def _possible(assignment: Assignment, axes_of_value: Sequence[frozenset[str]], own: Mapping[int, Sums]) -> dict[int, Sums]:
    """Values that are unreduced if everything that may pass is passed, in program order."""
    tables = assignment.structure.tables
    possible: dict[int, Sums] = {}
    reads, accumulators = tables.reads, tables.accumulators
    for position, row in enumerate(tables.rows):
        if position not in own and not any(source in possible for _, _, source, _ in reads[position]):
            continue
        sums = dict(own.get(position, {}))
        carried = accumulators.get(position)
        if carried is not None and carried.addend in possible:
            possible[carried.argument] = {
                axis: kind
                for axis, kind in possible[carried.addend].items()
                if kind == "add" and assignment.winners[axis][carried.carry] < 0
            }
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
            if carried is not None:
                possible[carried.result] = {a: k for a, k in sums.items() if a in possible.get(carried.argument, {})}
    return possible


def may_pass(
    assignment: Assignment,
    position: int,
    row: OpRow,
    axis: str,
    kind: str,
    unreduced: dict[int, Sums],
    axes_of_value: Sequence[frozenset[str]],
) -> bool:
    """Whether a row lets its unreduced operands through on `axis`: it is linear, and the others are whole there.

    A row that has a claim of its own on the axis gives it up only when all its operands are unreduced.
    """
    flags = [
        view is not None and unreduced.get(view.source, {}).get(axis) == kind and row.op.name != "sdy.sharding_constraint"
        for view in row.operands
    ]
    if not any(flags) or len(row.results) != 1 or row.captured or row.kind in ("carry", "predicate"):
        return False
    for flag, view in zip(flags, row.operands, strict=True):
        if not flag and view is not None and axis in axes_of_value[view.source]:
            return False
    if row.kind != "pass_through" and assignment.winners[axis][position] >= 0 and not all(flags):
        return False
    memo = assignment.structure.memo(assignment.mesh, "passing")
    key = position, kind, *flags
    found = memo.get(key)
    if found is None:
        found = memo[key] = passing(row.op, flags, kind) is not None
    return found


def _worth(
    assignment: Assignment, possible: dict[int, Sums], axes_of_value: Sequence[frozenset[str]]
) -> dict[int, frozenset[str]]:
    """Backward: pass a value on where that costs strictly fewer bytes than reducing it at once."""
    tables = assignment.structure.tables
    keep: dict[int, set[str]] = {}
    least: dict[tuple[int, str], float] = {}
    sums = {tables.rows[a.add].results[0]: a for a in tables.accumulators.values()}

    devices: dict[frozenset[str], int] = {}
    meetings: dict[tuple[int, str], tuple[list[int], int, int] | None] = {}

    asked = assignment.summed_in
    scales: dict[tuple[int, str], float] = {}

    def at_once(value: int, axis: str) -> float:
        axes = axes_of_value[value]
        if axes not in devices:
            devices[axes] = assignment.mesh.size_of(*axes)
        own = tables.bytes_of[value] / devices[axes]
        return own * widening(value, axis) if asked else own

    def widening(value: int, axis: str) -> float:
        """How many times as large as the value is what its sum sends."""
        found = scales.get((value, axis))
        if found is None:
            dtype = summed_in(tables.values[value].type, possible[value].get(axis), (axis,), asked)
            found = scales[value, axis] = item_bytes(dtype) / tables.item_bytes[value] if dtype is not None else 1.0
        return found

    def sweep() -> bool:
        """Whether each value was looked at after all that is made of it."""
        in_order = True
        for value in reversed(list(possible)):
            for axis in possible[value]:
                here = at_once(value, axis)
                least[value, axis] = here
                carried = sums.get(value)
                if carried is not None and axis in possible.get(carried.result, {}):
                    least[value, axis] = least[carried.result, axis] / carried.trips
                    keep.setdefault(value, set()).add(axis)
                    continue
                if (value, axis) not in meetings:
                    meetings[value, axis] = _meeting(assignment, value, axis, possible)
                meeting = meetings[value, axis]
                if meeting is None:
                    continue
                through, result, sharers = meeting
                in_order = in_order and (result, axis) in least
                after = least.get((result, axis), at_once(result, axis)) / sharers
                if after < here:
                    least[value, axis] = after
                    for passed in through:
                        keep.setdefault(passed, set()).add(axis)
        return in_order

    if not sweep():  # a program with its repeated parts taken once (`folded.py`) reads some values before it makes them
        sweep()
    return {value: frozenset(axes) for value, axes in keep.items()}


REACH = 16
"""How many ops between a value and the op where all its paths meet are looked at."""


def _meeting(assignment: Assignment, value: int, axis: str, possible: dict[int, Sums]) -> tuple[list[int], int, int] | None:
    """The one op through which all that is computed from an unreduced value goes: (values kept unreduced, its result, sharers).

    `sharers` counts the unreduced operands that meet there and are read nowhere else. None if some path leaves the linear part
    first.
    """
    tables = assignment.structure.tables
    readers = tables.readers
    first = min(readers[value], default=-1)
    if first < 0 or not _goes_on(tables.rows[first], axis, possible):
        return None  # most end here, before any set is made
    through = [value]
    frontier = {value}
    passed: set[int] = set()
    for _ in range(REACH):
        rows = sorted({position for v in frontier for position in readers[v]} - passed)
        if not rows or rows[0] < 0:
            return None
        row = tables.rows[rows[0]]
        if not _goes_on(row, axis, possible):
            return None
        result = row.results[0]
        read = {view.source for view in row.operands if view is not None}
        if len(rows) == 1:
            inner = set(through) - {value}
            sharers = sum(axis in possible.get(source, {}) and len(readers[source]) == 1 for source in read - inner)
            return through, result, sharers or 1
        passed.add(rows[0])
        frontier = {v for v in frontier if any(position not in passed for position in readers[v])} | {result}
        through.append(result)
    return None


def _goes_on(row: OpRow, axis: str, possible: dict[int, Sums]) -> bool:
    """Whether what a row makes may be unreduced, too."""
    return len(row.results) == 1 and axis in possible.get(row.results[0], {})

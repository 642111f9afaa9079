"""Where an unreduced sum is reduced: passed on as long as that saves bytes, else at once.

A tiled reduction factor leaves its result unreduced. Passing it on pays where unreduced values meet (the gradients that three
projections send to one input are added first, then reduced once) or shrink (a sum over the rest of the dims). Elsewhere the
earliest place is best: nothing has to be masked, and each op after it keeps its own claim.

Three sweeps: forward, which values could be unreduced; backward, the least bytes that reducing could cost from here on; and
then `plan` walks forward once more and does it. Three gradients of 100 bytes, each unreduced over "model":

    ops               s = a + b ; t = s + c ; u = tanh(t)
    forward           a, b, c, s and t could be unreduced; u could not, since tanh of a sum is no sum of tanhs
    backward, t       100 at t itself: what is made of it goes no further
    backward, s       100 at once, or what t costs, shared by s and c that meet there: 50, so s is kept; so is c
    backward, a, b    100 at once, or what s costs, shared by both: 25, so both are kept
    plan              one all_reduce, of t, in place of three
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from partir.sharding.assignment import Assignment
from partir.sharding.indices import Reader, RowIndex, ValueIndex
from partir.sharding.linear import passing
from partir.sharding.sums import item_bytes, summed_in
from partir.sharding.tables import OpRow

Sums = dict[str, str]
"""Unreduced axes of one value, each with its kind."""


@dataclass(eq=False)
class Passes:
    """Which values stay unreduced."""

    keep: dict[ValueIndex, frozenset[str]]
    """By value, the axes over which it stays unreduced into the op that reads it."""
    carries: dict[RowIndex, Sums]
    """By carry row, the axes over which a loop carries a sum unreduced: it is reduced once, after the loop."""


def decide(assignment: Assignment, axes_of_value: Sequence[frozenset[str]], own: Mapping[RowIndex, Sums]) -> Passes:
    """Decide for every value over which axes it stays unreduced. `axes_of_value` [values] are the axes each is cut over,
    `own[row]` the sums that a row's own cut reduction leaves unreduced."""
    possible = _possible(assignment, axes_of_value, own)
    keep = _worth(assignment, possible, axes_of_value)
    carries: dict[RowIndex, Sums] = {}
    for sum_ in assignment.structure.tables.accumulators.values():
        made = assignment.structure.tables.rows[sum_.add].results[0]
        kept = keep.get(sum_.addend, frozenset()) & keep.get(made, frozenset())
        keep[made] = kept
        if kept:
            carries[sum_.carry] = dict.fromkeys(sorted(kept), "add")
    return Passes(keep, carries)


def _possible(
    assignment: Assignment, axes_of_value: Sequence[frozenset[str]], own: Mapping[RowIndex, Sums]
) -> dict[ValueIndex, Sums]:
    """Values that are unreduced if everything that may pass is passed, in program order."""
    tables = assignment.structure.tables
    possible: dict[ValueIndex, Sums] = {}
    reads, accumulators = tables.reads, tables.accumulators
    for position, row in tables.each_row():
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
    position: RowIndex,
    row: OpRow,
    axis: str,
    kind: str,
    unreduced: Mapping[ValueIndex, Sums],
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
    assignment: Assignment, possible: dict[ValueIndex, Sums], axes_of_value: Sequence[frozenset[str]]
) -> dict[ValueIndex, frozenset[str]]:
    """Backward: pass a value on where that costs strictly fewer bytes than reducing it at once."""
    tables = assignment.structure.tables
    keep: dict[ValueIndex, set[str]] = {}
    least: dict[tuple[ValueIndex, str], float] = {}  # the fewest bytes that reducing a value over an axis could cost
    sums = {tables.rows[a.add].results[0]: a for a in tables.accumulators.values()}

    devices: dict[frozenset[str], int] = {}
    meetings: dict[tuple[ValueIndex, str], Meeting | None] = {}

    asked = assignment.summed_in
    scales: dict[tuple[ValueIndex, str], float] = {}

    def at_once(value: ValueIndex, axis: str) -> float:
        """The bytes that a device sends, but for a constant, where a value is reduced as soon as it is made."""
        axes = axes_of_value[value]
        if axes not in devices:
            devices[axes] = assignment.mesh.size_of(*axes)
        own = tables.bytes_of[value] / devices[axes]
        return own * widening(value, axis) if asked else own

    def widening(value: ValueIndex, axis: str) -> float:
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
                result = meeting.result
                in_order = in_order and (result, axis) in least
                after = least.get((result, axis), at_once(result, axis)) / meeting.sharers
                if after < here:
                    least[value, axis] = after
                    for passed in meeting.through:
                        keep.setdefault(passed, set()).add(axis)
        return in_order

    if not sweep():  # a program with its repeated parts taken once (`folded.py`) reads some values before it makes them
        sweep()
    return {value: frozenset(axes) for value, axes in keep.items()}


REACH = 16
"""How many ops between a value and the op where all its paths meet are looked at."""


@dataclass(frozen=True)
class Meeting:
    """The op where all that is computed from an unreduced value comes together again."""

    through: Sequence[ValueIndex]
    """The values on the way, which would stay unreduced: the first one, and those made of it before the op."""
    result: ValueIndex
    """What the op makes."""
    sharers: int
    """How many unreduced operands meet there that are read nowhere else: they share the cost of reducing the result."""


def _meeting(assignment: Assignment, value: ValueIndex, axis: str, possible: dict[ValueIndex, Sums]) -> Meeting | None:
    """Where all that is computed from an unreduced value meets; None if some path leaves the linear part first."""
    tables = assignment.structure.tables
    readers = tables.readers
    first = min(readers[value], default=-1)
    if first < 0 or not _goes_on(tables.rows[first], axis, possible):
        return None  # most end here, before any set is made
    through = [value]
    frontier = {value}  # the values on the way that some op not yet passed reads
    passed: set[Reader] = set()
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
            return Meeting(through, result, sharers or 1)
        passed.add(rows[0])
        frontier = {v for v in frontier if any(position not in passed for position in readers[v])} | {result}
        through.append(result)
    return None


def _goes_on(row: OpRow, axis: str, possible: dict[ValueIndex, Sums]) -> bool:
    """Whether what a row makes may be unreduced, too."""
    return len(row.results) == 1 and axis in possible.get(row.results[0], {})

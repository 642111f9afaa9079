"""Where in a program the things happen that a plan speaks of: in the program itself, or in one that it stands for.

Search plans on a program with its repeated parts taken once (`sharding/folded.py`); kernels and memory are those of the
whole. All answers depend on the two programs alone, so each is found once.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from partir.cost.epilogue import REDUCTIONS
from partir.cost.kernels import Ints, Kernels
from partir.dialect.kinds import MATRIX
from partir.sharding.folded import Folded
from partir.sharding.tables import Tables

PREFETCH = 4
"""How many kernels before its use a gather may start: compilers do not hold many gathered values at once. A result is gathered
when it is there."""


@dataclass(eq=False)
class Places:
    """Where the collectives of one reduction or reshard happen, one entry in each list for each value it stands for: they can
    start after kernel `after`, and kernel `before` waits for them.

    What they make lives from `starts` (`early`, if it is made beside kernels) to `stops`, left out where the value has memory
    anyway, or is a result of the program; `kernels` read it. `interrupted` are kernels that a collective makes two of: they
    make a sum and read it at once (twice where it is else not stored, as it is written first). `reduced` are those of them that
    reduce only after it.
    """

    values: list[int] = field(default_factory=list[int])
    after: list[int] = field(default_factory=list[int])
    before: list[int] = field(default_factory=list[int])
    starts: list[int] = field(default_factory=list[int])
    early: list[int] = field(default_factory=list[int])
    stops: list[int] = field(default_factory=list[int])
    kernels: list[int] = field(default_factory=list[int])
    interrupted: list[int] = field(default_factory=list[int])
    reduced: list[int] = field(default_factory=list[int])


@dataclass(eq=False)
class Unfolding:
    """`row_of`, `value_of` and `result_of` say which row, value and result of the planned program stands for each one of the
    program of `kernels`; -1 for values that are views or made again at each use."""

    kernels: Kernels
    planned: Tables
    row_of: Ints
    value_of: Ints
    result_of: Ints
    _stored: list[int] | None = None

    def __post_init__(self) -> None:
        self.waits_for_none = _waits_for_none(self.kernels.tables)

    @classmethod
    def itself(cls, kernels: Kernels) -> Unfolding:
        """Of plans of the program itself."""
        tables = kernels.tables
        rows, values, results = (np.arange(len(x), dtype=np.int64) for x in (tables.rows, tables.values, tables.outputs))
        return cls(kernels, tables, rows, values, results)

    @classmethod
    def of(cls, kernels: Kernels, folded: Folded) -> Unfolding:
        """Of plans of a program with its repeated parts taken once."""
        return cls(kernels, folded.structure.tables, folded.row_of, folded.value_of, folded.result_of)

    @cached_property
    def rows(self) -> dict[int, list[int]]:
        """The rows of the program by the one that stands for them."""
        return _inverse(self.row_of)

    @cached_property
    def values(self) -> dict[int, list[int]]:
        """The values of the program by the one that stands for them."""
        return _inverse(self.value_of)

    @cached_property
    def results(self) -> dict[int, list[int]]:
        """The results of the program by the one that stands for them."""
        return _inverse(self.result_of)

    def stored(self, values: list[int]) -> list[int]:
        """The planned values that stand for these, each once."""
        if self._stored is None:
            self._stored = sorted(set(self.value_of[values].tolist()) - {-1})
        return self._stored

    def apart(self, places: Places) -> tuple[Places, Places]:
        """The places of sums that wait for no other, and the rest."""
        known = self._apart.get(id(places))
        if known is None:
            parts = Places(), Places()
            for value, after, before in zip(places.values, places.after, places.before, strict=True):
                part = parts[not self.waits_for_none[value]]
                part.values.append(value)
                part.after.append(after)
                part.before.append(before)
            known = self._apart[id(places)] = places, parts
        return known[1]

    @cached_property
    def _apart(self) -> dict[int, tuple[Places, tuple[Places, Places]]]:
        return {}

    @cached_property
    def _reduced(self) -> dict[int, Places]:
        return {}

    @cached_property
    def _read(self) -> dict[object, Places]:
        return {}

    def reduced(self, value: int) -> Places:
        """Where the sums that a value stands for are reduced: a value is there when its kernel has run."""
        found = self._reduced.get(value)
        if found is None:
            found = self._reduced[value] = Places()
            lists, tables = self.kernels.lists, self.kernels.tables
            for own in self.values[value]:
                home, row = lists.home[own], tables.producer[own]
                after = lists.maker[home] if lists.maker[home] >= 0 else lists.first[row]
                if tables.rows[row].kind == "carry":
                    after = lists.last[row]
                if lists.maker[home] < 0 and lists.born[home] < 0:
                    found.starts.append(after)
                    found.stops.append(max(after, lists.ends[home]))
                interrupted = self._interrupted(own, lists.maker[home], after)
                found.interrupted += interrupted
                found.reduced += [k for k in set(interrupted) if self._reduces_after(k, {r for r, _ in tables.uses[own]})]
                found.values.append(own)
                found.after.append(after)
                found.before.append(max(after + 1, lists.wanted[home]))
        return found

    def _interrupted(self, value: int, maker: int, after: int) -> list[int]:
        """The kernel that makes a sum and reads it at once: once where it stores the value, else twice."""
        kernels, tables = self.kernels, self.kernels.tables
        if tables.rows[tables.producer[value]].kind == "carry":
            return []
        if maker < 0:
            return [after, after]
        return [maker] if any(row >= 0 and maker in kernels.of_row[row] for row, _ in tables.uses[value]) else []

    def _reduces_after(self, kernel: int, rows: set[int]) -> bool:
        """Whether a kernel reduces what some of its rows make."""
        tables, after = self.kernels.tables, set[int]()
        for position in self.kernels.rows_of[kernel]:
            row = tables.rows[position]
            if position in rows or any(view is not None and view.source in after for view in row.operands):
                if row.op.name in REDUCTIONS:
                    return True
                after.update(row.results)
        return False

    def read(self, value: int, region: int, uses: tuple[tuple[int, int], ...], without: frozenset[int] = frozenset()) -> Places:
        """Where what a value stands for (but `without` some) is brought to another layout for some uses, in a region: from the
        first to the last."""
        key = value, region, uses, without
        found = self._read.get(key)
        if found is None:
            found = self._read[key] = Places()
            lists = self.kernels.lists
            readers: dict[int, list[tuple[int, int]]] = {}
            for row, slot in uses:
                for own_row, own_value in self._instances(row, slot, value):
                    readers.setdefault(own_value, []).append((own_row, slot))
            for own, own_uses in readers.items():
                if own in without:
                    continue
                start, stop, leaves = self._extent(region, own_uses)
                maker = lists.maker[lists.home[own]]
                found.after.append(maker if start >= self.kernels.count else max(maker, start - 1 - PREFETCH))
                if not leaves:
                    found.starts.append(start)
                    found.early.append(min(start, found.after[-1] + 1))
                    found.stops.append(stop)
                found.values.append(own)
                found.before.append(start)
                found.kernels += {k for row, _ in own_uses if row >= 0 for k in self.kernels.of_row[row]}
        return found

    def _instances(self, row: int, slot: int, value: int) -> list[tuple[int, int]]:
        """The (row, value) pairs of the program where operand `slot` of a row reads what `value` stands for."""
        tables = self.kernels.tables
        if row < 0:
            own = [(-1 - r, tables.outputs[r]) for r in self.results[-1 - row]]
            return [(r, view.source) for r, view in own if view is not None]
        if slot < 0:
            return [(r, v) for r in self.rows[row] for v in tables.rows[r].captured if self.value_of[v] == value]
        reads = [(r, tables.rows[r].operands[slot]) for r in self.rows[row]]
        return [(r, view.source) for r, view in reads if view is not None]

    def _extent(self, within: int, uses: list[tuple[int, int]]) -> tuple[int, int, bool]:
        """The first and last kernel that reads; and whether a result of the program does."""
        lists, tables, end = self.kernels.lists, self.kernels.tables, self.kernels.count
        start, stop, leaves = end, 0, False
        for row, slot in uses:
            if row < 0:
                leaves = True
                continue
            own = tables.rows[row]
            first, last = lists.first[row], lists.last[row]
            if slot == 1 and own.kind == "carry" and len(own.results) == 3:
                first = last
            region = own.region
            while region != within and region:
                first, last = min(first, self.kernels.span[region][0]), max(last, self.kernels.span[region][1])
                region = tables.parent[region]
            start, stop = min(start, first), max(stop, last)
        return start, end if leaves else max(start, stop), leaves

    @cached_property
    def boundary(self) -> list[Boundary]:
        """Results of the program that are alike, by the planned one that stands for them."""
        tables, home = self.kernels.tables, self.kernels.lists.home
        found: list[Boundary] = []
        for planned, own in self.results.items():
            views = [tables.outputs[r] for r in own]
            homes = [home[view.source] for view in views if view is not None]
            leaf = tables.program.signature.results[own[0]]
            found.append(Boundary(planned, len(own), leaf.dtype, homes, leaf.memory))
        return found

    @cached_property
    def arguments(self) -> list[tuple[int, int, int, str, str]]:
        """(planned argument, how many it stands for, how many of them are donated, dtype, kind of memory)."""
        leaves = self.kernels.tables.program.signature.arguments
        counts: dict[int, list[int]] = {}
        for leaf, planned in zip(leaves, self.value_of.tolist(), strict=False):
            own = counts.setdefault(planned, [0, 0])
            own[0] += 1
            own[1] += leaf.donated
        types = [(leaf.dtype, leaf.memory) for leaf in self.planned.program.signature.arguments]
        return [(planned, total, donated, *types[planned]) for planned, (total, donated) in counts.items()]


@dataclass(frozen=True)
class Boundary:
    """Results that one planned result stands for: how many, of which type, the values whose memory they are, and the kind of
    memory that they are left in."""

    planned: int
    count: int
    dtype: str
    homes: list[int]
    memory: str = ""


def _waits_for_none(tables: Tables) -> list[bool]:
    """By value of the program, whether no contraction is computed of it: gradients, and sums for results. Sums of those do not
    wait for each other, so a compiler sends them together."""
    feeds = [False] * len(tables.values)
    found = True
    while found:  # a body hands back what it reads
        found = False
        for row in reversed(tables.rows):
            if row.op.name in MATRIX or any(feeds[result] for result in row.results):
                for value in (*(view.source for view in row.operands if view is not None), *row.captured):
                    found = found or not feeds[value]
                    feeds[value] = True
    return [not feed for feed in feeds]


def _inverse(of: Ints) -> dict[int, list[int]]:
    found: dict[int, list[int]] = {}
    for larger, smaller in enumerate(of.tolist()):
        found.setdefault(smaller, []).append(larger)
    return found

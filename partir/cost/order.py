"""The order in which kernels run: that of the program, but whatever frees more memory than it takes runs as soon as it can.

So an optimizer updates each parameter when its gradient is there, and gradients do not pile up; XLA schedules alike for CPU and
TPU. For GPUs it keeps the order of the program, and does last what nothing waits for, as gradients arrive.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from partir.sharding.tables import Control, RegionItems, Tables


@dataclass(eq=False)
class _Item:
    """A kernel, or a control with all that is in it; `key` is its place in the program."""

    key: int
    kernel: int = -1
    control: Control | None = None
    reads: set[int] = field(default_factory=set[int])
    writes: set[int] = field(default_factory=set[int])


def order_of(
    tables: Tables,
    home: Sequence[int],
    roots: Sequence[Sequence[int]],
    reads: Sequence[set[int]],
    writes: Sequence[set[int]],
    frees: bool,
) -> tuple[list[int], list[tuple[int, int]], list[int]]:
    """Kernels in the order they run, the range of places of each region, and the region of each place. `frees`: whether what
    frees memory runs early."""
    return _Scheduler(tables, home, roots, reads, writes, frees).run()


class _Scheduler:
    def __init__(
        self,
        tables: Tables,
        home: Sequence[int],
        roots: Sequence[Sequence[int]],
        reads: Sequence[set[int]],
        writes: Sequence[set[int]],
        frees: bool,
    ) -> None:
        self.tables, self.home = tables, home
        self.reads, self.writes = reads, writes
        self.kernel_of = {position: kernel for kernel, own in enumerate(roots) for position in own}
        self.last_root = [max(own) for own in roots]
        self.frees = frees
        self.ordered: list[int] = []
        self.region: list[int] = []
        self.span = [(0, 0)] * len(tables.parent)
        donated = {result for _, result in _paired(tables)}
        self.in_place = {home[view.source] for r, view in enumerate(tables.outputs) if view is not None and r in donated}

    def run(self) -> tuple[list[int], list[tuple[int, int]], list[int]]:
        self.place(self.tables.root)
        return self.ordered, self.span, self.region

    def place(self, region: RegionItems) -> None:
        begin = len(self.ordered)
        self.schedule(self.items(region), region.number)
        self.span[region.number] = begin, max(begin, len(self.ordered) - 1)

    def items(self, region: RegionItems) -> list[_Item]:
        found: list[_Item] = []
        for item in region.items:
            if isinstance(item, Control):
                reads, writes = self.touched(item)
                key = max(item.carries, default=item.predicate or 0) if not item.regions else self.first_row(item)
                if item.regions:
                    found.append(_Item(key, control=item, reads=reads, writes=writes))
            elif item in self.kernel_of:
                kernel = self.kernel_of[item]
                if item == self.last_root[kernel]:
                    found.append(_Item(item, kernel, None, self.reads[kernel], self.writes[kernel]))
        return found

    def first_row(self, control: Control) -> int:
        rows = [*control.carries, *([] if control.predicate is None else [control.predicate])]
        return min(rows) if rows else 0

    def touched(self, control: Control) -> tuple[set[int], set[int]]:
        """What a control and everything in it reads from outside, and what it makes."""
        rows = self.tables.rows
        reads: set[int] = set()
        writes: set[int] = set()
        for position in (*control.carries, *([] if control.predicate is None else [control.predicate])):
            row = rows[position]
            reads |= {self.home[view.source] for view in row.operands if view is not None}
            writes |= {self.home[value] for value in row.results}
        for region in control.regions:
            for item in region.items:
                if isinstance(item, Control):
                    inner = self.touched(item)
                    reads, writes = reads | inner[0], writes | inner[1]
                elif item in self.kernel_of:
                    reads |= self.reads[self.kernel_of[item]]
                    writes |= self.writes[self.kernel_of[item]]
        return reads - writes, writes

    def schedule(self, items: list[_Item], region: int) -> None:
        readers: dict[int, list[_Item]] = {}
        made_by: dict[int, _Item] = {}
        for item in items:
            for value in item.writes:
                made_by.setdefault(value, item)
        waits: dict[int, int] = {}
        for item in items:
            needs = {id(made_by[v]) for v in item.reads if v in made_by and made_by[v] is not item}
            waits[id(item)] = len(needs)
            for value in item.reads:
                readers.setdefault(value, []).append(item)
        after: dict[int, list[_Item]] = {}
        for item in items:
            for maker in {id(made_by[v]): made_by[v] for v in item.reads if v in made_by and made_by[v] is not item}.values():
                after.setdefault(id(maker), []).append(item)
        left = {value: len(own) for value, own in readers.items()}
        for view in self.tables.outputs if region == 0 else ():
            if view is not None:
                left[self.home[view.source]] = len(items) + 1
        done: set[int] = set()
        size = self.tables.bytes_of

        def gain(item: _Item) -> int:
            freed = sum(size[v] for v in item.reads if left[v] == 1 and v in made_by)
            return freed - sum(size[v] for v in item.writes if v not in self.in_place)

        def run(item: _Item) -> list[_Item]:
            done.add(id(item))
            if item.control is not None:
                for inner in item.control.regions:
                    self.place(inner)
            else:
                self.ordered.append(item.kernel)
                self.region.append(region)
            woken: list[_Item] = []
            for follower in after.get(id(item), ()):
                waits[id(follower)] -= 1
                woken.append(follower)
            for value in item.reads:
                left[value] -= 1
                if left[value] == 1:
                    woken += [reader for reader in readers[value] if id(reader) not in done]
            return woken

        def place_of(item: _Item) -> tuple[bool, int, int]:
            """In the order of the program; but what nothing waits for last, in the order in which what it reads is there."""
            last = not self.frees and region == 0 and item.control is None and id(item) not in after
            ready = max((made_by[value].key for value in item.reads if value in made_by), default=-1)
            return last, ready if last else item.key, item.key

        for item in sorted(items, key=place_of):
            woken = [item]
            first = True
            while woken:
                ready = woken.pop()
                if id(ready) in done:
                    continue
                if first or (self.frees and waits[id(ready)] == 0 and ready.control is None and gain(ready) >= 0):
                    first = False
                    woken += run(ready)


def _paired(tables: Tables) -> list[tuple[int, int]]:
    """(argument, result) pairs of state whose argument is donated: the result takes its memory."""
    signature = tables.program.signature
    return [(a, r) for a, r in signature.state if signature.arguments[a].donated]

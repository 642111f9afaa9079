"""The kernels a compiler makes of a program: which ops are one, what each reads and writes, and in which order they run.

Known before any decision: it depends on the program and on what the target's compiler fuses, not on how values lie. As XLA
does: pointwise ops are computed again in each kernel that reads them and never stored; contractions, reductions and whatever
moves rows by index store their results, with the pointwise ops that alone read them done on the way out; updates that are
stored and read by further updates of the same shape (an optimizer's) are one kernel.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from partir.cost.bf16_operands import narrow_values, narrowed_in_loops
from partir.cost.epilogue import REDUCTIONS, absorbed, reduced_of
from partir.cost.fusing import Fusing
from partir.cost.order import order_of
from partir.dialect.kinds import MATRIX, is_pointwise
from partir.sharding.rule import shape_of
from partir.sharding.tables import OpRow, Tables

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]

MOVED = frozenset(
    f"stablehlo.{name}" for name in ("convert", "slice", "dynamic_slice", "pad", "concatenate", "reverse", "reduce_precision")
)
"""Ops that are done in the kernel that reads them, as pointwise ones are."""

NAMES_ONLY = frozenset({"partir.tag", "sdy.sharding_constraint", "stablehlo.reshape"})
"""Ops whose result is their operand's memory."""

SLICES = frozenset({"stablehlo.slice", "stablehlo.dynamic_slice", "stablehlo.gather"})
"""Ops that read a part of their first operand."""

FUSION_LIMIT = 96
"""How many ops may be computed again for one value in each of several kernels; beyond, it is stored."""


READ_AGAIN = 2.5
"""What several kernels read is stored when computing it again reads more than this many times its bytes. XLA computes the
gradient of a softmax again from two values of its size, and stores the gradient of a residual sum, which takes three."""


@dataclass(eq=False)
class Lists:
    """Arrays of `Kernels` as lists."""

    home: list[int]
    maker: list[int]
    first: list[int]
    last: list[int]
    born: list[int]
    ends: list[int]
    wanted: list[int]
    label: list[int]


@dataclass(eq=False)
class Kernels:
    """Kernels of a program, numbered in the order in which they run; K of them, R rows and V values in the tables.

    `home[v]` is the value whose memory v is (itself, mostly); `maker[v]` the kernel that writes v, -1 where none does.
    `parts` are (kernel, row) pairs of what is computed where, `reads` (kernel, value) pairs of what is read from memory.
    Of a value that is only sliced or updated in place, `read_share` and `written_share[v]` say which part is touched.
    `first[r]`, `last[r]`: the first and last kernel that computes row r. `is_loop[k]`: whether a kernel has neither a
    contraction nor a reduction, so that it can write over what it reads. `span[g]` is the range of kernels of region g.
    `born[v]`: the kernel at which the memory of v is taken, -1 for arguments and for what shares another's; `ends[v]`: the
    last kernel that reads v, `wanted[v]` the first (K where none does); `over[v]`: the value whose memory v may take, as it
    dies there. `label[k]`: the row that a kernel is named after. `narrow[v]`: whether v is stored as bf16 for f32; `copies` are
    (value, first, last kernel) of such copies.
    """

    tables: Tables
    fusing: Fusing
    count: int
    region: Ints
    home: Ints
    maker: Ints
    parts: tuple[Ints, Ints]
    reads: tuple[Ints, Ints]
    read_share: Floats
    written_share: Floats
    first: Ints
    last: Ints
    is_loop: npt.NDArray[np.bool_]
    span: list[tuple[int, int]]
    born: Ints
    ends: Ints
    wanted: Ints
    over: Ints
    label: Ints
    narrow: npt.NDArray[np.bool_]
    copies: list[tuple[int, int, int]]

    @cached_property
    def times(self) -> Floats:
        """How often each kernel runs in one step."""
        by_region = np.array([self.tables.times(g) for g in self.tables.regions], dtype=np.float64)
        return by_region[self.region]

    @cached_property
    def touched_before(self) -> Ints:
        """For each of `reads` the kernel that touched the value last, -1 where none did or it stands in another region."""
        kernel, value = self.reads
        order = np.lexsort((kernel, value))
        found = self.maker[value]
        again = np.flatnonzero(value[order][1:] == value[order][:-1])
        found[order[again + 1]] = kernel[order[again]]
        found[(found >= 0) & (self.region[found] != self.region[kernel])] = -1
        return found

    @cached_property
    def made_inside(self) -> npt.NDArray[np.bool_]:
        """Whether each value is made by a kernel, and read by kernels alone."""
        found = np.zeros(len(self.maker), dtype=np.bool_)
        found[self.reads[1]] = True
        return found & (self.maker >= 0) & (self.born >= 0) & (self.ends < self.span[0][1])

    @cached_property
    def lists(self) -> Lists:
        """The same as lists, which are faster to read one by one."""
        arrays = self.home, self.maker, self.first, self.last, self.born, self.ends, self.wanted, self.label
        return Lists(*(array.tolist() for array in arrays))

    @cached_property
    def counted(self) -> Ints:
        """The first kernel that computes each row, -1 where none does: there its operations are counted."""
        found = np.full(len(self.tables.rows), -1, dtype=np.int64)
        kernel, row = self.parts
        found[row[::-1]] = kernel[::-1]
        return found

    @cached_property
    def rows_of(self) -> list[list[int]]:
        """The rows that each kernel computes, in the order of the program."""
        found: list[list[int]] = [[] for _ in range(self.count)]
        kernel, row = self.parts
        for at in np.argsort(row, kind="stable").tolist():
            found[kernel[at]].append(int(row[at]))
        return found

    @cached_property
    def of_row(self) -> list[list[int]]:
        """The kernels that compute each row."""
        found: list[list[int]] = [[] for _ in self.tables.rows]
        for kernel, row in zip(*(ends.tolist() for ends in self.parts), strict=True):
            found[row].append(kernel)
        return found


def build(tables: Tables, fusing: Fusing) -> Kernels:
    """Find the kernels of a program, in one pass backward (what is stored) and one forward (who reads it)."""
    return _Builder(tables, fusing).run()


class _Builder:
    def __init__(self, tables: Tables, fusing: Fusing) -> None:
        self.tables = tables
        self.fusing = fusing
        self.home = self._homes()
        self.consumers = self._consumers()
        self.fusible = [self._is_fusible(row) for row in tables.rows]

    def run(self) -> Kernels:
        self.absorbed = absorbed(self.tables, self.home, self.consumers, self.fusible, self.fusing.into_matrix)
        self.stored, self.through = self._stored()
        kernels = self._roots()
        parts, reads = self._contents(kernels)
        merged = self._merged(kernels, parts, reads)
        return self._finished(*merged)

    # what a value's memory is

    def _homes(self) -> list[int]:
        tables = self.tables
        home = list(range(len(tables.values)))
        loops = {position for control in tables.controls if len(control.regions) == 2 for position in control.carries}
        for position, row in enumerate(tables.rows):
            view = row.operands[0] if row.operands else None
            if row.kind == "carry":
                if row.is_invariant and view is not None:
                    for result in row.results:
                        home[result] = home[view.source]
                elif position in loops and len(row.results) == 3:
                    home[row.results[0]] = home[row.results[1]] = row.results[2]
                elif len(row.results) == len(row.operands) == 1 and view is not None:
                    home[row.results[0]] = home[view.source]
            elif (row.op.name in NAMES_ONLY and view is not None) or (
                row.op.name == "stablehlo.dynamic_update_slice" and view is not None
            ):
                home[row.results[0]] = home[view.source]
        return home

    def _consumers(self) -> list[list[tuple[int, int]]]:
        """By home, the (row, slot) pairs that read it; names of a value pass its readers on; outputs are row -1 - r."""
        found: list[list[tuple[int, int]]] = [[] for _ in self.tables.values]
        renames = {
            position
            for position, row in enumerate(self.tables.rows)
            if row.op.name in NAMES_ONLY
            or row.is_invariant
            or (row.kind == "carry" and len(row.results) == len(row.operands) == 1)
        }
        for value, uses in enumerate(self.tables.uses):
            found[self.home[value]] += [use for use in uses if use[0] not in renames]
        return found

    def _is_fusible(self, row: OpRow) -> bool:
        if row.kind in ("carry", "predicate") or len(row.results) != 1 or row.op.name in NAMES_ONLY:
            return False
        return (is_pointwise(row.op) or row.op.name in MOVED) and any(view is not None for view in row.operands)

    def _same_size(self, a: int, b: int) -> bool:
        shapes = self.tables.shapes
        return math.prod(shapes[a]) == math.prod(shapes[b])

    # which values are stored

    def _stored(self) -> tuple[set[int], set[int]]:
        """Values that are written to memory; and those that only leave the program, which readers compute again."""
        tables = self.tables
        stored: set[int] = set()
        through: set[int] = set()
        weight: dict[int, int] = {}
        reads: dict[int, frozenset[int]] = {}
        chained = set(self.absorbed.values())
        size = tables.bytes_of
        for position, row in enumerate(tables.rows):
            if row.kind in ("carry", "predicate") or row.op.name in NAMES_ONLY or position in self.absorbed:
                continue
            if not self.fusible[position] or position in chained:
                stored.update(row.results)
                continue
            value = row.results[0]
            sources = {self.home[view.source] for view in row.operands if view is not None}
            weight[value] = 1 + sum(weight.get(source, 0) for source in sources)
            read = frozenset[int]().union(*(reads.get(source, frozenset({source})) for source in sources))
            why = self._why_stored(value)
            if not why and len({reader for reader, _ in self.consumers[value]}) > 1:
                costly = sum(size[source] for source in read) > READ_AGAIN * size[value]
                why = "needed" if costly or weight[value] > FUSION_LIMIT else ""
            if why:
                stored.add(value)
            if why == "leaves":
                through.add(value)
            if why != "needed":
                reads[value] = read
            else:
                weight[value] = 0
        return stored, through

    def _why_stored(self, value: int) -> str:
        """ "needed" where some reader reads memory; "leaves" where only the program's results do, beside pointwise readers."""
        why = ""
        for reader, slot in self.consumers[value]:
            if reader < 0:
                why = why or "leaves"
                continue
            row = self.tables.rows[reader]
            if self.fusible[reader] or row.op.name in REDUCTIONS:
                continue
            if row.op.name in MATRIX and self.fusing.into_matrix:
                continue
            if row.op.name == "stablehlo.dynamic_update_slice" and slot == 1:
                continue
            return "needed"
        return why

    # kernels: a root row each

    def _roots(self) -> dict[int, int]:
        """The kernel of each row that stores a result: rows of one chain on the way out have the kernel of the last."""
        rows = self.tables.rows
        kernel_of: dict[int, int] = {}
        for position, row in enumerate(rows):
            if row.kind in ("carry", "predicate") or row.op.name in NAMES_ONLY:
                continue
            if position in self.absorbed:
                continue
            if any(value in self.stored for value in row.results) or not row.results:
                kernel_of[position] = len(kernel_of)
        return kernel_of

    def _contents(self, kernel_of: dict[int, int]) -> tuple[list[set[int]], list[set[int]]]:
        """For each kernel the rows it computes and the homes it reads."""
        rows, home = self.tables.rows, self.home
        inner: dict[int, tuple[frozenset[int], frozenset[int]]] = {}
        producer = self.tables.producer

        def of(row: OpRow, position: int) -> tuple[frozenset[int], frozenset[int]]:
            """Rows computed and homes read for one row, given those of what it reads."""
            computed: set[int] = {position}
            read: set[int] = set()
            for view in row.operands:
                if view is None:
                    continue
                source = home[view.source]
                made = producer[source]
                known = inner.get(made) if made >= 0 else None
                if known is not None and (source not in self.stored or source in self.through):
                    computed |= known[0]
                    read |= known[1]
                else:
                    read.add(source)
            for value in row.captured:
                read.add(home[value])
            return frozenset(computed), frozenset(read)

        for position, row in enumerate(rows):
            if row.kind in ("carry", "predicate") or row.op.name in NAMES_ONLY:
                continue
            if self.fusible[position] or position in self.absorbed or position in kernel_of:
                inner[position] = of(row, position)
        parts: list[set[int]] = [set() for _ in kernel_of]
        reads: list[set[int]] = [set() for _ in kernel_of]
        for position, kernel in kernel_of.items():
            computed, read = inner[position]
            parts[kernel] |= computed
            reads[kernel] |= read
        return parts, reads

    def _merged(
        self, kernel_of: dict[int, int], parts: list[set[int]], reads: list[set[int]]
    ) -> tuple[list[list[int]], list[set[int]], list[set[int]]]:
        """Kernels of several results: updates that read each other, and reductions of nothing but what a kernel just made."""
        rows = self.tables.rows
        parent = list(range(len(parts)))

        def find(k: int) -> int:
            while parent[k] != k:
                parent[k] = parent[parent[k]]
                k = parent[k]
            return k

        root_of = {kernel: position for position, kernel in kernel_of.items()}
        for kernel, computed in enumerate(parts):
            row = rows[root_of[kernel]]
            for position in computed:
                other = kernel_of.get(position)
                if other is None or other == kernel or rows[position].results[0] not in self.through:
                    continue
                if self.fusible[root_of[kernel]] and self._same_size(row.results[0], rows[position].results[0]):
                    parent[find(kernel)] = find(other)
            if row.op.name in REDUCTIONS or self._ends_reduction(root_of[kernel]):
                made = kernel_of.get(reduced_of(self.tables, computed, reads[kernel]))
                if made is not None and rows[root_of[made]].region == row.region and self._can_reduce(root_of[made]):
                    parent[find(kernel)] = find(made)
        members: dict[int, list[int]] = {}
        for kernel in range(len(parts)):
            members.setdefault(find(kernel), []).append(kernel)
        roots: list[list[int]] = []
        all_parts: list[set[int]] = []
        all_reads: list[set[int]] = []
        for group in members.values():
            own = sorted(root_of[k] for k in group)
            written = {self.home[v] for position in own for v in rows[position].results}
            roots.append(own)
            all_parts.append(set[int]().union(*(parts[k] for k in group)))
            all_reads.append(set[int]().union(*(reads[k] for k in group)) - written)
        return roots, all_parts, all_reads

    def _ends_reduction(self, position: int) -> bool:
        return any(
            self.absorbed.get(chain) == position and self.tables.rows[chain].op.name in REDUCTIONS
            for chain in self._into.get(position, ())
        )

    @cached_property
    def _into(self) -> dict[int, list[int]]:
        found: dict[int, list[int]] = {}
        for chain, into in self.absorbed.items():
            found.setdefault(into, []).append(chain)
        return found

    def _can_reduce(self, position: int) -> bool:
        """Whether a kernel can reduce what it makes: pointwise ones can, contractions where they take pointwise ops."""
        if self.tables.rows[position].op.name in MATRIX:
            return self.fusing.into_matrix
        return self.fusible[position]

    # numbers

    def _finished(self, roots: list[list[int]], parts: list[set[int]], reads: list[set[int]]) -> Kernels:
        tables, home = self.tables, self.home
        writes = [{home[v] for position in own for v in tables.rows[position].results if v in self.stored} for own in roots]
        is_loop = [self._is_loop(computed) for computed in parts]
        narrow = np.zeros(len(tables.values), dtype=np.bool_)
        in_loops: list[tuple[int, list[int]]] = []
        if self.fusing.narrow_operands:
            narrow = narrow_values(tables, home, self.consumers, list(zip(roots, parts, strict=True)))
            in_loops = narrowed_in_loops(tables, home, self.consumers, narrow)
        ordered, span, region = order_of(self.tables, home, roots, reads, writes, self.fusing.frees_early)
        place = np.empty(len(roots), dtype=np.int64)
        place[ordered] = np.arange(len(roots))
        maker = np.full(len(tables.values), -1, dtype=np.int64)
        first = np.full(len(tables.rows), -1, dtype=np.int64)
        last = np.full(len(tables.rows), -1, dtype=np.int64)
        part_pairs: list[tuple[int, int]] = []
        read_pairs: list[tuple[int, int]] = []
        read_share: list[float] = []
        for old in ordered:
            k = int(place[old])
            for value in writes[old]:
                if maker[value] < 0:
                    maker[value] = k
            for row in parts[old]:
                part_pairs.append((k, row))
                first[row] = k if first[row] < 0 else min(first[row], k)
                last[row] = max(last[row], k)
            for value in reads[old]:
                read_pairs.append((k, value))
                read_share.append(self._share(parts[old], value))
        self._place_controls(first, last, span)
        ends = self._ends(first, last, span, maker)
        over = self._over([roots[o] for o in ordered], [reads[o] for o in ordered], [is_loop[o] for o in ordered], ends)
        born = self._born(maker, last, span, ends, over)
        return Kernels(
            tables,
            self.fusing,
            len(roots),
            np.array(region, dtype=np.int64),
            np.array(home, dtype=np.int64),
            maker,
            _pairs(part_pairs),
            _pairs(read_pairs),
            np.array(read_share, dtype=np.float64),
            self._written(),
            first,
            last,
            np.array([is_loop[o] for o in ordered], dtype=np.bool_),
            span,
            born,
            ends,
            self._wanted(first, maker, len(roots)),
            over,
            np.array([self._label(roots[o], parts[o]) for o in ordered], dtype=np.int64),
            narrow,
            [(v, min(span[g][0] for g in regions), max(span[g][1] for g in regions)) for v, regions in in_loops],
        )

    def _share(self, computed: set[int], value: int) -> float:
        """The part of a value that a kernel reads: all of it, unless it takes slices or rows."""
        if value not in self.sliced:
            return 1.0
        share = 0.0
        whole = max(1, math.prod(self.tables.shapes[value]))
        for reader, slot in self.consumers[value]:
            if reader in computed:
                row = self.tables.rows[reader]
                part = math.prod(shape_of(row.op.results[0].type)) if row.op.results else whole
                share = max(share, min(1.0, part / whole) if row.op.name in SLICES and slot == 0 else 1.0)
        return share or 1.0

    @cached_property
    def sliced(self) -> set[int]:
        """The values that some row takes slices or rows of."""
        rows = [row for row in self.tables.rows if row.op.name in SLICES]
        return {self.home[view.source] for row in rows if (view := row.operands[0]) is not None}

    def _written(self) -> Floats:
        """The part of each value that the kernel which makes it writes."""
        share = np.ones(len(self.tables.values))
        for row in self.tables.rows:
            if row.op.name == "stablehlo.dynamic_update_slice":
                update, whole = (math.prod(shape_of(v.type)) for v in (row.op.operands[1], row.op.operands[0]))
                share[self.home[row.results[0]]] = update / max(1, whole)
        return share

    def _label(self, own: list[int], computed: set[int]) -> int:
        """The contraction of a kernel, else its reduction, else what it stores last."""
        rows = self.tables.rows
        for names in (MATRIX, REDUCTIONS):
            heavy = [position for position in computed if rows[position].op.name in names]
            if heavy:
                return max(heavy)
        return own[-1]

    def _is_loop(self, computed: set[int]) -> bool:
        heavy = MATRIX | REDUCTIONS
        return all(self.fusible[row] and self.tables.rows[row].op.name not in heavy for row in computed)

    def _place_controls(self, first: Ints, last: Ints, span: list[tuple[int, int]]) -> None:
        """A carry is read when its loop begins, and what the body hands back when it ends; names stand where they are made."""
        tables = self.tables
        for control in tables.controls:
            begin = min((span[region.number][0] for region in control.regions), default=-1)
            end = max((span[region.number][1] for region in control.regions), default=-1)
            for position in (*control.carries, *([] if control.predicate is None else [control.predicate])):
                first[position], last[position] = begin, end
        for position, row in enumerate(tables.rows):
            if first[position] >= 0:
                continue
            made = [p for view in row.operands if view is not None and (p := tables.producer[self.home[view.source]]) >= 0]
            first[position] = last[position] = max((int(last[p]) for p in made), default=0)

    def _ends(self, first: Ints, last: Ints, span: list[tuple[int, int]], maker: Ints) -> Ints:
        """The last kernel that reads each home. What a loop reads from outside is kept until it ends; what a program returns,
        to its end."""
        tables = self.tables
        total = span[0][1]
        ends = maker.copy()
        for value, uses in enumerate(tables.uses):
            own = self.home[value]
            for reader, slot in uses:
                if reader < 0:
                    ends[own] = max(ends[own], total)
                    continue
                row = tables.rows[reader]
                if row.op.name in NAMES_ONLY:
                    continue
                at = int(first[reader]) if row.kind == "carry" and slot == 0 and len(row.results) == 3 else int(last[reader])
                region, outer = row.region, tables.region_of[own]
                while region != outer and tables.is_inside(region, outer):
                    at = max(at, span[region][1])
                    region = tables.parent[region]
                ends[own] = max(ends[own], at)
        return ends

    def _born(self, maker: Ints, last: Ints, span: list[tuple[int, int]], ends: Ints, over: Ints) -> Ints:
        """Where memory is taken: that of a carried value when its loop begins. What the body hands back goes to the same place
        if nothing reads the old value any more, and the initial value is the carried one's memory where it dies there."""
        tables = self.tables
        born = maker.copy()
        for control in tables.controls:
            if not control.regions:
                continue
            begin = min(span[region.number][0] for region in control.regions)
            end = max(span[region.number][1] for region in control.regions)
            for position in control.carries:
                row = tables.rows[position]
                if row.is_invariant:
                    continue
                result = self.home[row.results[-1]]
                born[result] = begin
                ends[result] = max(ends[result], end)
                is_loop = len(row.results) == 3
                for slot, view in enumerate(row.operands):
                    source = self.home[view.source] if view is not None else result
                    if source == result or tables.producer[source] < 0:
                        continue
                    if is_loop and slot == 0:
                        if ends[source] == begin and tables.bytes_of[source] == tables.bytes_of[result]:
                            over[result] = source
                        continue
                    body_reads = (
                        [int(last[r]) for r, _ in tables.uses[row.results[1]] if r >= 0 and r != position] if is_loop else []
                    )
                    if max(body_reads, default=-1) <= maker[source]:
                        born[source] = -1
                    else:
                        ends[source] = max(ends[source], end)
        return born

    def _wanted(self, first: Ints, maker: Ints, count: int) -> Ints:
        wanted = np.full(len(self.tables.values), count, dtype=np.int64)
        for home, uses in enumerate(self.consumers):
            readers = [int(first[row]) for row, _ in uses if row >= 0]
            wanted[home] = min((k for k in readers if k > maker[home]), default=count)
        return wanted

    def _over(self, roots: list[list[int]], reads: list[set[int]], is_loop: list[bool], ends: Ints) -> Ints:
        """For a value made by a loop kernel, one of the same size that dies there: it can be written over."""
        tables = self.tables
        over = np.full(len(tables.values), -1, dtype=np.int64)
        for k, own in enumerate(roots):
            if not is_loop[k] or not self.fusing.in_place:
                continue
            dying = sorted(v for v in reads[k] if ends[v] == k and v >= tables.argument_count)
            for position in own:
                for value in tables.rows[position].results:
                    match = next((v for v in dying if tables.bytes_of[v] == tables.bytes_of[value]), None)
                    if value in self.stored and match is not None:
                        over[value] = match
                        dying.remove(match)
        return over


def _pairs(pairs: list[tuple[int, int]]) -> tuple[Ints, Ints]:
    both = np.array(pairs, dtype=np.int64).reshape(-1, 2)
    return both[:, 0].copy(), both[:, 1].copy()

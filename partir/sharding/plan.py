"""What an assignment owes: every reshard and settlement with place, kind, axes, bytes and cause - computed here, once.

Cost prices a plan and lowering writes it one to one, so prediction and program cannot drift apart. One forward walk over the
rows of a program: who has each axis at the op, how its operands must lie, what they lack, and what its result leaves pending.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property

from xdsl.ir import SSAValue

from partir.program import Leaf
from partir.sharding import pending, reshard
from partir.sharding.assignment import Assignment
from partir.sharding.atoms import OpShape
from partir.sharding.layout import Axes, Layout, canonical_dim, expressible, local_shape, whole
from partir.sharding.linear import is_one, is_zero, passing
from partir.sharding.pending import Sums
from partir.sharding.reshard import Place, Step
from partir.sharding.rule import shape_of
from partir.sharding.tables import OpRow, View

COLLECTIVES = ("all_gather", "all_reduce", "reduce_scatter", "all_to_all", "collective_permute")
FactorAxes = tuple[Axes, ...]


@dataclass(frozen=True)
class Mask:
    """Operand `slot` counts on one device only: elsewhere on `axes` it is replaced by the neutral element of `kind`."""

    slot: int
    axes: Axes
    kind: str


@dataclass(eq=False)
class RowPlan:
    """How one op runs on slices: the axes of each sub-factor, the layout of each operand as the op reads it, of each
    result, and the whole operands that must count once."""

    factor_axes: FactorAxes
    operands: tuple[Layout, ...]
    results: tuple[Layout, ...]
    masks: tuple[Mask, ...] = ()


@dataclass(eq=False)
class Settlement:
    """A pending value is reduced (and perhaps scattered) right after the op that made it."""

    value: int
    steps: tuple[Step, ...]
    before: Layout
    after: Layout


@dataclass(eq=False)
class Reshard:
    """A value is wanted as it does not lie: `steps` turn it from `before` to `after`, before row `row` reads it.

    `row` is -1 - r where it is result r of the program that wants it. With `barrier`, the gather may not be merged with
    that of another phase. All uses that want the same share one reshard.
    """

    value: int
    before: Layout
    after: Layout
    steps: tuple[Step, ...]
    row: int
    phase: str
    barrier: bool = False


Key = tuple[int, Layout, str, Axes]


@dataclass(eq=False)
class Plan:
    """All that is owed, in program order.

    `arguments[i]` is how argument i lies at the boundary (sayable in a PartitionSpec), `entries[i]` how the program reads
    it; `outputs[r]` how result r leaves. `reshard_of(key)` finds the reshard a use shares.
    """

    assignment: Assignment
    rows: list[RowPlan]
    arguments: list[Layout]
    entries: list[Layout]
    outputs: list[Layout]
    layouts: list[Layout]
    settlements: dict[int, Settlement]
    reshards: dict[Key, Reshard] = field(default_factory=dict[Key, Reshard])
    uses: dict[tuple[int, int], Key] = field(default_factory=dict[tuple[int, int], Key])

    @cached_property
    def collectives(self) -> dict[str, int]:
        """Counts by kind; kinds that do not occur are left out."""
        counts: Counter[str] = Counter()
        for steps in self.all_steps():
            counts.update(step.kind for step in steps)
        return {kind: counts[kind] for kind in COLLECTIVES if counts[kind]}

    def all_steps(self) -> list[tuple[Step, ...]]:
        return [s.steps for s in self.settlements.values()] + [r.steps for r in self.reshards.values()]


def make(assignment: Assignment) -> Plan:
    """Compute what an assignment owes."""
    return _Planner(assignment).run()


class _Planner:
    def __init__(self, assignment: Assignment) -> None:
        self.assignment = assignment
        self.structure = assignment.structure
        self.tables = assignment.structure.tables
        self.atoms = assignment.structure.atoms
        self.sizes = assignment.mesh.axes
        self.by_axis = assignment.mesh.shape
        self._slot_memo: dict[object, tuple[tuple[Layout, ...], tuple[Layout, ...]]] = {}
        self._layout_memo: dict[object, Layout] = {}
        self._source_memo: dict[object, Layout] = {}

    def run(self) -> Plan:
        claimed = self._claimed()
        self.keep = pending.decide(self.assignment, self._tentative(claimed)).keep
        self.own = pending.own_sums(self.assignment)
        count = len(self.tables.values)
        self.axes: list[FactorAxes] = [()] * count
        self.sums: dict[int, Sums] = {}
        layouts: list[Layout] = [()] * count
        self.layouts = layouts
        boundary: list[Layout] = []
        for argument, axes in enumerate(self.assignment.argument_axes):
            self.axes[argument] = axes
            layouts[argument] = self._layout_of(argument)
            boundary.append(_sayable(layouts[argument], self.tables.program.signature.arguments[argument]))
        self.plan = Plan(self.assignment, [], boundary, list(layouts[: len(boundary)]), [], layouts, {})
        self.gathered_in: dict[int, str] = {}
        for position, row in enumerate(self.tables.rows):
            self.plan.rows.append(self._row(position, row, claimed.get(position)))
        for result, view in enumerate(self.tables.outputs):
            self.plan.outputs.append(self._output(result, view))
        return self.plan

    # ---- claims -------------------------------------------------------------------------------------------------------

    def _claimed(self) -> dict[int, dict[str, int]]:
        """By row, the sub-factor (of the row) that has each axis; rows where nothing is cut are left out."""
        found: dict[int, dict[str, int]] = {}
        starts = self.atoms.factor_start
        for axis in self.assignment.mesh.names:
            winners = self.assignment.winners[axis]
            for row in (winners >= 0).nonzero()[0].tolist():
                found.setdefault(row, {})[axis] = int(winners[row]) + self.atoms.atom_count - starts[row]
        return found

    def _factor_axes(self, position: int, taken: dict[str, int]) -> FactorAxes:
        """Axes of each sub-factor, in order of claim."""
        shape = self.atoms.shapes[position]
        axes: list[list[str]] = [[] for _ in shape.sizes]
        for axis, factor in taken.items():
            axes[factor].append(axis)
        base = self.atoms.factor_start[position] - self.atoms.atom_count
        for factor, own in enumerate(axes):
            if len(own) > 1:
                class_ = int(self.assignment.classes.of_factor[base + factor])
                own.sort(key=lambda axis: self._rank(class_, axis))
        return tuple(map(tuple, axes))

    def _rank(self, class_: int, axis: str) -> int:
        return int(self.assignment.claims.order[axis][class_])

    def _tentative(self, claimed: dict[int, dict[str, int]]) -> list[frozenset[str]]:
        """The axes each value is cut over if every op keeps its claims: what pending sums are decided on."""
        none: frozenset[str] = frozenset()
        axes: list[frozenset[str]] = [none] * len(self.tables.values)
        per_atom: list[FactorAxes] = [()] * len(self.tables.values)
        for argument, own in enumerate(self.assignment.argument_axes):
            per_atom[argument] = own
            axes[argument] = frozenset(a for atom in own for a in atom)
        for position, row in enumerate(self.tables.rows):
            shape = self.atoms.shapes[position]
            view = row.operands[0] if row.kind == "follow" else None
            if view is not None:
                own = self._followed(shape, view, per_atom[view.source])
            elif position in claimed:
                own = self._factor_axes(position, claimed[position])
            else:
                own = ()
            if not any(own):
                continue
            for i, result in enumerate(row.results):
                per_atom[result] = self._result_axes(shape, i, own, result)
                axes[result] = frozenset(a for atom in per_atom[result] for a in atom)
        return axes

    def _followed(self, shape: OpShape, view: View, source: FactorAxes) -> FactorAxes:
        """Sub-factor axes of a follow op: those its operand's atoms actually have."""
        own: list[Axes] = [()] * len(shape.sizes)
        if any(source):
            for d, pieces in enumerate(shape.slots[0]):
                if pieces is not None and view.dims[d] >= 0:
                    for k, piece in enumerate(pieces):
                        if not shape.closed[piece]:
                            own[piece] = source[self._flat(view.source, view.dims[d], k)]
        return tuple(own)

    def _flat(self, value: int, dim: int, part: int) -> int:
        return sum(len(sizes) for sizes in self.atoms.sizes_of[value][:dim]) + part

    # ---- layouts ------------------------------------------------------------------------------------------------------

    def _layout_of(self, value: int) -> Layout:
        """The layout of a value from the axes of its atoms."""
        axes = self.axes[value]
        per_dim = self.atoms.sizes_of[value]
        if not any(axes):
            return whole(self.tables.shapes[value])
        key = (per_dim, axes)
        found = self._layout_memo.get(key)
        if found is None:
            k = 0
            dims = []
            for sizes in per_dim:
                dims.append(canonical_dim(zip(sizes, axes[k : k + len(sizes)], strict=True), self.by_axis))
                k += len(sizes)
            found = self._layout_memo[key] = tuple(dims)
        return found

    def _slots(self, position: int, row: OpRow, own: FactorAxes) -> tuple[tuple[Layout, ...], tuple[Layout, ...]]:
        """The layout of every operand as the op reads it, and of every result as it makes it."""
        shape = self.atoms.shapes[position]
        key = (id(shape), own)
        found = self._slot_memo.get(key)
        if found is None:
            types = [shape_of(v.type) for v in (*row.op.operands, *row.op.results)]
            layouts: list[Layout] = []
            for slot, dims in zip(shape.slots, types, strict=True):
                if not any(own):
                    layouts.append(whole(dims))
                    continue
                layouts.append(
                    tuple(
                        ((size, ()),)
                        if pieces is None
                        else canonical_dim([(shape.sizes[p], own[p]) for p in pieces], self.by_axis)
                        for pieces, size in zip(slot, dims, strict=True)
                    )
                )
            n = shape.operand_count
            found = self._slot_memo[key] = (tuple(layouts[:n]), tuple(layouts[n:]))
        return found

    def _source(self, view: View, slot: Layout) -> Layout:
        """How a view's source must lie for the view to lie as `slot`."""
        key = (view.dims, slot, self.tables.shapes[view.source])
        found = self._source_memo.get(key)
        if found is None:
            dims: list[tuple[tuple[int, Axes], ...]] = [((size, ()),) for size in self.tables.shapes[view.source]]
            for d, source in enumerate(view.dims):
                if source >= 0:
                    dims[source] = slot[d]
            found = self._source_memo[key] = tuple(dims)
        return found

    # ---- the walk -----------------------------------------------------------------------------------------------------

    def _row(self, position: int, row: OpRow, claimed: dict[str, int] | None) -> RowPlan:
        shape = self.atoms.shapes[position]
        passed, masks = self._passed(position, row)
        follow = row.operands[0] if row.kind == "follow" else None
        if follow is not None:
            own = self._followed(shape, follow, self.axes[follow.source])
        elif claimed is None:
            own = ()
        else:
            own = self._factor_axes(position, {a: f for a, f in claimed.items() if a not in passed})
        if not any(own):
            own = ()
        operands, results = self._slots(position, row, own)
        for slot, view in enumerate(row.operands):
            if view is not None:
                self._use(position, slot, view, operands[slot], passed, row)
        for value in row.captured:
            view = View(value, tuple(range(len(self.tables.shapes[value]))))
            self._use(position, -1 - value, view, whole(self.tables.shapes[value]), {}, row)
        sums = {a: k for a, k in self.own.get(position, {}).items() if a not in passed} | passed
        if row.op.name == "stablehlo.scatter":
            masks += self._scatter_masks(position, row, sums)
        for i, result in enumerate(row.results):
            self.axes[result] = self._result_axes(shape, i, own, result)
            self.layouts[result] = results[i]
            if sums:
                self._settle(result, dict(sums))
        return RowPlan(own, operands, results, tuple(masks))

    def _result_axes(self, shape: OpShape, index: int, own: FactorAxes, value: int) -> FactorAxes:
        """Axes of each atom of a result; a dim its rule cannot cut is whole, however many atoms it has."""
        if not own:
            return ()
        flat: list[Axes] = []
        for d, pieces in enumerate(shape.slots[shape.operand_count + index]):
            count = len(self.atoms.sizes_of[value][d])
            flat += [own[p] for p in pieces] if pieces is not None else [()] * count
        return tuple(flat)

    def _passed(self, position: int, row: OpRow) -> tuple[Sums, list[Mask]]:
        """The pending axes a row lets through, and the whole operands that then count once."""
        passed: Sums = {}
        masks: dict[tuple[int, str], list[str]] = {}
        candidates = {
            axis: kind
            for view in row.operands
            if view is not None and view.source in self.sums
            for axis, kind in self.sums[view.source].items()
        }
        cut = _Cut(self)
        for axis, kind in candidates.items():
            if not pending.may_pass(self.assignment, position, row, axis, kind, self.sums, cut):
                continue
            flags = [v is not None and self.sums.get(v.source, {}).get(axis) == kind for v in row.operands]
            how = passing(row.op, flags, kind)
            assert how is not None
            passed[axis] = kind
            for slot in how.masked:
                masks.setdefault((slot, kind), []).append(axis)
        return passed, [Mask(slot, tuple(axes), kind) for (slot, kind), axes in masks.items()]

    def _scatter_masks(self, position: int, row: OpRow, sums: Sums) -> list[Mask]:
        """A scatter cut along its updates adds them to its operand on one device only."""
        own = self.own.get(position, {})
        axes = tuple(a for a in sums if a in own)
        kind = next(iter(own.values()), "add")
        if not axes or kind in ("max", "min", "and", "or"):
            return []
        neutral = is_zero(row.op.operands[0]) if kind == "add" else is_one(row.op.operands[0])
        return [] if neutral else [Mask(0, axes, kind)]

    def _use(self, position: int, slot: int, view: View, wanted: Layout, passed: Sums, row: OpRow) -> None:
        source = view.source
        left = tuple(a for a in self.sums.get(source, {}) if a not in passed)
        after = self._source(view, wanted)
        if after == self.layouts[source] and not left:
            return
        phase = self.tables.phase(row) if self.tables.of_state_alone[source] else ""
        self.plan.uses[position, slot] = self._reshard(source, after, left, position, phase)

    def _reshard(self, source: int, after: Layout, left: Axes, position: int, phase: str) -> Key:
        key = (source, after, phase, left)
        if key not in self.plan.reshards:
            before = self.layouts[source]
            first: tuple[Step, ...] = ()
            if left:
                kind = self.sums[source][left[0]]
                first = (Step("all_reduce", left, reduction=kind),)
            steps = first + reshard.between(before, after, self.sizes)
            gathers = any(step.kind == "all_gather" for step in steps)
            barrier = bool(phase) and gathers and self.gathered_in.setdefault(source, phase) != phase
            self.plan.reshards[key] = Reshard(source, before, after, steps, position, phase, barrier)
        return key

    def _settle(self, value: int, sums: Sums) -> None:
        """Keep a value pending where that was decided; reduce the rest now, scattering where every use wants a slice."""
        kept = {axis: kind for axis, kind in sums.items() if axis in self.keep.get(value, ())}
        if kept:
            self.sums[value] = kept
        due = {axis: kind for axis, kind in sums.items() if axis not in kept}
        if not due:
            return
        before = self.layouts[value]
        axes = list(self.axes[value] or [()] * self.atoms.count_of(value))
        scattered: list[tuple[str, int]] = []
        for axis, kind in due.items():
            atom = self._wanted_atom(value, axis) if kind == "add" else None
            if atom is not None and self._fits(value, axes, atom, axis):
                scattered.append((axis, atom))
                axes[atom] = (*axes[atom], axis)
        steps: list[Step] = []
        current = list(self.axes[value] or [()] * self.atoms.count_of(value))
        for axis, atom in scattered:
            steps.append(Step("reduce_scatter", (axis,), self._place(value, current, atom), reduction="add"))
            current[atom] = (*current[atom], axis)
        rest = tuple(axis for axis in due if axis not in dict(scattered))
        if rest:
            steps.append(Step("all_reduce", rest, reduction=due[rest[0]]))
        self.axes[value] = tuple(axes)
        self.layouts[value] = self._layout_of(value)
        self.plan.settlements[value] = Settlement(value, _merged(steps), before, self.layouts[value])

    def _fits(self, value: int, axes: Sequence[Axes], atom: int, axis: str) -> bool:
        sizes = [size for dim in self.atoms.sizes_of[value] for size in dim]
        devices = self.assignment.mesh.size_of(*axes[atom], axis)
        class_ = int(self.assignment.classes.of_node[self.atoms.start[value] + atom])
        ranks = [self._rank(class_, a) for a in (*axes[atom], axis)]
        return sizes[atom] % devices == 0 and ranks == sorted(ranks)

    def _place(self, value: int, axes: Sequence[Axes], atom: int) -> Place:
        rest = atom
        for dim, sizes in enumerate(self.atoms.sizes_of[value]):
            if rest < len(sizes):
                first = atom - rest
                outer = 1
                for k in range(first, atom):
                    outer *= sizes[k - first] // self.assignment.mesh.size_of(*axes[k])
                return Place(dim, outer)
            rest -= len(sizes)
        raise IndexError(atom)

    def _wanted_atom(self, value: int, axis: str) -> int | None:
        """The atom of a value that every use wants cut over `axis`; None when they differ or some use wants it whole."""
        wanted: set[int | None] = set()
        for position, slot in self.tables.uses[value]:
            wanted.add(self._wish(value, axis, position, slot))
            if None in wanted or len(wanted) > 1:
                return None
        return next(iter(wanted), None)

    def _wish(self, value: int, axis: str, position: int, slot: int) -> int | None:
        if position < 0:
            result = -1 - position
            argument = self.tables.program.signature.argument_of_result.get(result)
            view = self.tables.outputs[result]
            assert view is not None
            fixed = dict(self.assignment.outputs).get(result)
            if fixed is not None:
                dims = [view.dims[d] for d, own in enumerate(fixed) if axis in own and view.dims[d] >= 0]
                return self._flat(value, dims[0], 0) if dims and self.atoms.sizes_of[value][dims[0]] else None
            if argument is None:
                return None
            axes = self.assignment.argument_axes[argument]
            for dim, source in enumerate(view.dims):
                first, count = self._flat(argument, dim, 0), len(self.atoms.sizes_of[argument][dim])
                for part, own in enumerate(axes[first : first + count]):
                    same = source >= 0 and self.atoms.sizes_of[argument][dim] == self.atoms.sizes_of[value][source]
                    if axis in own and same:
                        return self._flat(value, source, part)
            return None
        if slot < 0:
            return None
        row, shape = self.tables.rows[position], self.atoms.shapes[position]
        view = row.operands[slot]
        assert view is not None
        if row.kind == "follow":
            atom = self._wanted_atom(row.results[0], axis)
            if atom is None:
                return None
            pieces = [p for dim in shape.slots[shape.operand_count] for p in (dim if dim is not None else (None,))]
            factor = pieces[atom]
        else:
            winner = int(self.assignment.winners[axis][position])
            factor = winner + self.atoms.atom_count - self.atoms.factor_start[position] if winner >= 0 else None
        if factor is None:
            return None
        for d, own in enumerate(shape.slots[slot]):
            if own is not None and view.dims[d] >= 0 and factor in own:
                return self._flat(value, view.dims[d], own.index(factor))
        return None

    @property
    def returned(self) -> Sequence[SSAValue]:
        """The values the program returns."""
        last = self.tables.program.body.last_op
        assert last is not None
        return last.operands

    def _output(self, result: int, view: View | None) -> Layout:
        """How a result leaves: as the argument it is paired with lies, else as it lies already, as far as a spec can say."""
        argument = self.tables.program.signature.argument_of_result.get(result)
        leaf = self.tables.program.signature.results[result]
        fixed = dict(self.assignment.outputs).get(result)
        if fixed is not None:
            wanted = tuple(((size, axes),) for size, axes in zip(leaf.shape, fixed, strict=True))
        elif argument is not None:
            wanted = self.plan.arguments[argument]
        elif view is None:
            wanted = whole(shape_of(self.returned[result].type))
        else:
            source = self.layouts[view.source]
            shape = shape_of(self.returned[result].type)
            lies = tuple(source[d] if d >= 0 else ((shape[i], ()),) for i, d in enumerate(view.dims))
            wanted = _sayable(lies, leaf)
        if view is not None:
            after = self._source(view, wanted)
            left = tuple(self.sums.get(view.source, {}))
            if after != self.layouts[view.source] or left:
                self.plan.uses[-1 - result, 0] = self._reshard(view.source, after, left, -1 - result, "")
        return wanted

    def local_bytes(self, value: int, layout: Layout) -> int:
        """Bytes one device holds of a value in some layout."""
        elements = math.prod(self.tables.shapes[value]) or 1
        return self.tables.bytes_of[value] * math.prod(local_shape(layout, self.sizes)) // elements


class _Cut(Sequence[frozenset[str]]):
    """The axes each value is actually cut over, as the walk has it now."""

    def __init__(self, planner: _Planner) -> None:
        self.planner = planner

    def __len__(self) -> int:
        return len(self.planner.axes)

    def __getitem__(self, value: int) -> frozenset[str]:  # type: ignore[override]
        return frozenset(axis for axes in self.planner.axes[value] for axis in axes)


def _sayable(layout: Layout, leaf: Leaf) -> Layout:
    """The part of a layout that a PartitionSpec of this leaf can say. A random key has inner dims that no spec speaks of."""
    said, rank = expressible(layout), len(leaf.shape)
    return said[:rank] + whole([math.prod(size for size, _ in segments) for segments in said[rank:]])


def _merged(steps: Sequence[Step]) -> tuple[Step, ...]:
    """Neighbouring reduce_scatters at one place are one over all their axes."""
    merged: list[Step] = []
    for step in steps:
        last = merged[-1] if merged else None
        if last is not None and step.kind == last.kind == "reduce_scatter" and step.place == last.place:
            merged[-1] = Step("reduce_scatter", last.axes + step.axes, last.place, reduction=step.reduction)
        else:
            merged.append(step)
    return tuple(merged)

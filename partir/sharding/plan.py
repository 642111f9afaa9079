"""What an assignment owes: every reshard and reduction with place, kind, axes, bytes and cause - computed here, once.

Cost prices a plan and lowering writes it one to one, so prediction and program cannot drift apart. One forward walk over the
rows of a program: who has each axis at the op, how its operands must lie, what they lack, and what its result leaves unreduced.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

from xdsl.ir import SSAValue

from partir.collector import paused
from partir.dialect.sdy import ManualComputationOp
from partir.program import Leaf
from partir.sharding import reshard, unreduced
from partir.sharding.assignment import Assignment, Fixed
from partir.sharding.constraints import manual_layouts
from partir.sharding.indices import FactorId
from partir.sharding.layout import Axes, DimLayout, Layout, expressible, replicated
from partir.sharding.linear import is_one, is_zero, passing
from partir.sharding.propagation import FactorAxes, Propagation
from partir.sharding.reshard import Place, Step
from partir.sharding.rule import shape_of
from partir.sharding.sums import summed_in
from partir.sharding.tables import Control, OpRow, RegionItems, View
from partir.sharding.unreduced import Sums

COLLECTIVES = ("all_gather", "all_reduce", "reduce_scatter", "all_to_all", "collective_permute")


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
class Reduction:
    """An unreduced value is reduced (and perhaps scattered) right after the op that made it."""

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
    region: int = 0


Key = tuple[int, Layout, str, Axes, int]
"""Value, wanted layout, phase (for parameters), axes still unreduced, region where it is made."""


@dataclass(eq=False)
class Plan:
    """All that is owed, in program order.

    `arguments[i]` is how argument i lies at the boundary (sayable in a PartitionSpec), `entries[i]` how the program reads
    it; `outputs[r]` how result r leaves. `uses` finds the reshard that a (row, operand) shares.
    `hoisted[region]` are the reshards made before a region's control is entered, for what is inside.
    """

    assignment: Assignment
    rows: list[RowPlan]
    arguments: list[Layout]
    entries: list[Layout]
    outputs: list[Layout]
    layouts: list[Layout]
    reductions: dict[int, Reduction]
    reshards: dict[Key, Reshard] = field(default_factory=dict[Key, Reshard])
    uses: dict[tuple[int, int], Key] = field(default_factory=dict[tuple[int, int], Key])
    hoisted: dict[int, list[Key]] = field(default_factory=dict[int, list[Key]])

    @cached_property
    def collectives(self) -> dict[str, int]:
        """Counts by kind in one step, loop bodies times their trip counts; kinds that do not occur are left out."""
        counts: Counter[str] = Counter()
        for steps, times in self.all_steps():
            for step in steps:
                counts[step.kind] += times
        return {kind: counts[kind] for kind in COLLECTIVES if counts[kind]}

    def all_steps(self) -> list[tuple[tuple[Step, ...], int]]:
        """The steps of every reduction and reshard, with how often they run."""
        tables = self.assignment.structure.tables
        found = [(s.steps, tables.times(tables.region_of[s.value])) for s in self.reductions.values()]
        return found + [(r.steps, tables.times(r.region)) for r in self.reshards.values()]


@paused()
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
        self.propagation = Propagation(assignment)
        self.row_plans: dict[int, RowPlan] = assignment.structure.memo(assignment.mesh, "rows")
        self.once = self._gathered_once()
        self.fixed = dict(assignment.outputs)

    def run(self) -> Plan:
        claimed = self.propagation.claimed()
        passes = unreduced.decide(self.assignment, *self.propagation.tentative(claimed))
        self.keep, self.carried = passes.keep, passes.carries
        count = len(self.tables.values)
        self.axes: list[FactorAxes] = [()] * count
        self.sums: dict[int, Sums] = {}
        layouts: list[Layout] = [()] * count
        self.layouts = layouts
        boundary: list[Layout] = []
        for argument, axes in enumerate(self.assignment.argument_axes):
            self.axes[argument] = axes
            layouts[argument] = self.propagation.layout_of(argument, axes)
            sayable = _sayable(layouts[argument], self.tables.program.signature.arguments[argument])
            boundary.append(self._as_pinned(argument, sayable))
        nothing = RowPlan((), (), ())
        self.plan = Plan(
            self.assignment,
            [nothing] * len(self.tables.rows),
            boundary,
            list(layouts[: len(boundary)]),
            [],
            layouts,
            {},
        )
        self.gathered_in: dict[int, str] = {}
        self.claimed = claimed
        self.branch_of = {
            position: [region.number for region in control.regions]
            for control in self.tables.controls
            for position in control.carries
        }
        self._items(self.tables.root)
        for result, view in enumerate(self.tables.outputs):
            self.plan.outputs.append(self._output(result, view))
        return self.plan

    def _as_pinned(self, argument: int, lies: Layout) -> Layout:
        """How an argument lies at the boundary, to the word: axes of one device cut nothing, but a `Pin` may name them."""
        pinned = self.assignment.pinned.get(argument)
        if pinned is None or not any(self.assignment.mesh.size_of(axis) == 1 for axes in pinned.values() for axis in axes):
            return lies
        dims = list(lies)
        for dim, axes in pinned.items():
            size = self.tables.shapes[argument][dim]
            if axes and size % self.assignment.mesh.size_of(*axes) == 0:
                dims[dim] = ((size, axes),)
        return tuple(dims)

    def _items(self, region: RegionItems) -> None:
        for item in region.items:
            if isinstance(item, Control):
                self._control(item)
            else:
                self.plan.rows[item] = self._row(item, self.tables.rows[item], self.claimed.get(item))

    def _control(self, control: Control) -> None:
        """A `while` lays what it carries as the carry's claims say, before, in and after the loop; a `case` its results."""
        rows = self.tables.rows
        is_loop = control.op.name == "stablehlo.while"
        if control.predicate is not None and not is_loop:
            self._read(control.predicate, 0)
        if is_loop or not control.regions:
            for position in control.carries:
                self._carry(position)
                self._read(position, 0)
        for region in control.regions:
            self._items(region)
            if is_loop and region is control.regions[0] and control.predicate is not None:
                self._read(control.predicate, 0)
        if control.regions and not is_loop:
            for position in control.carries:
                self._carry(position)
        for position in control.carries:
            for slot in range(1 if is_loop or not control.regions else 0, len(rows[position].operands)):
                self._read(position, slot)
            if position in self.carried:
                self._reduce(rows[position].results[-1], dict(self.carried[position]))

    def _carry(self, position: int) -> None:
        """The layout all ends of a carried value share."""
        row, shape = self.tables.rows[position], self.atoms.shapes[position]
        through = row.passed_through
        if through is not None:
            own = self.propagation.passed_through(shape, through, self.axes[through.source])
        else:
            taken = self.claimed.get(position)
            own = self.propagation.factor_axes(position, taken) if taken else ()
        cut = self.propagation.cut(position, row, own)
        operands, results = cut.operands, cut.results
        sums = self.carried.get(position, {})
        neutral = row.operands[0] is None and is_zero(row.op.operands[row.index]) if sums else True
        masks = () if neutral else (Mask(0, tuple(sums), "add"),)
        self.plan.rows[position] = RowPlan(own, operands, results, masks)
        if sums:
            self.sums[row.results[1]] = sums
        for i, result in enumerate(row.results):
            self.axes[result], self.layouts[result] = cut.axes[i], results[i]

    def _read(self, position: int, slot: int) -> None:
        """One operand of a carry or predicate row is brought to the layout the row wants."""
        row = self.tables.rows[position]
        view = row.operands[slot]
        if view is not None:
            wanted = self.plan.rows[position].operands[slot] if row.kind == "carry" else ()
            self._use(position, slot, view, wanted, self.carried.get(position, {}) if slot == 1 else {}, row)

    def _row(self, position: int, row: OpRow, claimed: dict[str, int] | None) -> RowPlan:
        tables = self.tables
        reads = tables.reads[position]
        passed: Sums = {}
        masks: list[Mask] = []
        for _, _, source, _ in reads:
            if source in self.sums:
                passed, masks = self._passed(position, row)
                break
        through = tables.passed_through[position]
        if through is not None:
            own = self.propagation.passed_through(self.atoms.shapes[position], through, self.axes[through.source])
        elif claimed is None:
            own = ()
        else:
            own = self.propagation.own[position]
            if passed and not passed.keys().isdisjoint(claimed):
                left = {a: f for a, f in claimed.items() if a not in passed}
                own = self.propagation.factor_axes(position, left) if left else ()
        cut = self.propagation.cut(position, row, own)
        operands, results = cut.operands, cut.results
        if position in tables.manual:
            assert isinstance(row.op, ManualComputationOp)
            operands, results = manual_layouts(row.op, self.assignment.mesh)
        for slot, view, source, is_plain in reads:
            if is_plain and source not in self.sums and operands[slot] == self.layouts[source]:
                continue  # it is wanted as it lies
            self._use(position, slot, view, operands[slot], passed, row)
        for value in row.captured:
            view = View(value, tuple(range(len(self.tables.shapes[value]))))
            self._use(position, -1 - value, view, replicated(self.tables.shapes[value]), {}, row)
        summed = cut.sums
        sums = {a: k for a, k in summed.items() if a not in passed} | passed if passed else summed
        if row.op.name == "stablehlo.scatter":
            masks += self._scatter_masks(row, summed)
        for i, result in enumerate(row.results):
            self.axes[result], self.layouts[result] = cut.axes[i], results[i]
            if position in tables.manual:
                self.axes[result] = self._outermost(result, results[i])
            if sums:
                self._reduce(result, dict(sums))
        if masks or position in tables.manual:
            return RowPlan(own, operands, results, tuple(masks))
        found = self.row_plans.get(id(cut))
        if found is None:
            found = self.row_plans[id(cut)] = RowPlan(own, operands, results)
        return found

    def _outermost(self, value: int, layout: Layout) -> FactorAxes:
        """Axes of each atom of a value that lies as a PartitionSpec says: on the outermost atom of each dim."""
        flat: list[Axes] = []
        for sizes, segments in zip(self.atoms.sizes_of[value], layout, strict=True):
            axes = tuple(axis for _, own in segments for axis in own)
            flat += [axes, *[()] * (len(sizes) - 1)] if sizes else []
        return tuple(flat)

    def _passed(self, position: int, row: OpRow) -> tuple[Sums, list[Mask]]:
        """The unreduced axes a row lets through, and the whole operands that then count once."""
        passed: Sums = {}
        masks: dict[tuple[int, str], list[str]] = {}
        candidates = {
            axis: kind
            for view in row.operands
            if view is not None and view.source in self.sums
            for axis, kind in self.sums[view.source].items()
        }
        cut = _CutAxes(self)
        for axis, kind in candidates.items():
            if not unreduced.may_pass(self.assignment, position, row, axis, kind, self.sums, cut):
                continue
            flags = [v is not None and self.sums.get(v.source, {}).get(axis) == kind for v in row.operands]
            how = passing(row.op, flags, kind)
            assert how is not None
            passed[axis] = kind
            for slot in how.masked:
                masks.setdefault((slot, kind), []).append(axis)
        return passed, [Mask(slot, tuple(axes), kind) for (slot, kind), axes in masks.items()]

    def _scatter_masks(self, row: OpRow, own: Sums) -> list[Mask]:
        """A scatter cut along its updates adds them to its operand on one device only."""
        axes = tuple(own)
        kind = next(iter(own.values()), "add")
        if not axes or kind in ("max", "min", "and", "or"):
            return []
        neutral = is_zero(row.op.operands[0]) if kind == "add" else is_one(row.op.operands[0])
        return [] if neutral else [Mask(0, axes, kind)]

    def _use(self, position: int, slot: int, view: View, wanted: Layout, passed: Sums, row: OpRow) -> None:
        source = view.source
        left = tuple(a for a in self.sums.get(source, {}) if a not in passed)
        after = self.propagation.source(view, wanted)
        if after == self.layouts[source] and not left:
            return
        region = self._region_of_use(position, slot, row)
        phase = self._phase_of_use(source, row, region)
        self.plan.uses[position, slot] = self._reshard(source, after, left, position, phase, region)

    def _gathered_once(self) -> list[bool]:
        """Of which values all phases share a gather; empty where of none."""
        arguments = self.assignment.gathered_once
        memo = self.structure.memo(self.assignment.mesh, "gathered once")
        if arguments not in memo:
            memo[arguments] = self.tables.made_of(arguments) if arguments else []
        return memo[arguments]

    def _phase_of_use(self, source: int, row: OpRow, region: int) -> str:
        """Uses of a parameter share a gather within a phase, or all do where that was decided. One layer of a scanned stack is
        recomputed and gone backward through in the same round, and is gathered once for both."""
        if not self.tables.of_state_alone[source]:
            return ""
        if self.once and self.once[source] and region == self.tables.region_of[source]:
            return ""
        phase = self.tables.phase(row)
        return "backward" if phase == "recomputed" and self.tables.of_one_round[source] else phase

    def _region_of_use(self, position: int, slot: int, row: OpRow) -> int:
        """Where an operand is read: what a body or branch hands back is read inside it."""
        if row.kind == "carry" and len(row.results) == 3 and slot == 1:
            return self.tables.region_of[row.results[1]]
        if row.kind == "carry" and row.op.name in ("stablehlo.case", "stablehlo.if"):
            return self.branch_of[position][slot]
        return row.region

    def _reshard(self, source: int, after: Layout, left: Axes, position: int, phase: str, region: int) -> Key:
        """The reshard of a value for a use in `region`. What no parameter is, is resharded where the value is, so that a loop
        that reads it does not do so in every round; a parameter is gathered where it is used, and let go."""
        home = self.tables.region_of[source]
        place = region if phase else home
        key = (source, after, phase, left, place)
        if key not in self.plan.reshards:
            before = self.layouts[source]
            first: tuple[Step, ...] = ()
            if left:
                kind = self.sums[source][left[0]]
                first = (Step("all_reduce", left, reduction=kind),)
            steps = self._moving(source, first + reshard.between(before, after, self.sizes))
            gathers = any(step.kind == "all_gather" for step in steps)
            barrier = bool(phase) and gathers and self.gathered_in.setdefault(source, phase) != phase
            self.plan.reshards[key] = Reshard(source, before, after, steps, position, phase, barrier, place)
            if place != region:
                self.plan.hoisted.setdefault(self._entered(place, region), []).append(key)
        return key

    def _entered(self, outer: int, inner: int) -> int:
        """The outermost region around `inner` that is not around, or is not, `outer`."""
        while self.tables.parent[inner] != outer:
            inner = self.tables.parent[inner]
        return inner

    def _reduce(self, value: int, sums: Sums) -> None:
        """Keep a value unreduced where that was decided; reduce the rest now, scattering where every use wants a slice."""
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
        self.layouts[value] = self.propagation.layout_of(value, self.axes[value])
        self.plan.reductions[value] = Reduction(value, self._moving(value, _merged(steps)), before, self.layouts[value])

    def _moving(self, value: int, steps: Sequence[Step]) -> tuple[Step, ...]:
        """Steps without those over one device, which do nothing; sums in the dtype that is asked for."""
        found = tuple(step for step in steps if self.assignment.mesh.size_of(*step.axes) > 1)
        asked = self.assignment.summed_in
        return tuple(self._summed(value, step) for step in found) if asked else found

    def _summed(self, value: int, step: Step) -> Step:
        axes = [axis for axis in step.axes if self.assignment.mesh.size_of(axis) > 1]
        dtype = summed_in(self.tables.values[value].type, step.reduction, axes, self.assignment.summed_in)
        return step if dtype is None else replace(step, dtype=dtype)

    def _fits(self, value: int, axes: Sequence[Axes], atom: int, axis: str) -> bool:
        sizes = [size for dim in self.atoms.sizes_of[value] for size in dim]
        devices = self.assignment.mesh.size_of(*axes[atom], axis)
        class_ = int(self.assignment.classes.of_node[self.atoms.start[value] + atom])
        ranks = [self.propagation.rank(class_, a) for a in (*axes[atom], axis)]
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
            if position >= 0 and slot == 1 and self.tables.rows[position].is_invariant:
                continue  # a loop that hands back what it was given wants nothing of its own
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
            fixed = self.fixed.get(result)
            if fixed is not None:
                dims = [view.dims[d] for d, own in enumerate(fixed) if axis in (own or ()) and view.dims[d] >= 0]
                return self.atoms.place_in_value(value, dims[0], 0) if dims and self.atoms.sizes_of[value][dims[0]] else None
            if argument is None:
                return None
            axes = self.assignment.argument_axes[argument]
            for dim, source in enumerate(view.dims):
                first, count = self.atoms.place_in_value(argument, dim, 0), len(self.atoms.sizes_of[argument][dim])
                for part, own in enumerate(axes[first : first + count]):
                    same = source >= 0 and self.atoms.sizes_of[argument][dim] == self.atoms.sizes_of[value][source]
                    if axis in own and same:
                        return self.atoms.place_in_value(value, source, part)
            return None
        if slot < 0:
            return None
        row, shape = self.tables.rows[position], self.atoms.shapes[position]
        view = row.operands[slot]
        assert view is not None
        if row.passed_through is not None:
            atom = self._wanted_atom(row.results[0 if len(row.results) == 1 else 1], axis)
            if atom is None:
                return None
            pieces = [p for dim in shape.slots[shape.operand_count] for p in (dim if dim is not None else (None,))]
            factor = pieces[atom]
        else:
            winner = FactorId(int(self.assignment.winners[axis][position]))
            factor = self.atoms.local_factor(position, winner) if winner >= 0 else None
        if factor is None:
            return None
        for d, own in enumerate(shape.slots[slot]):
            if own is not None and view.dims[d] >= 0 and factor in own:
                return self.atoms.place_in_value(value, view.dims[d], own.index(factor))
        return None

    @property
    def returned(self) -> Sequence[SSAValue]:
        """The values the program returns."""
        return self.tables.root.returns

    def _output(self, result: int, view: View | None) -> Layout:
        """How a result leaves: as the argument it is paired with lies, else as it lies already, as far as a spec can say. One
        without elements is whole: XLA makes it so whatever it is told, and JAX then cannot read it."""
        argument = self.tables.program.signature.argument_of_result.get(result)
        leaf = self.tables.program.signature.results[result]
        fixed = self.fixed.get(result)
        shape = shape_of(self.returned[result].type)
        if view is None or 0 in leaf.shape:
            lies = replicated(shape)
        else:
            source = self.layouts[view.source]
            lies = tuple(source[d] if d >= 0 else ((shape[i], ()),) for i, d in enumerate(view.dims))
        if fixed is not None:
            wanted = _as_fixed(fixed, _sayable(lies, leaf), shape)
        elif argument is not None:
            wanted = self.plan.arguments[argument]
        else:
            wanted = _sayable(lies, leaf)
        if view is not None:
            after = self.propagation.source(view, wanted)
            left = tuple(self.sums.get(view.source, {}))
            if after != self.layouts[view.source] or left:
                self.plan.uses[-1 - result, 0] = self._reshard(view.source, after, left, -1 - result, "", 0)
        return wanted


class _CutAxes(Sequence[frozenset[str]]):
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
    return said[:rank] + replicated([math.prod(size for size, _ in segments) for segments in said[rank:]])


def _as_fixed(fixed: Fixed, lies: Layout, shape: Sequence[int]) -> Layout:
    """The layout of a result whose spec is fixed: open dims lie as they do, as far as their axes are not named elsewhere. The
    inner dims of a random key, of which no spec speaks, are whole."""
    named = {axis for axes in fixed for axis in axes or ()}
    found: list[DimLayout] = []
    for size, own, segments in zip(shape, (*fixed, *[()] * (len(shape) - len(fixed))), lies, strict=True):
        is_free = own is None and named.isdisjoint(axis for _, axes in segments for axis in axes)
        found.append(segments if is_free else ((size, own or ()),))
    return tuple(found)


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

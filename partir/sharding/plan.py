"""What an assignment owes: every reshard and reduction with place, kind, axes, bytes and cause - computed here, once.

Cost prices a plan and lowering writes it one to one, so prediction and program cannot drift apart. One forward walk over the
rows of a program: who has each axis at the op, how its operands must lie, what they lack, and what its result leaves unreduced.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

from partir.collector import paused
from partir.dialect.sdy import ManualComputationOp
from partir.sharding import reshard, unreduced
from partir.sharding.assignment import Assignment
from partir.sharding.boundary import argument_layout, result_layout
from partir.sharding.constraints import manual_layouts
from partir.sharding.indices import ROOT, Reader, RegionId, RowIndex, ValueIndex
from partir.sharding.layout import Axes, Layout, replicated
from partir.sharding.linear import is_one, is_zero, passing
from partir.sharding.propagation import FactorAxes, Propagation, Taken
from partir.sharding.reshard import Step
from partir.sharding.scattering import Scattering
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
    """How one op runs on slices."""

    factor_axes: FactorAxes
    """[factors] the axes of each."""
    operands: tuple[Layout, ...]
    """How the op reads each operand."""
    results: tuple[Layout, ...]
    """How it makes each result, before that is reduced."""
    masks: tuple[Mask, ...] = ()
    """The whole operands that must count once, where the others are pieces of a sum."""


@dataclass(eq=False)
class Reduction:
    """An unreduced value is reduced (and perhaps scattered) right after the op that made it."""

    value: ValueIndex
    steps: tuple[Step, ...]
    before: Layout
    after: Layout


@dataclass(eq=False)
class Reshard:
    """A value is wanted as it does not lie: `steps` turn it from `before` to `after`. All uses that want the same share one."""

    value: ValueIndex
    before: Layout
    after: Layout
    steps: tuple[Step, ...]
    row: Reader
    """What reads it first: it is made before that."""
    phase: str
    """The phase whose uses share it, for a parameter; "" where all do."""
    barrier: bool = False
    """Whether its gather must not be merged with that of another phase."""
    region: RegionId = ROOT
    """Where it is made."""


Key = tuple[ValueIndex, Layout, str, Axes, RegionId]
"""What makes two reshards one: value, wanted layout, phase, axes still unreduced, region where it is made."""


@dataclass(eq=False)
class Plan:
    """All that is owed, in program order.

    With x cut by rows over "data" in `mean((x @ w) ** 2)`, `arguments` says that x lies as `P("data")`, `rows` that the matmul
    works on its slice of rows, and `reductions` that the mean is summed by an all_reduce over "data".
    """

    assignment: Assignment
    rows: list[RowPlan]
    """[rows] how each op runs."""
    arguments: list[Layout]
    """[arguments] how each lies at the boundary: a PartitionSpec can say it."""
    entries: list[Layout]
    """[arguments] how the program reads each: perhaps cut further, which costs nothing."""
    outputs: list[Layout]
    """[results] how each leaves."""
    layouts: list[Layout]
    """[values] how each lies once it is made (and reduced)."""
    reductions: dict[ValueIndex, Reduction]
    reshards: dict[Key, Reshard] = field(default_factory=dict[Key, Reshard])
    uses: dict[tuple[Reader, int], Key] = field(default_factory=dict[tuple[Reader, int], Key])
    """By (reader, operand) the reshard it reads; absent where it reads the value as it lies."""
    hoisted: dict[RegionId, list[Key]] = field(default_factory=dict[RegionId, list[Key]])
    """By region the reshards that are made before its control is entered, for what is inside."""

    def reshard_for(self, reader: int, slot: int) -> Reshard | None:
        """What a row (or a result of the program, as `Reader`) reads in place of an operand; None if that as it lies."""
        key = self.uses.get((Reader(reader), slot))
        return self.reshards[key] if key is not None else None

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
    """The walk. Of each value it keeps how it lies (`layouts`), the axes of its atoms (`axes`), what it is unreduced over
    (`sums`)."""

    def __init__(self, assignment: Assignment) -> None:
        self.assignment = assignment
        self.structure = assignment.structure
        self.tables = assignment.structure.tables
        self.atoms = assignment.structure.atoms
        self.sizes = assignment.mesh.axes
        self.propagation = Propagation(assignment)
        self.row_plans: dict[int, RowPlan] = assignment.structure.memo(assignment.mesh, "rows")
        self.once = self._gathered_once()
        self.scattering = Scattering(assignment)

    def run(self) -> Plan:
        claimed = self.propagation.claimed()
        passes = unreduced.decide(self.assignment, *self.propagation.tentative(claimed))
        self.keep, self.carried = passes.keep, passes.carries
        count = len(self.tables.values)
        self.axes: list[FactorAxes] = [()] * count
        self.sums: dict[ValueIndex, Sums] = {}
        layouts: list[Layout] = [()] * count
        self.layouts = layouts
        boundary: list[Layout] = []
        for argument in self.tables.arguments:
            axes = self.axes[argument] = self.assignment.argument_axes[argument]
            layouts[argument] = self.propagation.layout_of(argument, axes)
            boundary.append(argument_layout(self.assignment, argument, layouts[argument]))
        nothing = RowPlan((), (), ())
        self.plan = Plan(
            assignment=self.assignment,
            rows=[nothing] * len(self.tables.rows),
            arguments=boundary,
            entries=list(layouts[: len(boundary)]),
            outputs=[],
            layouts=layouts,
            reductions={},
        )
        self.gathered_in: dict[ValueIndex, str] = {}
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

    def _carry(self, position: RowIndex) -> None:
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

    def _read(self, position: RowIndex, slot: int) -> None:
        """One operand of a carry or predicate row is brought to the layout the row wants."""
        row = self.tables.rows[position]
        view = row.operands[slot]
        if view is not None:
            wanted = self.plan.rows[position].operands[slot] if row.kind == "carry" else ()
            self._use(position, slot, view, wanted, self.carried.get(position, {}) if slot == 1 else {}, row)

    def _row(self, position: RowIndex, row: OpRow, claimed: Taken | None) -> RowPlan:
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
            self._use(position, -1 - value, tables.itself(value), replicated(tables.shapes[value]), {}, row)
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

    def _outermost(self, value: ValueIndex, layout: Layout) -> FactorAxes:
        """Axes of each atom of a value that lies as a PartitionSpec says: on the outermost atom of each dim."""
        flat: list[Axes] = []
        for sizes, segments in zip(self.atoms.sizes_of[value], layout, strict=True):
            axes = tuple(axis for _, own in segments for axis in own)
            flat += [axes, *[()] * (len(sizes) - 1)] if sizes else []
        return tuple(flat)

    def _passed(self, position: RowIndex, row: OpRow) -> tuple[Sums, list[Mask]]:
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

    def _use(self, position: RowIndex, slot: int, view: View, wanted: Layout, passed: Sums, row: OpRow) -> None:
        """An operand that a row reads as `wanted`: owe the reshard where it lies otherwise, or is unreduced over more axes than
        those `passed`."""
        source = view.source
        left = tuple(a for a in self.sums.get(source, {}) if a not in passed)
        after = self.propagation.source(view, wanted)
        if after == self.layouts[source] and not left:
            return
        region = self._region_of_use(position, slot, row)
        phase = self._phase_of_use(source, row, region)
        reader = Reader(position)
        self.plan.uses[reader, slot] = self._reshard(source, after, left, reader, phase, region)

    def _gathered_once(self) -> list[bool]:
        """Of which values all phases share a gather; empty where of none."""
        arguments = self.assignment.gathered_once
        memo = self.structure.memo(self.assignment.mesh, "gathered once")
        if arguments not in memo:
            memo[arguments] = self.tables.made_of(arguments) if arguments else []
        return memo[arguments]

    def _phase_of_use(self, source: ValueIndex, row: OpRow, region: RegionId) -> str:
        """Uses of a parameter share a gather within a phase, or all do where that was decided. One layer of a scanned stack is
        recomputed and gone backward through in the same round, and is gathered once for both."""
        if not self.tables.of_state_alone[source]:
            return ""
        if self.once and self.once[source] and region == self.tables.region_of[source]:
            return ""
        phase = self.tables.phase(row)
        return "backward" if phase == "recomputed" and self.tables.of_one_round[source] else phase

    def _region_of_use(self, position: RowIndex, slot: int, row: OpRow) -> RegionId:
        """Where an operand is read: what a body or branch hands back is read inside it."""
        if row.kind == "carry" and len(row.results) == 3 and slot == 1:
            return self.tables.region_of[row.results[1]]
        if row.kind == "carry" and row.op.name in ("stablehlo.case", "stablehlo.if"):
            return self.branch_of[position][slot]
        return row.region

    def _reshard(self, source: ValueIndex, after: Layout, left: Axes, reader: Reader, phase: str, region: RegionId) -> Key:
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
            self.plan.reshards[key] = Reshard(
                value=source,
                before=before,
                after=after,
                steps=steps,
                row=reader,
                phase=phase,
                barrier=barrier,
                region=place,
            )
            if place != region:
                self.plan.hoisted.setdefault(self._entered(place, region), []).append(key)
        return key

    def _entered(self, outer: RegionId, inner: RegionId) -> RegionId:
        """The outermost region around `inner` that is not around, or is not, `outer`."""
        while self.tables.parent[inner] != outer:
            inner = self.tables.parent[inner]
        return inner

    def _reduce(self, value: ValueIndex, sums: Sums) -> None:
        """Keep a value unreduced where that was decided; reduce the rest now, scattering where every use wants a slice."""
        kept = {axis: kind for axis, kind in sums.items() if axis in self.keep.get(value, ())}
        if kept:
            self.sums[value] = kept
        due = {axis: kind for axis, kind in sums.items() if axis not in kept}
        if not due:
            return
        before, axes = self.layouts[value], self.axes[value] or ((),) * self.atoms.count_of(value)
        scattered = self.scattering.scatters(value, axes, due)
        steps = self.scattering.steps(value, axes, scattered)
        rest = tuple(axis for axis in due if axis not in dict(scattered))
        if rest:
            steps.append(Step("all_reduce", rest, reduction=due[rest[0]]))
        after = list(axes)
        for axis, atom in scattered:
            after[atom] = (*after[atom], axis)
        self.axes[value] = tuple(after)
        self.layouts[value] = self.propagation.layout_of(value, self.axes[value])
        self.plan.reductions[value] = Reduction(value, self._moving(value, steps), before, self.layouts[value])

    def _moving(self, value: ValueIndex, steps: Sequence[Step]) -> tuple[Step, ...]:
        """Steps without those over one device, which do nothing; sums in the dtype that is asked for."""
        found = tuple(step for step in steps if self.assignment.mesh.size_of(*step.axes) > 1)
        asked = self.assignment.summed_in
        return tuple(self._summed(value, step) for step in found) if asked else found

    def _summed(self, value: ValueIndex, step: Step) -> Step:
        """A step with the dtype that its sum is made in, where another than the value's is asked for."""
        axes = [axis for axis in step.axes if self.assignment.mesh.size_of(axis) > 1]
        dtype = summed_in(self.tables.values[value].type, step.reduction, axes, self.assignment.summed_in)
        return step if dtype is None else replace(step, dtype=dtype)

    def _output(self, result: int, view: View | None) -> Layout:
        """How a result leaves; and the reshard that it takes, where it lies otherwise."""
        wanted = result_layout(self.assignment, result, view, self.layouts, self.plan.arguments)
        if view is not None:
            after = self.propagation.source(view, wanted)
            left = tuple(self.sums.get(view.source, {}))
            if after != self.layouts[view.source] or left:
                reader = Reader(-1 - result)
                self.plan.uses[reader, 0] = self._reshard(view.source, after, left, reader, "", ROOT)
        return wanted


class _CutAxes(Sequence[frozenset[str]]):
    """[values] the axes each value is actually cut over, as the walk has it now."""

    def __init__(self, planner: _Planner) -> None:
        self.planner = planner

    def __len__(self) -> int:
        return len(self.planner.axes)

    def __getitem__(self, value: int) -> frozenset[str]:  # type: ignore[override]
        return frozenset(axis for axes in self.planner.axes[value] for axis in axes)

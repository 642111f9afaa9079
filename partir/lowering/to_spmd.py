"""Lowers a plan to SPMD IR: each op on local shapes, each reshard and reduction where the plan has it. It decides nothing."""

from __future__ import annotations

from collections.abc import Sequence

from xdsl.dialects.builtin import ArrayAttr, DictionaryAttr, IntegerAttr, ModuleOp, TensorType, i64
from xdsl.dialects.func import FuncOp, ReturnOp
from xdsl.ir import Attribute, Block, Operation, Region, SSAValue

from partir.collector import paused
from partir.dialect.constants import element_type_of
from partir.dialect.core import BarrierOp, OriginAttr, TileAttr
from partir.dialect.kinds import MATRIX
from partir.dialect.sdy import MeshAttr, MeshOp, TensorShardingAttr
from partir.dialect.spmd import (
    AllGatherOp,
    AllReduceOp,
    AllSliceOp,
    AllToAllOp,
    AxesAttr,
    CoordinateOp,
    ReduceScatterOp,
)
from partir.dialect.stablehlo import OPS
from partir.lowering.anchors import small_anchor
from partir.lowering.localise import Coordinates, attributes_of, localise, mask
from partir.lowering.remake import Remaker
from partir.lowering.writer import Writer
from partir.sharding.layout import Axes, Layout, local_shape, replicated, spec_of
from partir.sharding.plan import Plan, Reshard
from partir.sharding.reshard import Place, Step, between
from partir.sharding.rule import shape_of
from partir.sharding.tables import Control, OpRow, RegionItems, View

TRIPS = "partir.trips"
"""The attribute with a `while`'s trip count, where that is known."""

IDENTITIES = frozenset({"sdy.sharding_constraint", "partir.tag"})
"""Ops that annotate a value and compute nothing."""


@paused()
def to_spmd(plan: Plan) -> ModuleOp:
    """The device-local program of a plan: `main` on local shapes, with collectives over axis names."""
    return _Lowering(plan).run()


class _Lowering:
    """One lowering. Values have the numbers of the program's tables; `current` has the local tensor of each, by number."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.tables = plan.assignment.structure.tables
        self.sizes = plan.assignment.mesh.axes
        self.by_axis = plan.assignment.mesh.shape
        arguments = self.tables.values[: self.tables.argument_count]
        self.block = Block()
        self.writer = Writer(self.block)
        types = [
            self.writer.typed(value.type, local_shape(layout, self.sizes)) if shape_of(value.type) else value.type
            for value, layout in zip(arguments, plan.arguments, strict=True)
        ]
        for type_ in types:
            self.block.insert_arg(type_, len(self.block.args))
        self.remaker = Remaker(self.writer, self.tables, self.sizes, self.slice_to)
        self.current: dict[int, SSAValue] = {}
        self.resharded: dict[int, SSAValue] = {}  # by id of the `Reshard`: its result
        self.behind_barrier: dict[tuple[int, int], SSAValue] = {}  # by row and value: what the row reads in its place
        self.coordinates: dict[Axes, SSAValue] = {}
        self.where = Coordinates(self.coordinate, self.by_axis)
        self.anchored: dict[int, SSAValue] = {}  # by id of the `Reshard`: the value to gather, behind its barrier
        self.gathers_after = self.gathers_after_contractions()

    def run(self) -> ModuleOp:
        plan = self.plan
        for argument, value in enumerate(self.block.args):
            self.current[argument] = self.slice_to(value, plan.arguments[argument], plan.entries[argument])
        self.items(self.tables.root)
        self.writer.origin = None
        returned = [self.result(r, view) for r, view in enumerate(self.tables.outputs)]
        self.block.add_op(ReturnOp(*returned))
        function = FuncOp(
            "main",
            ([a.type for a in self.block.args], [v.type for v in returned]),
            Region(self.block),
            "public",
            arg_attrs=shardings(plan.arguments),
            res_attrs=shardings(plan.outputs),
        )
        return ModuleOp([MeshOp("mesh", MeshAttr.of(plan.assignment.mesh)), function])

    def items(self, region: RegionItems) -> None:
        """Write the rows and the inner control flow of a region, in order."""
        for item in region.items:
            if isinstance(item, Control):
                self.writer.origin = item.op.attributes.get(OriginAttr.KEY)
                self.control(item)
            else:
                self.writer.origin = self.tables.rows[item].op.attributes.get(OriginAttr.KEY)
                self.row(item, self.tables.rows[item])

    def control(self, control: Control) -> None:
        """Write a `while`, `case` or optimization barrier on local values, with each carried value in the layout of its row."""
        # Reshards for ops inside that the plan makes once, before the loop or branch is entered.
        for region in control.regions:
            for key in self.plan.hoisted.get(region.number, ()):
                self.reshard(self.plan.reshards[key], self.plan.reshards[key].row, None)
        is_loop = control.op.name == "stablehlo.while"
        operands: list[SSAValue] = []
        if is_loop or not control.regions:
            operands = [self.carried(position, 0, control.op.operands[k]) for k, position in enumerate(control.carries)]
        elif control.predicate is not None:
            operands = [self.carried(control.predicate, 0, control.op.operands[0])]
        regions = [self.region(control, number) for number in range(len(control.regions))]
        types = [
            self.local_type(control.op.results[k], self.plan.rows[position].results[-1])
            for k, position in enumerate(control.carries)
        ]
        attributes = attributes_of(control.op)
        if control.trips is not None:
            attributes[TRIPS] = IntegerAttr(control.trips, i64)
        made = type(control.op).create(
            operands=operands,
            result_types=types,
            properties=dict(control.op.properties),
            attributes=attributes,
            regions=regions,
        )
        self.writer.block.add_op(made)
        for position, result in zip(control.carries, made.results, strict=True):
            value = self.tables.rows[position].results[-1]
            reduction = self.plan.reductions.get(value)
            self.current[value] = self.collectives(result, reduction.steps) if reduction is not None else result

    def region(self, control: Control, number: int) -> Region:
        """Write one region of a control flow op into a block of its own.

        The region may use values that were remade or resharded outside. Those it makes itself are forgotten at its end: no op
        outside can read them.
        """
        items = control.regions[number]
        block = Block()
        outer, self.writer.block = self.writer.block, block
        remade, resharded = self.remaker.memo, self.resharded
        self.remaker.memo, self.resharded = dict(remade), dict(resharded)
        is_loop = control.op.name == "stablehlo.while"
        if is_loop:
            for position, argument in zip(control.carries, items.arguments, strict=True):
                type_ = self.local_type(self.tables.values[argument], self.plan.rows[position].results[number])
                self.current[argument] = block.insert_arg(type_, len(block.args))
        self.items(items)
        if is_loop and number == 0:
            assert control.predicate is not None
            returned = [self.carried(control.predicate, 0, items.returns[0])]
        else:
            slot = 1 if is_loop else number
            returned = [self.carried(position, slot, items.returns[k]) for k, position in enumerate(control.carries)]
        block.add_op(OPS["stablehlo.return"].create(operands=returned))
        self.writer.block, self.remaker.memo, self.resharded = outer, remade, resharded
        return Region(block)

    def carried(self, position: int, slot: int, value: SSAValue) -> SSAValue:
        """Operand `slot` of a carry row (an initial value, or what a region hands back) in the layout that the plan gives it;
        or the scalar that a predicate row reads."""
        row = self.tables.rows[position]
        layout = self.plan.rows[position].operands[slot] if row.kind == "carry" else ()
        self.reshard_operand(position, slot, row)
        found = self.operand(position, slot, row.operands[slot], value, layout)
        for m in self.plan.rows[position].masks:
            if m.slot == slot:
                found = mask(self.writer, found, self.coordinate(m.axes), 0)
        return found

    def local_type(self, value: SSAValue, layout: Layout) -> Attribute:
        return self.writer.typed(value.type, local_shape(layout, self.sizes)) if shape_of(value.type) else value.type

    def row(self, position: int, row: OpRow) -> None:
        """Write one op: reshards of its operands, masks, the op on local shapes, and the reduction of its result."""
        row_plan = self.plan.rows[position]
        for slot, view in enumerate(row.operands):
            if view is not None:
                self.reshard_operand(position, slot, row)
        operands = [
            self.operand(position, slot, view, row.op.operands[slot], row_plan.operands[slot])
            for slot, view in enumerate(row.operands)
        ]
        for m in row_plan.masks:
            operands[m.slot] = mask(self.writer, operands[m.slot], self.coordinate(m.axes), 0 if m.kind == "add" else 1)
        if row.op.name in IDENTITIES:
            results = operands[:1]
        else:
            shapes = [local_shape(layout, self.sizes) for layout in row_plan.results]
            captured = self.captured(position, row) if row.op.regions else {}
            results = localise(self.writer, row.op, operands, row_plan.operands, shapes, self.where, captured)
        for value, result in zip(row.results, results, strict=True):
            reduction = self.plan.reductions.get(value)
            if reduction is not None:
                result = self.collectives(result, reduction.steps)
            self.current[value] = result

    def captured(self, position: int, row: OpRow) -> dict[SSAValue, SSAValue]:
        """The values from outside that the regions of an op read, replicated: the regions' ops are not partitioned."""
        found: dict[SSAValue, SSAValue] = {}
        for region in row.op.regions:
            for op in region.walk():
                for value in op.operands:
                    index = self.tables.index_of.get(value)
                    if index is None or value in found:
                        continue
                    view = self.tables.view_of(value)
                    layout = replicated(shape_of(value.type))
                    slot = -1 if view is None else -1 - view.source
                    found[value] = self.operand(position, slot, view, value, layout)
        return found

    def operand(self, position: int, slot: int, view: View | None, value: SSAValue, layout: Layout) -> SSAValue:
        """The local tensor that an op reads as operand `slot`.

        A constant-like value is made again; any other is the source of its view, resharded if the plan says so, with the view's
        ops on it.
        """
        if view is None:
            return self.remaker.constant_like(value, layout)
        source = self.behind_barrier.get((position, view.source))
        reshard = self.plan.reshard_for(position, slot)
        if reshard is not None:
            source = self.reshard(reshard, position, None)
        elif source is None:
            source = self.current[view.source]
        return self.remaker.view(value, layout, source, self.tables.values[view.source])

    def reshard_operand(self, position: int, slot: int, row: OpRow) -> None:
        """Write the reshard of one operand. All operands are resharded before one is read: a barrier may replace any."""
        reshard = self.plan.reshard_for(position, slot)
        if reshard is not None:
            self.reshard(reshard, position, row)

    def reshard(self, reshard: Reshard, position: int, row: OpRow | None) -> SSAValue:
        """The result of a reshard, written where it is first asked for (before row `position`)."""
        found = self.resharded.get(id(reshard))
        if found is None:
            value = self.current[reshard.value]
            if reshard.barrier and row is not None:
                value = self.anchored_source(reshard, position, row)
            found = self.resharded[id(reshard)] = self.collectives(value, reshard.steps)
        return found

    def gathers_after_contractions(self) -> dict[int, list[Reshard]]:
        """For each contraction (by row) that reads a barrier gather: the barrier gathers that the following rows of its region
        and phase read, up to and including those of the next such contraction.

        Their data can move while the contraction computes, so they are anchored to its operands. They are not anchored to other
        ops that read barrier gathers: a barrier before a pointwise op would keep XLA from fusing it with its operand.
        """
        by_row: dict[tuple[int, str], dict[int, list[Reshard]]] = {}
        for reshard in self.plan.reshards.values():
            if reshard.barrier and reshard.row >= 0:
                row = self.tables.rows[reshard.row]
                by_row.setdefault((row.region, reshard.phase), {}).setdefault(reshard.row, []).append(reshard)
        gathers_after: dict[int, list[Reshard]] = {}
        for rows in by_row.values():
            last: int | None = None
            for position in sorted(rows):
                if last is not None:
                    gathers_after.setdefault(last, []).extend(rows[position])
                if self.tables.rows[position].op.name in MATRIX:
                    last = position
        return gathers_after

    def anchored_source(self, reshard: Reshard, position: int, row: OpRow) -> SSAValue:
        """The value that a barrier gather gathers: a copy that an optimization barrier makes wait for an anchor.

        The anchor is an operand of the row that reads the gather, or of the contraction before that row, so that the gather
        runs while the contraction computes (`gathers_after_contractions`). Without it XLA would merge the gather with the same
        gather of another phase, and keep the gathered tensor alive in between.

        before   %g = all_gather %w                                       (in forward and in backward)
        after    %s, %dy' = barrier %w, %dy ; %g = all_gather %s          (in backward; the row now reads %dy' for %dy)
        """
        waiting = [] if id(reshard) in self.anchored else [reshard]
        later = self.gathers_after.pop(position, ())
        waiting += [other for other in later if other.value in self.current and other is not reshard]
        if waiting:
            self.anchored.update(zip(map(id, waiting), self.anchor_to_row(waiting, position, row), strict=True))
        return self.anchored[id(reshard)]

    def anchor_to_row(self, waiting: Sequence[Reshard], position: int, row: OpRow) -> Sequence[SSAValue]:
        """The values that these reshards gather, behind a barrier with an operand of the row.

        The operand is the first that is not a parameter. If it would not be stored but for the barrier, the values wait for a
        small value that it is computed from instead (see `anchors`).
        """
        values = [self.current[reshard.value] for reshard in waiting]
        for view in row.operands:
            if view is None or self.tables.of_state_alone[view.source]:
                continue
            small = small_anchor(self.tables, [reshard.value for reshard in waiting], view.source, position)
            early = self.anchor_to_value(values, small) if small is not None else None
            if early is not None:
                return early
            operand = self.behind_barrier.get((position, view.source), self.current[view.source])
            barrier = BarrierOp(*values, operand)
            self.writer.add(barrier)
            *anchored, self.behind_barrier[position, view.source] = barrier.results
            return anchored
        barrier = BarrierOp(*values)
        self.writer.add(barrier)
        return barrier.results

    def anchor_to_value(self, values: Sequence[SSAValue], anchor: int) -> Sequence[SSAValue] | None:
        """`values` behind a barrier with the value number `anchor`, right after the op that makes it. All that read the anchor
        read it behind the barrier. None if it is made in another block, or before all `values` are there."""
        made = self.current[anchor]
        producer, block = made.owner, self.writer.block
        if not isinstance(producer, Operation) or producer.parent is not block:
            return None
        here = [value.owner for value in values if isinstance(value.owner, Operation) and value.owner.parent is block]
        if not all(owner.is_before_in_block(producer) for owner in here):
            return None
        barrier = BarrierOp(*values, made)
        if self.writer.origin is not None:
            barrier.attributes[OriginAttr.KEY] = self.writer.origin
        block.insert_op_after(barrier, producer)
        made.replace_uses_with_if(barrier.results[-1], lambda use: use.operation is not barrier)
        *anchored, self.current[anchor] = barrier.results
        return anchored

    def result(self, result: int, view: View | None) -> SSAValue:
        value = self.returned[result]
        return self.operand(-1 - result, 0, view, value, self.plan.outputs[result])

    @property
    def returned(self) -> Sequence[SSAValue]:
        last = self.tables.program.body.last_op
        assert last is not None
        return last.operands

    def slice_to(self, value: SSAValue, before: Layout, after: Layout) -> SSAValue:
        """Reshard a value by the shortest steps (here: slices); those over axes of size 1 alone are left out."""
        if before == after:
            return value
        steps = between(before, after, self.sizes)
        return self.collectives(value, [step for step in steps if self.plan.assignment.mesh.size_of(*step.axes) > 1])

    def coordinate(self, axes: Axes) -> SSAValue:
        """The device's linear coordinate along axes (none: all), made once at the top of `main`, where every op can read it."""
        axes = axes or self.plan.assignment.mesh.names
        found = self.coordinates.get(axes)
        if found is None:
            op = CoordinateOp(self.axes(axes))
            first = self.block.first_op
            if first is None:
                self.block.add_op(op)
            else:
                self.block.insert_op_before(op, first)
            found = self.coordinates[axes] = op.results[0]
        return found

    def axes(self, axes: Axes) -> AxesAttr:
        return AxesAttr.of([(axis, self.by_axis[axis]) for axis in axes])

    def collectives(self, value: SSAValue, steps: Sequence[Step]) -> SSAValue:
        """Write steps one after the other. If a sum is made in another dtype the value is converted to it, and back at the end.

        before   reduce_scatter of %x : bf16 in float32
        after    %w = convert %x : f32 ; %s = reduce_scatter add %w ; %y = convert %s : bf16
        """
        own = value.type.element_type if isinstance(value.type, TensorType) else None
        for step in steps:
            if own is not None:
                value = self.writer.convert(value, own if step.dtype is None else element_type_of(step.dtype))
            value = self.writer.add(_collective(value, step, self.axes(step.axes))).results[0]
        return value if own is None else self.writer.convert(value, own)


def shardings(layouts: Sequence[Layout]) -> ArrayAttr[DictionaryAttr]:
    """Shardy's `sdy.sharding` for each argument or result of a function."""
    found: list[DictionaryAttr] = []
    for layout in layouts:
        entries = [() if e is None else (e,) if isinstance(e, str) else e for e in spec_of(layout)]
        entries += [()] * (len(layout) - len(entries))
        found.append(DictionaryAttr({"sdy.sharding": TensorShardingAttr.of("mesh", entries)}))
    return ArrayAttr(found)


def _collective(value: SSAValue, step: Step, axes: AxesAttr) -> Operation:
    if step.kind == "all_reduce":
        assert step.reduction is not None
        return AllReduceOp(value, step.reduction, axes)
    assert step.place is not None
    tile = _tile(step.place)
    if step.kind == "all_gather":
        return AllGatherOp(value, tile, axes)
    if step.kind == "all_slice":
        return AllSliceOp(value, tile, axes)
    if step.kind == "reduce_scatter":
        assert step.reduction is not None
        return ReduceScatterOp(value, step.reduction, tile, axes)
    assert step.target is not None
    return AllToAllOp(value, tile, _tile(step.target), axes)


def _tile(place: Place) -> TileAttr:
    return TileAttr.of(place.dim, place.outer)

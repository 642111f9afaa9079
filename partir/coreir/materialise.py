"""Writes a plan as Core IR: StableHLO plus loops over mesh axes, which computes the same as the program it came from.

There is one rewrite: tile this op along this factor over this axis (see `nest`). Values between the loops have their global
shapes, so Core IR has no reshards and no unreduced values. Those are in the plan, and `to_spmd` writes them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from xdsl.dialects.builtin import ArrayAttr, DictionaryAttr, IntegerAttr, ModuleOp, StringAttr, i64
from xdsl.ir import Attribute, Block, Operation, Region, SSAValue
from xdsl_jax.dialects.stablehlo.data_movement_ops import ScatterOp

from partir.collector import paused
from partir.coreir import boundary
from partir.coreir.copier import Copier
from partir.coreir.nest import Level, Nest, Nests
from partir.dialect.core import INDEX, SCALAR_I32, CoordinateOp, LoopOp, SliceOp, YieldOp
from partir.dialect.sdy import OpShardingRuleAttr
from partir.lowering.localise import Coordinates, localise, mask
from partir.lowering.writer import Writer
from partir.sharding.layout import Axes
from partir.sharding.plan import Plan, RowPlan
from partir.sharding.table_builder import CONTROL

PROPERTIES = "partir.properties"
"""On the outermost loop: those properties of the global op (sizes) that are different on the local op in the innermost body."""


@paused()
def materialise(plan: Plan) -> ModuleOp:
    """The program as Core IR: each op that the plan shards stands in loops, all others are unchanged.

    The module carries the actions, `main` the signature and the shardings of arguments and results, and the outermost loop of
    an op its sharding rule. From these `partir.coreir.read` restores the assignment.
    """
    assignment, program = plan.assignment, plan.assignment.structure.program
    block = _Materialiser(plan).run()
    carried = boundary.actions_attr(assignment.actions)
    return boundary.module_of(program.name, program.signature, assignment.mesh, block, boundary.shardings(plan), carried)


class _Materialiser:
    """One run of `materialise`. `rows` finds the number of an op's row in the program's tables."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.tables = plan.assignment.structure.tables
        program = self.tables.program
        self.copier = Copier(program.signature, program.body.args)
        self.nests = Nests(plan)
        self.rows = {row.op: p for p, row in self.tables.each_row() if row.kind in ("claim", "pass_through")}
        self.loops = LoopWriter(plan)

    def run(self) -> Block:
        self.ops(self.tables.program.body)
        return self.copier.block

    def ops(self, block: Block) -> None:
        """Write the ops of a block and of the control flow in it, each in its loops."""
        for op in block.ops:
            position = self.rows.get(op)
            nest = None if position is None else self.nests.of(position, self.tables.rows[position])
            if op.name in CONTROL and op.regions:
                self.copier.copy_control(op, self.ops)
            elif nest is None or position is None:
                self.copier.copy(op)
            else:
                values = self.copier.values
                loop = self.loops.write(self.copier.block, op, self.plan.rows[position], nest, values)
                values.update(zip(op.results, loop.results, strict=True))


class LoopWriter:
    """Writes ops in their loops, one at a time. `frames` are memoised loop properties."""

    def __init__(self, plan: Plan) -> None:
        self.by_axis = plan.assignment.mesh.shape
        self.writer = Writer(Block())
        self.frames: dict[tuple[str, tuple[Attribute, ...]], dict[str, Attribute]] = {}

    def write(self, into: Block, op: Operation, plan: RowPlan, nest: Nest, values: Mapping[SSAValue, SSAValue]) -> LoopOp:
        """Write one op in its loops at the end of the block `into`. `values` maps the values it reads to those of the copy."""
        operands = [values[v] for v in op.operands]
        blocks: list[Block] = []
        for level in nest.levels:
            blocks.append(self.enter(level, operands))
        innermost = self.writer.block = blocks[-1]
        where = Coordinates(self.coordinate_in(nest, blocks), self.by_axis)
        for m in plan.masks if isinstance(op, ScatterOp) else ():
            neutral = 0 if m.kind == "add" else 1
            operands[m.slot] = mask(self.writer, operands[m.slot], where.coordinate(m.axes), neutral)
        captured = {v: values[v] for v in captured_by(op)}
        results = localise(self.writer, op, operands, plan.operands, nest.inner, where, captured)
        attributes: dict[str, Attribute] = {}
        if (rule := op.attributes.get(OpShardingRuleAttr.KEY)) is not None:
            attributes[OpShardingRuleAttr.KEY] = rule
        if changed := _changed(op, innermost):
            attributes[PROPERTIES] = DictionaryAttr(changed)
        loop: LoopOp | None = None
        for depth in reversed(range(len(blocks))):
            block, level = blocks[depth], nest.levels[depth]
            block.add_op(YieldOp.create(operands=results))
            loop = LoopOp.create(
                result_types=[
                    self.writer.typed(r.type, shape) if shape else r.type
                    for r, shape in zip(op.results, level.shapes, strict=True)
                ],
                properties=dict(self.frame(level)),
                attributes=attributes if depth == 0 else {},
                regions=[Region(block)],
            )
            (blocks[depth - 1] if depth else into).add_op(loop)
            results = list(loop.results)
        assert loop is not None
        return loop

    def enter(self, level: Level, operands: list[SSAValue]) -> Block:
        """The block of one loop, beginning with its slices; in `operands`, each sliced operand is replaced by its slice."""
        block = Block(arg_types=[INDEX])
        index = block.args[0]
        if SSAValue.is_valid_name(level.axis):
            index.name_hint = level.axis
        made: dict[tuple[SSAValue, int], SSAValue] = {}
        for cut in level.slices:
            x = operands[cut.slot]
            found = made.get((x, id(cut.tile)))
            if found is None:
                type_ = self.writer.typed(x.type, cut.shape)
                op = SliceOp.create(operands=[x, index], result_types=[type_], properties={"tile": cut.tile})
                block.add_op(op)
                found = made[x, id(cut.tile)] = op.results[0]
            operands[cut.slot] = found
        return block

    def coordinate_in(self, nest: Nest, blocks: Sequence[Block]) -> Callable[[Axes], SSAValue]:
        """A function that writes, into the innermost block, the linear index of the current iteration along some axes (first
        axis major) as a tensor<i32>."""
        index_of = {level.axis: block.args[0] for level, block in zip(nest.levels, blocks, strict=True)}

        def coordinate(axes: Axes) -> SSAValue:
            total: SSAValue | None = None
            for axis in axes:
                digit = self.writer.add(CoordinateOp(index_of[axis])).results[0]
                if total is None:
                    total = digit
                    continue
                size = self.writer.number(self.by_axis[axis], SCALAR_I32)
                total = self.writer.binary("add", self.writer.binary("multiply", total, size), digit)
            assert total is not None
            return total

        return coordinate

    def frame(self, level: Level) -> dict[str, Attribute]:
        """The properties of a loop, made once per axis and kinds of results."""
        key = (level.axis, level.parts)
        found = self.frames.get(key)
        if found is None:
            found = self.frames[key] = {
                "axis": StringAttr(level.axis),
                "size": IntegerAttr(self.by_axis[level.axis], i64),
                "results_as": ArrayAttr(level.parts),
            }
        return found


def captured_by(op: Operation) -> list[SSAValue]:
    """The values from outside that the regions of an op read, without duplicates."""
    if not op.regions:
        return []
    inner = [other for region in op.regions for other in region.walk()]
    own: set[SSAValue] = {
        arg for other in (op, *inner) for region in other.regions for block in region.blocks for arg in block.args
    }
    own.update(result for other in inner for result in other.results)
    return list(dict.fromkeys(value for other in inner for value in other.operands if value not in own))


def _changed(op: Operation, block: Block) -> dict[str, Attribute]:
    """The properties of the global op that differ from those of its local copy, the last op of its kind in the block."""
    local = next(inner for inner in reversed(block.ops) if type(inner) is type(op))
    if local.properties == op.properties:
        return {}
    return {name: attr for name, attr in op.properties.items() if local.properties.get(name) != attr}

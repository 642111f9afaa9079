"""Unrolls Core IR to plain StableHLO on global values: the iterations of each loop are written out one after the other.

This is the definition of what Core IR computes. It uses no plan, mesh or collective, so running the result is an independent
check that Core IR computes the same as the program.
"""

from __future__ import annotations

from collections.abc import Sequence

from xdsl.dialects.builtin import DenseArrayBase, IntegerAttr, ModuleOp, i64
from xdsl.ir import Attribute, Block, Operation, Region, SSAValue

from partir.coreir import boundary
from partir.dialect.core import SCALAR_I32, CoordinateOp, Kind, LoopOp, PartAttr, ReduceAttr, SliceOp, TagOp, TileAttr
from partir.dialect.sdy import MeshOp, OpShardingRuleAttr, ShardingConstraintOp
from partir.errors import IRError, error_text
from partir.lowering.writer import Writer
from partir.sharding.rule import shape_of

COMBINERS = {
    Kind.ADD: "add",
    Kind.MUL: "multiply",
    Kind.MAX: "maximum",
    Kind.MIN: "minimum",
    Kind.AND: "and",
    Kind.OR: "or",
}


def unroll(module: ModuleOp) -> ModuleOp:
    """The module with each loop iteration written out, and their results concatenated, reduced, or (all are equal) the first.

    before   %y = loop "data"=2 [tile<0>] (%i) { %s = slice %x[%i] tile<0> ; %t = tanh %s ; yield %t }
    after    %s0 = slice %x [0:4] ; %t0 = tanh %s0 ; %s1 = slice %x [4:8] ; %t1 = tanh %s1
             %y = concatenate %t0, %t1, dim = 0

    Tags and sharding constraints compute nothing and are dropped. Raises IRError for a module with collectives.
    """
    main = boundary.main_of(module)
    old = main.body.blocks[0]
    unroller = _Unroller()
    block = unroller.open(old)
    unroller.block(old, block)
    new = type(main).create(properties=dict(main.properties), attributes=dict(main.attributes), regions=[Region(block)])
    rest = [op.clone() for op in module.body.block.ops if isinstance(op, MeshOp)]
    return ModuleOp([*rest, new], sym_name=module.sym_name)


class _Unroller:
    """One run of `unroll`. `values` maps old values to new ones, `iteration` loop indices to the current iteration's number."""

    def __init__(self) -> None:
        self.writer = Writer(Block())
        self.values: dict[SSAValue, SSAValue] = {}
        self.iteration: dict[SSAValue, int] = {}

    def open(self, old: Block) -> Block:
        """An empty block with arguments of the same types and names as those of `old`."""
        new = Block(arg_types=old.arg_types)
        for before, after in zip(old.args, new.args, strict=True):
            after.name_hint = before.name_hint
        self.values.update(zip(old.args, new.args, strict=True))
        return new

    def block(self, old: Block, into: Block) -> None:
        """Write the ops of a block into another."""
        for op in old.ops:
            self.writer.block = into
            self.op(op)

    def op(self, op: Operation) -> None:
        values = self.values
        if isinstance(op, LoopOp):
            values.update(zip(op.results, self.loop(op), strict=True))
        elif isinstance(op, SliceOp):
            dim = op.tile.position
            count = shape_of(op.x.type)[dim] // shape_of(op.result.type)[dim]
            values[op.result] = self.slice(values[op.x], op.tile, count, self.iteration[op.index])
        elif isinstance(op, CoordinateOp):
            values[op.result] = self.writer.number(self.iteration[op.index], SCALAR_I32)
        elif isinstance(op, TagOp | ShardingConstraintOp):
            values[op.results[0]] = values[op.operands[0]]
        elif op.name.startswith("spmd."):
            raise IRError(
                error_text(
                    f"cannot run {op.name} on one device",
                    why="the module is a program for one device of a mesh, not Core IR",
                )
            )
        else:
            self.copy(op)

    def copy(self, op: Operation) -> None:
        block = self.writer.block
        regions: list[Region] = []
        for region in op.regions:
            blocks = [self.open(inner) for inner in region.blocks]
            for inner, new in zip(region.blocks, blocks, strict=True):
                self.block(inner, new)
            regions.append(Region(blocks))
        copy = type(op).create(
            operands=[self.values[v] for v in op.operands],
            result_types=[r.type for r in op.results],
            properties=dict(op.properties),
            attributes={k: v for k, v in op.attributes.items() if k != OpShardingRuleAttr.KEY},
            successors=[],
            regions=regions,
        )
        block.add_op(copy)
        self.writer.block = block
        self.values.update(zip(op.results, copy.results, strict=True))

    def loop(self, loop: LoopOp) -> list[SSAValue]:
        """Write all iterations of a loop, in sequence; returns its joined results."""
        yielded: list[list[SSAValue]] = []
        body = loop.body.block
        for iteration in range(loop.trip_count):
            self.iteration[loop.index] = iteration
            for op in body.ops:
                if op is not body.last_op:
                    self.op(op)
            yielded.append([self.values[v] for v in loop.yielded])
        return [self.joined(list(parts), part) for part, parts in zip(loop.results_as, zip(*yielded, strict=True), strict=True)]

    def joined(self, parts: Sequence[SSAValue], part: PartAttr) -> SSAValue:
        """One result of a loop, from the `parts` that its iterations yield."""
        if isinstance(part, TileAttr):
            return self.concatenated(parts, part)
        if isinstance(part, ReduceAttr):
            total = parts[0]
            for other in parts[1:]:
                total = self.writer.binary(COMBINERS[part.kind.data], total, other)
            return total
        return parts[0]

    def slice(self, x: SSAValue, tile: TileAttr, count: int, number: int) -> SSAValue:
        """Part `number` of the `count` parts that `tile` splits `x` into."""
        split, dim = self.split(x, tile)
        shape = list(shape_of(split.type))
        inner = shape[dim] // count
        start, limit = [0] * len(shape), list(shape)
        start[dim], limit[dim] = number * inner, (number + 1) * inner
        shape[dim] = inner
        properties: dict[str, Attribute] = {
            "start_indices": _array(start),
            "limit_indices": _array(limit),
            "strides": _array([1] * len(shape)),
        }
        part = self.writer.make("slice", [split], self.writer.typed(x.type, tuple(shape)), properties)
        return self.merge(part, tile)

    def concatenated(self, parts: Sequence[SSAValue], tile: TileAttr) -> SSAValue:
        """The value whose slices along `tile` are `parts`: the inverse of `slice`."""
        split = [self.split(x, tile) for x in parts]
        shape, dim = list(shape_of(split[0][0].type)), split[0][1]
        shape[dim] *= len(parts)
        joined = self.writer.typed(parts[0].type, tuple(shape))
        x = self.writer.make("concatenate", [x for x, _ in split], joined, {"dimension": IntegerAttr(dim, i64)})
        return self.merge(x, tile)

    def split(self, x: SSAValue, tile: TileAttr) -> tuple[SSAValue, int]:
        """`x` with the tiled dim reshaped to [outer, rest], and the number of the dim `rest`; `x` itself if outer is 1."""
        dim, outer = tile.position, tile.outer_size
        if outer == 1:
            return x, dim
        shape = shape_of(x.type)
        return self.writer.reshape(x, (*shape[:dim], outer, shape[dim] // outer, *shape[dim + 1 :])), dim + 1

    def merge(self, x: SSAValue, tile: TileAttr) -> SSAValue:
        """The inverse of `split`."""
        dim, outer = tile.position, tile.outer_size
        if outer == 1:
            return x
        shape = shape_of(x.type)
        return self.writer.reshape(x, (*shape[:dim], outer * shape[dim + 1], *shape[dim + 2 :]))


def _array(values: Sequence[int]) -> Attribute:
    return DenseArrayBase.from_list(i64, list(values))

"""Emits SPMD IR as MLIR: ops through jaxlib's bindings, collectives as StableHLO with replica groups, locations for profilers.

The result is text that any MLIR context of jaxlib parses. It is made once per program and merged into each module that JAX
lowers the program in. Channels are numbered from 1; `Local.channels` is their number, so that the merge can renumber them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from jax.extend.mlir import ir as bindings
from jax.extend.mlir.dialects import func as func_dialect
from jax.extend.mlir.dialects import stablehlo as hlo
from jax.interpreters.mlir import make_ir_context
from xdsl.dialects.builtin import AnyFloat, ModuleOp, StringAttr, TensorType
from xdsl.dialects.func import FuncOp, ReturnOp
from xdsl.ir import Attribute, Block, Operation, SSAValue

from partir.collector import paused
from partir.dialect.core import BarrierOp, OriginAttr
from partir.dialect.kinds import CALLED
from partir.dialect.sdy import OpShardingRuleAttr
from partir.dialect.spmd import (
    AllGatherOp,
    AllReduceOp,
    AllSliceOp,
    AllToAllOp,
    AxesAttr,
    CollectivePermuteOp,
    CoordinateOp,
    ReduceScatterOp,
)
from partir.dialect.text import attribute_text
from partir.errors import IRError, error_text
from partir.mesh import Mesh
from partir.runtime.starts import held_apart, in_range

ir: Any = bindings
"""jaxlib's MLIR bindings, untyped: their stubs and what they accept differ between versions."""

COMBINERS = {
    "add": hlo.AddOp,
    "mul": hlo.MulOp,
    "max": hlo.MaxOp,
    "min": hlo.MinOp,
    "and": hlo.AndOp,
    "or": hlo.OrOp,
}


@dataclass(frozen=True, eq=False)
class Local:
    """A device-local program as MLIR text, with the number of channels its collectives use."""

    text: str
    channels: int


@paused()
def emit(module: ModuleOp, mesh: Mesh) -> Local:
    """Write an SPMD module (or any device-local StableHLO module) for the devices of `mesh`."""
    context = make_ir_context()
    with context, ir.Location.unknown(context):
        return _Emitter(mesh).run(module)


def main_of(module: ModuleOp) -> FuncOp:
    """The `main` function of a module."""
    for op in module.body.block.ops:
        if isinstance(op, FuncOp) and op.sym_name.data == "main":
            return op
    raise IRError(error_text("the module has no function @main"))


class _Emitter:
    """One emission. Memo tables are keyed by `id` and hold the xDSL attribute, too, so that the id stays taken."""

    def __init__(self, mesh: Mesh) -> None:
        self.mesh = mesh
        self.attributes: dict[int, tuple[Any, Attribute]] = {}
        self.types: dict[int, tuple[Any, Attribute]] = {}
        self.groups: dict[tuple[str, ...], Any] = {}
        self.locations: dict[int, tuple[Any, Attribute]] = {}
        self.channel = 0
        self.values: dict[SSAValue, Any] = {}
        self.unknown = ir.Location.unknown()
        self.writers: dict[type[Operation], Callable[[Any, Any], Any]] = {
            AllReduceOp: self.all_reduce,
            AllGatherOp: self.all_gather,
            AllSliceOp: self.all_slice,
            ReduceScatterOp: self.reduce_scatter,
            AllToAllOp: self.all_to_all,
            CollectivePermuteOp: self.permute,
            CoordinateOp: self.coordinate_op,
        }

    def run(self, module: ModuleOp) -> Local:
        function = main_of(module)
        block = function.body.blocks[0]
        target = ir.Module.create()
        returned = block.last_op
        assert isinstance(returned, ReturnOp)
        for text in dict.fromkeys(
            attr.data for op in module.walk() if isinstance(attr := op.attributes.get(CALLED), StringAttr)
        ):
            self.functions(text, target)
        with ir.InsertionPoint(target.body):
            inputs = [self.type(a.type) for a in block.args]
            outputs = [self.type(v.type) for v in returned.operands]
            made = func_dialect.FuncOp("main", ir.FunctionType.get(inputs, outputs))
            entry = made.add_entry_block()
        with ir.InsertionPoint(entry):
            self.values.update(zip(block.args, entry.arguments, strict=True))
            self.block(block)
        target.operation.verify()
        return Local(target.operation.get_asm(enable_debug_info=True), self.channel)

    def functions(self, text: str, target: Any) -> None:
        """Add the private functions that a custom call refers to. JAX makes their names unique when it merges the module."""

        def strip(op: Any) -> Any:
            if OpShardingRuleAttr.KEY in op.attributes:
                del op.attributes[OpShardingRuleAttr.KEY]
            return ir.WalkResult.ADVANCE

        parsed = ir.Module.parse(text)
        parsed.operation.walk(strip)
        for function in parsed.body.operations:
            function.operation.clone(ip=ir.InsertionPoint(target.body))

    def block(self, block: Block) -> None:
        """Write the ops of a block at the current insertion point."""
        values = self.values
        for op in block.ops:
            location = self.location(op)
            if isinstance(op, ReturnOp):
                func_dialect.ReturnOp([values[v] for v in op.operands], loc=location)
                continue
            writer = self.writers.get(type(op))
            if writer is not None:
                with location:
                    values[op.results[0]] = writer(op, values[op.operands[0]] if op.operands else None)
                continue
            if op.name == "stablehlo.constant" and "complex<" in str(op.results[0].type):
                values[op.results[0]] = self.complex_literal(op)
                continue
            name = "stablehlo.optimization_barrier" if isinstance(op, BarrierOp) else op.name
            operands = [values[v] for v in op.operands]
            if name == "stablehlo.fft":
                operands = [self.row_major(operands[0], location)]
            if name in ("stablehlo.dynamic_slice", "stablehlo.gather", "stablehlo.scatter"):
                with location:
                    operands = in_range(op, operands)
            new = ir.Operation.create(
                name,
                results=[self.type(r.type) for r in op.results],
                operands=operands,
                attributes=self.attributes_of(op),
                regions=len(op.regions),
                loc=location,
            )
            for region, made in zip(op.regions, new.regions, strict=True):
                for inner in region.blocks:
                    arguments = [self.type(a.type) for a in inner.args]
                    copy = made.blocks.append(*arguments)
                    values.update(zip(inner.args, copy.arguments, strict=True))
                    with ir.InsertionPoint(copy):
                        self.block(inner)
            if name == "stablehlo.fft":
                values[op.results[0]] = self.row_major(new.results[0], location)
            elif name == "stablehlo.scatter":
                with location:
                    values.update(zip(op.results, held_apart(op, new.results), strict=True))
            elif op.results:
                values.update(zip(op.results, new.results, strict=True))

    def row_major(self, x: Any, location: Any) -> Any:
        """`x` with a row-major memory layout. XLA on CPU may give operand and result of an FFT the column-major layout that
        neighbouring ops prefer, and then refuses to run the FFT."""
        rank = ir.RankedTensorType(x.type).rank
        order = ir.Attribute.parse(f"dense<{[*reversed(range(rank))]}> : tensor<{rank}xindex>")
        made = ir.Operation.create(
            "stablehlo.custom_call",
            results=[x.type],
            operands=[x],
            attributes={
                "call_target_name": ir.StringAttr.get("LayoutConstraint"),
                "operand_layouts": ir.ArrayAttr.get([order]),
                "result_layouts": ir.ArrayAttr.get([order]),
            },
            loc=location,
        )
        return made.results[0]

    def complex_literal(self, op: Operation) -> Any:
        """A constant of complex numbers. The bindings cannot make one from data: the op is parsed from text."""
        made = ir.Operation.parse(f"stablehlo.constant {attribute_text(op.properties['value'])}")
        ir.InsertionPoint.current.insert(made)
        return made.results[0]

    def attributes_of(self, op: Operation) -> dict[str, Any]:
        found = {name: self.attribute(attr) for name, attr in op.properties.items()}
        for name, attr in op.attributes.items():
            if name != OpShardingRuleAttr.KEY and not name.startswith("partir."):
                found[name] = self.attribute(attr)
        if "channel_handle" in found:
            found["channel_handle"] = self.handle()
        return found

    def attribute(self, attr: Attribute) -> Any:
        found = self.attributes.get(id(attr))
        if found is None:
            found = self.attributes[id(attr)] = (ir.Attribute.parse(attribute_text(attr)), attr)
        return found[0]

    def type(self, type_: Attribute) -> Any:
        found = self.types.get(id(type_))
        if found is None:
            found = self.types[id(type_)] = (ir.Type.parse(attribute_text(type_)), type_)
        return found[0]

    def location(self, op: Operation) -> Any:
        """A location `scope/op` at the source line, in JAX's own format, so that profilers show the user's names."""
        attr = op.attributes.get(OriginAttr.KEY)
        if not isinstance(attr, OriginAttr):
            return self.unknown
        found = self.locations.get(id(attr))
        if found is None:
            file, _, line = attr.source.data.rpartition(":")
            place = ir.Location.file(file, int(line), 0) if line.isdigit() else self.unknown
            scope = attr.scope.data or "main"
            name = scope if attr.phase.data == "forward" else f"{attr.phase.data}({scope})"
            found = self.locations[id(attr)] = (ir.Location.name(f"{name}/{op.name.rsplit('.', 1)[-1]}", place), attr)
        return found[0]

    def group(self, axes: AxesAttr) -> dict[str, Any]:
        """The replica groups of a collective over `axes`, and a new channel."""
        found = self.groups.get(axes.names)
        if found is None:
            groups = np.array(self.mesh.replica_groups(axes.names), dtype=np.int64)
            found = self.groups[axes.names] = ir.DenseElementsAttr.get(groups)
        return {"replica_groups": found, "channel_handle": self.handle()}

    def handle(self) -> Any:
        self.channel += 1
        return ir.Attribute.parse(f"#stablehlo.channel_handle<handle = {self.channel}, type = 1>")

    def combiner(self, operation: Any, kind: str, element: Any) -> None:
        """Fill the region of a reducing collective with the op that combines two scalars."""
        scalar = ir.RankedTensorType.get([], element)
        block = operation.regions[0].blocks.append(scalar, scalar)
        with ir.InsertionPoint(block):
            hlo.ReturnOp([COMBINERS[kind](*block.arguments).result])

    def all_reduce(self, op: AllReduceOp, x: Any) -> Any:
        """An all-reduce; a floating-point maximum or minimum is made one of integers, which keeps NaN."""
        if op.kind.data.value in ("max", "min") and isinstance(op.x.type, TensorType):
            element = op.x.type.element_type
            if isinstance(element, AnyFloat):
                return self.ordered(op, x, element.bitwidth)
        return self.reduced(op, x)

    def ordered(self, op: AllReduceOp, x: Any, width: int) -> Any:
        """An all-reduce by maximum or minimum of floats that keeps NaN, as on one device: done on integers of the same order.

        Some backends lose a NaN in the maximum of two floats across devices. Read as integers, with the bits below the sign
        flipped for negative numbers, floats keep their order, and a NaN of the right sign is beyond infinity: it always wins.
        `width` is the number of bits; narrower floats are converted to f32 first.
        """
        kept = x.type
        shape, element = ir.RankedTensorType(kept).shape, ir.RankedTensorType(kept).element_type
        if width < 32:
            element, width = ir.F32Type.get(), 32
            x = hlo.ConvertOp(ir.RankedTensorType.get(shape, element), x).result
        number = ir.IntegerType.get_signless(width)
        floats, integers = ir.RankedTensorType.get(shape, element), ir.RankedTensorType.get(shape, number)

        def literal(value: int) -> Any:
            return hlo.ConstantOp(ir.DenseElementsAttr.get_splat(integers, ir.IntegerAttr.get(number, value))).result

        def compare(a: Any, b: Any, how: str, kind: str) -> Any:
            return hlo.CompareOp(
                a, b, hlo.ComparisonDirectionAttr.get(how), compare_type=hlo.ComparisonTypeAttr.get(kind)
            ).result

        def flip(y: Any) -> Any:
            negative = compare(y, literal(0), "LT", "SIGNED")
            return hlo.SelectOp(negative, hlo.XorOp(y, literal(2 ** (width - 1) - 1)).result, y).result

        is_nan = compare(x, x, "NE", "FLOAT")
        nan = np.array(np.nan, dtype=np.float32 if width == 32 else np.float64).view(np.int32 if width == 32 else np.int64)
        beyond = int(nan) if op.kind.data.value == "max" else int(nan) - 2 ** (width - 1)
        bits = hlo.BitcastConvertOp(integers, x).result
        bits = flip(hlo.SelectOp(is_nan, literal(beyond), bits).result)
        bits = flip(self.reduced(op, bits))
        result = hlo.BitcastConvertOp(floats, bits).result
        return result if floats == kept else hlo.ConvertOp(kept, result).result

    def reduced(self, op: AllReduceOp, x: Any) -> Any:
        """The `stablehlo.all_reduce` itself."""
        made = ir.Operation.create(
            "stablehlo.all_reduce",
            results=[x.type],
            operands=[x],
            attributes=self.group(op.axes) | {"use_global_device_ids": ir.UnitAttr.get()},
            regions=1,
        )
        self.combiner(made, op.kind.data.value, ir.RankedTensorType(x.type).element_type)
        return made.results[0]

    def all_gather(self, op: AllGatherOp, x: Any) -> Any:
        dim, outer = op.tile.position, op.tile.outer_size
        return self.blocked(x, op.result, [(dim, outer)], lambda y, shape, dims: ir.Operation.create(
            "stablehlo.all_gather",
            results=[self.shaped(y, [n * op.axes.total if i == dims[0] else n for i, n in enumerate(shape)])],
            operands=[y],
            attributes=self.group(op.axes) | {"all_gather_dim": _i64(dims[0]), "use_global_device_ids": ir.UnitAttr.get()},
        ))  # fmt: skip

    def reduce_scatter(self, op: ReduceScatterOp, x: Any) -> Any:
        dim, outer = op.tile.position, op.tile.outer_size

        def make(y: Any, shape: list[int], dims: list[int]) -> Any:
            made = ir.Operation.create(
                "stablehlo.reduce_scatter",
                results=[self.shaped(y, [n // op.axes.total if i == dims[0] else n for i, n in enumerate(shape)])],
                operands=[y],
                attributes=self.group(op.axes)
                | {"scatter_dimension": _i64(dims[0]), "use_global_device_ids": ir.UnitAttr.get()},
                regions=1,
            )
            self.combiner(made, op.kind.data.value, ir.RankedTensorType(y.type).element_type)
            return made

        return self.blocked(x, op.result, [(dim, outer)], make)

    def all_to_all(self, op: AllToAllOp, x: Any) -> Any:
        cuts = [(op.source.position, op.source.outer_size), (op.target.position, op.target.outer_size)]
        total = op.axes.total

        def make(y: Any, shape: list[int], dims: list[int]) -> Any:
            grown, cut = dims
            result = list(shape)
            result[grown] *= total
            result[cut] //= total
            return ir.Operation.create(
                "stablehlo.all_to_all",
                results=[self.shaped(y, result)],
                operands=[y],
                attributes=self.group(op.axes)
                | {"split_dimension": _i64(cut), "concat_dimension": _i64(grown), "split_count": _i64(total)},
            )

        return self.blocked(x, op.result, cuts, make)

    def permute(self, op: CollectivePermuteOp, x: Any) -> Any:
        groups = self.mesh.replica_groups(op.axes.names)
        pairs = [[group[a], group[b]] for group in groups for a, b in op.source_target_pairs]
        made = ir.Operation.create(
            "stablehlo.collective_permute",
            results=[x.type],
            operands=[x],
            attributes={
                "source_target_pairs": ir.DenseElementsAttr.get(np.array(pairs, dtype=np.int64)),
                "channel_handle": self.handle(),
            },
        )
        return made.results[0]

    def all_slice(self, op: AllSliceOp, x: Any) -> Any:
        total = op.axes.total
        index = self.coordinate(op.axes)

        def make(y: Any, shape: list[int], dims: list[int]) -> Any:
            (dim,) = dims
            size = shape[dim] // total
            zero = _constant(0)
            start = hlo.MulOp(index, _constant(size)).result
            sizes = [size if i == dim else n for i, n in enumerate(shape)]
            return hlo.DynamicSliceOp(
                y, [start if i == dim else zero for i in range(len(shape))], ir.DenseI64ArrayAttr.get(sizes)
            )

        return self.blocked(x, op.result, [(op.tile.position, op.tile.outer_size)], make)

    def coordinate_op(self, op: CoordinateOp, _: Any) -> Any:
        return self.coordinate(op.axes)

    def coordinate(self, axes: AxesAttr) -> Any:
        """The device's linear coordinate along `axes` (first axis major) as tensor<i32>, computed from its partition id.

        The coordinate along one axis is a digit of the id: (id / stride) mod size.
        """
        scalar = ir.RankedTensorType.get([], ir.IntegerType.get_signless(32))
        device = hlo.ConvertOp(scalar, hlo.PartitionIdOp().result).result
        total = None
        for name, size in zip(axes.names, axes.sizes, strict=True):
            digit = hlo.RemOp(hlo.DivOp(device, _constant(self.mesh.stride_of(name))).result, _constant(size)).result
            total = digit if total is None else hlo.AddOp(hlo.MulOp(total, _constant(size)).result, digit).result
        return total

    def blocked(
        self, x: Any, result: SSAValue, cuts: Sequence[tuple[int, int]], make: Callable[[Any, list[int], list[int]], Any]
    ) -> Any:
        """Apply `make`, a collective on whole dims, to tiles with an outer size: reshape, apply, and reshape back.

        `cuts` are (dim, outer) pairs. A dim of size n with outer > 1 is reshaped to [outer, n / outer]. `make` gets the value,
        its shape, and for each cut the number of the dim n / outer.
        """
        shape = list(ir.RankedTensorType(x.type).shape)
        if all(outer == 1 for _, outer in cuts):
            return make(x, shape, [dim for dim, _ in cuts]).results[0]
        outer_sizes: dict[int, list[int]] = {}
        for dim, outer in cuts:
            outer_sizes.setdefault(dim, []).append(outer)
        split: list[int] = []
        where: dict[tuple[int, int], int] = {}
        for dim, size in enumerate(shape):
            outers = sorted({1, *outer_sizes.get(dim, [])})  # several cuts of one dim nest: [a, b / a, n / b] for outer a < b
            for k, outer in enumerate(outers):
                where[dim, outer] = len(split)
                inner = outers[k + 1] if k + 1 < len(outers) else size
                split.append(inner // outer)
        y = hlo.ReshapeOp(self.shaped(x, split), x).result
        y = make(y, split, [where[cut] for cut in cuts]).results[0]
        return hlo.ReshapeOp(self.type(result.type), y).result

    def shaped(self, x: Any, shape: Sequence[int]) -> Any:
        return ir.RankedTensorType.get(list(shape), ir.RankedTensorType(x.type).element_type)


def _i64(value: int) -> Any:
    return ir.IntegerAttr.get(ir.IntegerType.get_signless(64), value)


def _constant(value: int) -> Any:
    return hlo.ConstantOp(ir.DenseElementsAttr.get(np.array(value, dtype=np.int32))).result

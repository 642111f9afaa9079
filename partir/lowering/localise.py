"""One op on slices: the same op with local types, its shape-dependent attributes made local, rows picked by index masked.

Shared by the SPMD program (where a device's coordinate says which rows are its own) and by Core IR (where the loop index
does): the caller hands in how to get a coordinate.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from xdsl.dialects.builtin import DenseArrayBase, IntegerAttr, IntegerType, TensorType, i32, i64
from xdsl.ir import Attribute, Block, Operation, Region, SSAValue
from xdsl_jax.dialects.stablehlo.attributes import ComparisonDirection
from xdsl_jax.dialects.stablehlo.data_movement_ops import GatherOp, ScatterOp

from partir.dialect.kinds import happens_once
from partir.dialect.sdy import ManualComputationOp, OpShardingRuleAttr, ReturnOp
from partir.dialect.stablehlo import OPS
from partir.dialect.stablehlo_attributes import ConvDimensionNumbersAttr
from partir.lowering.writer import Writer
from partir.sharding.layout import Axes, DimLayout, Layout, axes_of
from partir.sharding.rule import shape_of


@dataclass(frozen=True)
class Coordinates:
    """Where a device is: `coordinate` gives its linear coordinate along axes (major first; `ALL_AXES` for every axis of the
    mesh) as a scalar tensor<i32>, `sizes` the devices along each axis."""

    coordinate: Callable[[Axes], SSAValue]
    sizes: Mapping[str, int]

    def devices(self, axes: Axes) -> int:
        """How many devices there are along axes."""
        return math.prod(self.sizes[axis] for axis in axes)


ALL_AXES: Axes = ()

Shape = tuple[int, ...]


def attributes_of(op: Operation) -> dict[str, Attribute]:
    """What a local op keeps of the global one's attributes: all but the sharding rule, which speaks of global sizes."""
    if OpShardingRuleAttr.KEY not in op.attributes:
        return dict(op.attributes)
    return {key: attr for key, attr in op.attributes.items() if key != OpShardingRuleAttr.KEY}


def localise(
    writer: Writer,
    op: Operation,
    operands: Sequence[SSAValue],
    layouts: Sequence[Layout],
    results: Sequence[Shape],
    where: Coordinates,
    captured: dict[SSAValue, SSAValue],
) -> list[SSAValue]:
    """Write `op` on local operands; `layouts` are the operands' layouts, `results` the local shapes of its results."""
    if isinstance(op, GatherOp) and (rows := _cut_rows(op, layouts)):
        return [_gather(writer, op, operands, results[0], rows, where)]
    if isinstance(op, ScatterOp) and (rows := _cut_rows(op, layouts)):
        operands = _scatter_indices(writer, op, operands, rows, where)
    if op.name in ("stablehlo.dynamic_slice", "stablehlo.dynamic_update_slice"):
        picked = _picked_dim(op, layouts[0])
        if picked is not None:
            return [_at_owner(writer, op, operands, results[0], picked, layouts[0][picked], where)]
    if isinstance(op, ManualComputationOp):
        return _inlined(writer, op, operands)
    if happens_once(op):
        return _on_one_device(writer, op, operands, where)
    properties = _properties(op, operands)
    types: list[Attribute] = [
        r.type if shape_of(r.type) == shape else writer.typed(r.type, shape)
        for r, shape in zip(op.results, results, strict=True)
    ]
    new = type(op).create(
        operands=operands,
        result_types=types,
        properties=properties,
        attributes=attributes_of(op),
        regions=[_copy(region, captured) for region in op.regions],
    )
    writer.block.add_op(new)
    return list(new.results)


def _copy(region: Region, captured: dict[SSAValue, SSAValue]) -> Region:
    """A region reading the local stand-ins of what it captured."""
    new = Region()
    region.clone_into(new, 0, dict(captured))
    return new


def _properties(op: Operation, operands: Sequence[SSAValue]) -> dict[str, Attribute]:
    """The properties of the local op: those that count elements of a cut dim are scaled to it."""
    if op.name == "stablehlo.convolution":
        return {**op.properties, **_fix_groups(op, operands)}
    fix = _FIXES.get(op.name)
    if fix is None:
        return dict(op.properties)
    before = shape_of(op.operands[0].type)
    after = shape_of(operands[0].type)
    return dict(op.properties) if before == after else {**op.properties, **fix(op, before, after)}


def _ints(op: Operation, name: str) -> list[int]:
    attr = op.properties[name]
    assert isinstance(attr, DenseArrayBase)
    return [int(i) for i in attr.get_values()]


def _array(values: Sequence[int]) -> Attribute:
    return DenseArrayBase.from_list(i64, list(values))


def _scaled(op: Operation, names: Sequence[str], before: Shape, after: Shape) -> dict[str, Attribute]:
    """Numbers of elements, in proportion; a dim that is not cut keeps its own, be it empty."""

    def local(values: Sequence[int]) -> list[int]:
        return [v if a == b else v * b // a for v, a, b in zip(values, before, after, strict=True)]

    return {name: _array(local(_ints(op, name))) for name in names}


def _fix_groups(op: Operation, operands: Sequence[SSAValue]) -> dict[str, Attribute]:
    """A convolution's groups on slices: as many as this device has of them."""
    numbers = op.properties["dimension_numbers"]
    assert isinstance(numbers, ConvDimensionNumbersAttr)
    d = numbers.data
    lhs, kernel, whole = (shape_of(v.type) for v in (*operands, op.operands[0]))
    count = op.properties["batch_group_count"]
    assert isinstance(count, IntegerAttr)
    features = lhs[d.input_feature] // kernel[d.kernel_input_feature]
    batches = count.value.data * lhs[d.input_batch] // whole[d.input_batch] if count.value.data > 1 else 1
    return {"feature_group_count": IntegerAttr(features, i64), "batch_group_count": IntegerAttr(batches, i64)}


def _fix_slice(op: Operation, before: Shape, after: Shape) -> dict[str, Attribute]:
    return _scaled(op, ("start_indices", "limit_indices"), before, after)


def _fix_pad(op: Operation, before: Shape, after: Shape) -> dict[str, Attribute]:
    return _scaled(op, ("edge_padding_low", "edge_padding_high"), before, after)


def _fix_window(op: Operation, before: Shape, after: Shape) -> dict[str, Attribute]:
    sizes = _ints(op, "slice_sizes")
    return {"slice_sizes": _array([b if v == a else v for v, a, b in zip(sizes, before, after, strict=True)])}


_FIXES: dict[str, Callable[[Operation, Shape, Shape], dict[str, Attribute]]] = {
    "stablehlo.slice": _fix_slice,
    "stablehlo.pad": _fix_pad,
    "stablehlo.dynamic_slice": _fix_window,
    "stablehlo.gather": _fix_window,
}
"""Ops with properties in elements of a dim, by what makes them local."""


def _row_dim(op: GatherOp | ScatterOp) -> int | None:
    """The one dim whose rows an op picks by index, if it is one."""
    if isinstance(op, GatherOp):
        dims = op.dimension_numbers.start_index_map
    else:
        dims = op.scatter_dimension_numbers.scatter_dims_to_operand_dims
    return dims.data[0].value.data if len(dims) == 1 else None


def _cut_rows(op: GatherOp | ScatterOp, layouts: Sequence[Layout]) -> DimLayout | None:
    """How the rows that an op picks by index are cut; None where they are whole."""
    dim = _row_dim(op)
    return layouts[0][dim] if dim is not None and axes_of((layouts[0][dim],)) else None


def _signed(writer: Writer, indices: SSAValue) -> SSAValue:
    """Indices in a type that can go below zero and up to any row."""
    assert isinstance(indices.type, TensorType)
    element = indices.type.element_type
    assert isinstance(element, IntegerType)
    return writer.convert(indices, i64 if element.width.data >= 32 and element != i32 else i32)


@dataclass(frozen=True)
class _Digit:
    """A row's place along one segment of a cut dim, counted from what this device has of it: `size` places, from 0; out of this
    range it is another device's. `is_cut`: whether there are others."""

    place: SSAValue
    size: int
    is_cut: bool


def _digits(writer: Writer, indices: SSAValue, rows: DimLayout, where: Coordinates) -> list[_Digit]:
    """The places of rows along the segments of a dim that is cut as `rows`, minor first. A dim that is cut in one block has one
    segment; else there are blocks, of each of which a device has a part.

    before   row 21 of 32, cut as [4, 8 over "d"], on the second of 2 devices, which has rows 4 to 7 of each block
    after    21 = 2 * 8 + 5: places 5 - 4 = 1 (of 4) and 2 (of 4), so it is row 2 * 4 + 1 = 9 here
    """
    found: list[_Digit] = []
    left = indices
    for number, (size, axes) in reversed(list(enumerate(rows))):
        here = size // where.devices(axes)
        place = left
        if number:
            full = writer.number(size, left.type)
            place, left = writer.binary("remainder", left, full), writer.binary("divide", left, full)
        if axes:
            assert isinstance(place.type, TensorType)
            first = writer.convert(where.coordinate(axes), place.type.element_type)
            first = writer.binary("multiply", first, writer.number(here, first.type))
            place = writer.binary("subtract", place, writer.broadcast(first, (), shape_of(place.type)))
        found.append(_Digit(place, here, bool(axes)))
    return found


def _local_row(writer: Writer, digits: Sequence[_Digit]) -> SSAValue:
    """What this device calls a row, from its places."""
    row, minor = digits[0].place, digits[0].size
    for digit in digits[1:]:
        row = writer.binary("add", row, writer.binary("multiply", digit.place, writer.number(minor, digit.place.type)))
        minor *= digit.size
    return row


def _is_mine(writer: Writer, digits: Sequence[_Digit]) -> SSAValue:
    """Whether this device has a row."""
    (mine, *others) = [_is_within(writer, digit.place, digit.size) for digit in digits if digit.is_cut]
    for other in others:
        mine = writer.binary("and", mine, other)
    return mine


def _is_within(writer: Writer, index: SSAValue, size: int) -> SSAValue:
    """Whether 0 <= index < size."""
    zero, last = writer.number(0, index.type), writer.number(size - 1, index.type)
    low, high = (
        writer.compare(ComparisonDirection.GE, index, zero),
        writer.compare(ComparisonDirection.LE, index, last),
    )
    return writer.binary("and", low, high)


def _clamped(writer: Writer, indices: SSAValue, last: int) -> SSAValue:
    """Indices from 0 to `last`, in a signed type."""
    low, high = writer.number(0, indices.type), writer.number(last, indices.type)
    return writer.binary("minimum", writer.binary("maximum", indices, low), high)


def _gather(
    writer: Writer,
    op: GatherOp,
    operands: Sequence[SSAValue],
    result: Shape,
    cut: DimLayout,
    where: Coordinates,
) -> SSAValue:
    """Rows picked out of a cut table: each device picks those it has, and zeros for the others; their sum is the result.

    before   %y = gather %table, %i
    after    %own = %i - coordinate * rows ; %y = select(0 <= %own < rows, gather %table_local, clamp(%own), 0)   : unreduced
    """
    dim = _row_dim(op)
    assert dim is not None
    table, indices = operands
    rows, all_rows = shape_of(table.type)[dim], shape_of(op.operands[0].type)[dim]
    digits = _digits(writer, _clamped(writer, _signed(writer, indices), all_rows - 1), cut, where)
    mine, own = _is_mine(writer, digits), _clamped(writer, _local_row(writer, digits), rows - 1)
    properties = _properties(op, operands)
    picked = type(op).create(
        operands=[table, own],
        result_types=[writer.typed(op.results[0].type, result)],
        properties=properties,
        attributes=attributes_of(op),
    )
    writer.block.add_op(picked)
    numbers = op.dimension_numbers
    vector = numbers.index_vector_dim.value.data
    batch = [n for i, n in enumerate(shape_of(mine.type)) if i != vector]
    mine = writer.reshape(mine, tuple(batch))
    offsets = {d.value.data for d in numbers.offset_dims}
    mine = writer.broadcast(mine, [d for d in range(len(result)) if d not in offsets], result)
    return writer.select(mine, picked.results[0], writer.zeros(picked.results[0].type))


def _scatter_indices(
    writer: Writer, op: ScatterOp, operands: Sequence[SSAValue], cut: DimLayout, where: Coordinates
) -> list[SSAValue]:
    """Updates of rows of a cut table: each device takes those of its own rows; the others point out of range and are dropped.

    before   %y = scatter %table, %i, %u
    after    %y = scatter %table_local, %i - coordinate * rows, %u
    """
    dim = _row_dim(op)
    assert dim is not None
    count = len(op.results)
    rows, all_rows = shape_of(operands[0].type)[dim], shape_of(op.operands[0].type)[dim]
    indices = _signed(writer, operands[count])
    digits = _digits(writer, indices, cut, where)
    own = _local_row(writer, digits)
    if len(cut) > 1:  # in one block, what is out of range of the table is out of range of every part of it
        mine = writer.binary("and", _is_mine(writer, digits), _is_within(writer, indices, all_rows))
        own = writer.select(mine, own, writer.number(rows, own.type))
    return [*operands[:count], own, *operands[count + 1 :]]


def _picked_dim(op: Operation, layout: Layout) -> int | None:
    """The dim along which a running index picks one row, where that dim is cut."""
    window = shape_of((op.results[0] if op.name == "stablehlo.dynamic_slice" else op.operands[1]).type)
    whole = shape_of(op.operands[0].type)
    return next((d for d, n in enumerate(window) if n < whole[d] and axes_of((layout[d],))), None)


def _at_owner(
    writer: Writer,
    op: Operation,
    operands: Sequence[SSAValue],
    result: Shape,
    dim: int,
    cut: DimLayout,
    where: Coordinates,
) -> SSAValue:
    """One row of a cut dim at a running index: its owner reads or writes it.

    before   %y = dynamic_slice %x, %i                  %y = dynamic_update_slice %x, %u, %i
    after    %own = %i - coordinate * rows              %own = %i - coordinate * rows
             %y = select(0 <= %own < rows,              %y = select(0 <= %own < rows,
                  dynamic_slice %x, %own, 0)                 dynamic_update_slice %x, %u, %own, %x)
             : unreduced
    """
    reads = op.name == "stablehlo.dynamic_slice"
    first = 1 if reads else 2
    rows, all_rows = shape_of(operands[0].type)[dim], shape_of(op.operands[0].type)[dim]
    digits = _digits(writer, _clamped(writer, _signed(writer, operands[first + dim]), all_rows - 1), cut, where)
    mine, own = _is_mine(writer, digits), _clamped(writer, _local_row(writer, digits), rows - 1)
    assert isinstance(own.type, TensorType)
    scalars = [own if d == dim else writer.convert(v, own.type.element_type) for d, v in enumerate(operands[first:])]
    made = type(op).create(
        operands=[*operands[:first], *scalars],
        result_types=[writer.typed(op.results[0].type, result)],
        properties=_properties(op, operands),
        attributes=attributes_of(op),
    )
    writer.block.add_op(made)
    return writer.select(mine, made.results[0], writer.zeros(made.results[0].type) if reads else operands[0])


def _inlined(writer: Writer, op: ManualComputationOp, operands: Sequence[SSAValue]) -> list[SSAValue]:
    """The body of a user's shard_map is a device-local program already: its ops stand here as they are."""
    body = op.body.blocks[0]
    values: dict[SSAValue, SSAValue] = {a: v for a, v in zip(body.args, operands, strict=True)}
    for inner in body.ops:
        if isinstance(inner, ReturnOp):
            return [values[v] for v in inner.operands]
        copy = inner.clone(values)
        copy.attributes.pop(OpShardingRuleAttr.KEY, None)
        writer.block.add_op(copy)
    raise AssertionError("a shard_map body ends with sdy.return")


def _on_one_device(writer: Writer, op: Operation, operands: Sequence[SSAValue], where: Coordinates) -> list[SSAValue]:
    """What must happen once (a host callback with an effect): on the first device; the others have zeros, and the sum is what
    it returned.

    before   %r = custom_call @callback(%x)
    after    %r = case (coordinate == 0) { return zeros } { return custom_call @callback(%x) }   : unreduced over all axes
    """
    first = writer.compare(ComparisonDirection.EQ, where.coordinate(ALL_AXES), writer.number(0, TensorType(i32, ())))
    branch = writer.convert(first, i32)
    types = [r.type for r in op.results]
    idle, active = Writer(Block()), Writer(Block())
    nothing = [idle.zeros(type_) for type_ in types]
    idle.block.add_op(OPS["stablehlo.return"].create(operands=nothing))
    call = type(op).create(operands=operands, result_types=types, properties=dict(op.properties), attributes=attributes_of(op))
    active.block.add_op(call)
    active.block.add_op(OPS["stablehlo.return"].create(operands=list(call.results)))
    case = OPS["stablehlo.case"].create(
        operands=[branch], result_types=types, regions=[Region(idle.block), Region(active.block)]
    )
    writer.add(case)
    return list(case.results)


def mask(writer: Writer, value: SSAValue, coordinate: SSAValue, neutral: int) -> SSAValue:
    """A whole value that must count once: itself on the first device along the axes, the neutral element on the others."""
    first = writer.compare(ComparisonDirection.EQ, coordinate, writer.number(0, coordinate.type))
    other = writer.zeros(value.type) if neutral == 0 else writer.number(neutral, value.type)
    return writer.select(first, value, other)

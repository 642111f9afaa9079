"""Makes values again at their uses: views of a source, and constant-like values (constants, iota, masks), in any sharding."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from xdsl.dialects.builtin import DenseIntOrFPElementsAttr, IntegerAttr
from xdsl.ir import OpResult, SSAValue

from partir.lowering.localise import attributes_of
from partir.lowering.writer import Writer
from partir.sharding.layout import DimLayout, Layout, axes_of, is_replicated, local_shape, replicated
from partir.sharding.rule import shape_of
from partir.sharding.table_builder import is_splat, view_dims
from partir.sharding.tables import Tables

Slice = Callable[[SSAValue, Layout, Layout], SSAValue]
"""Takes a device's shard of a tensor: from (tensor, layout before, layout after) to the local tensor."""


class Remaker:
    """Makes views and constant-like values in the layout that a use wants: one op per layout (and per source, for views).

    `sizes` are the mesh axes with their sizes.
    """

    def __init__(self, writer: Writer, tables: Tables, sizes: tuple[tuple[str, int], ...], slice_to: Slice) -> None:
        self.writer = writer
        self.tables = tables
        self.sizes = sizes
        self.slice_to = slice_to
        self.memo: dict[tuple[SSAValue, Layout, SSAValue | None], SSAValue] = {}

    def view(self, value: SSAValue, layout: Layout, source: SSAValue, of: SSAValue) -> SSAValue:
        """`value`, a view of the global value `of`, in `layout`. `source` is the local tensor of `of` to take it from."""
        if value is of:
            return source
        key = (value, layout, source)
        found = self.memo.get(key)
        if found is None:
            assert isinstance(value, OpResult)
            op = value.op
            inner = self.view(op.operands[0], self._inward(value, layout), source, of)
            found = self.memo[key] = self._again(value, layout, [inner])
        return found

    def _inward(self, value: OpResult, layout: Layout) -> Layout:
        """The layout of a view's operand, from the layout of its result."""
        op = value.op
        dims = view_dims(op)
        assert dims is not None
        before = shape_of(op.operands[0].type)
        inner: list[DimLayout] = [((size, ()),) for size in before]
        for target, source in enumerate(dims):
            if source >= 0:
                inner[source] = layout[target]
        return tuple(inner)

    def _again(self, value: OpResult, layout: Layout, operands: Sequence[SSAValue]) -> SSAValue:
        """The op that makes `value` once more, on local `operands` and with the local result type."""
        op = value.op
        shape = local_shape(layout, self.sizes)
        type_ = value.type if shape_of(value.type) == shape else self.writer.typed(value.type, shape)
        new = type(op).create(
            operands=operands, result_types=[type_], properties=dict(op.properties), attributes=attributes_of(op)
        )
        self.writer.block.add_op(new)
        return new.results[0]

    def constant_like(self, value: SSAValue, layout: Layout) -> SSAValue:
        """A constant-like value in `layout`."""
        key = (value, layout, None)
        found = self.memo.get(key)
        if found is None:
            assert isinstance(value, OpResult)
            found = self.memo[key] = self._constant_like(value, layout)
        return found

    def _constant_like(self, value: OpResult, layout: Layout) -> SSAValue:
        op = value.op
        name = op.name
        if name == "stablehlo.constant":
            if is_replicated(layout) or not is_splat(op):
                return self._sliced(self._again(value, replicated(shape_of(value.type)), []), layout)
            literal = op.properties["value"]
            assert isinstance(literal, DenseIntOrFPElementsAttr)
            return self.writer.splat(literal.data.data, self.writer.typed(value.type, local_shape(layout, self.sizes)))
        if name == "stablehlo.iota":
            return self._iota(value, layout)
        dims = view_dims(op) if name.rsplit(".", 1)[-1] in ("reshape", "broadcast_in_dim", "transpose") else None
        if dims is not None:
            return self._again(value, layout, [self.constant_like(op.operands[0], self._inward(value, layout))])
        if name == "stablehlo.reshape":
            full = self._again(
                value, replicated(shape_of(value.type)), [self.constant_like(op.operands[0], _replicated_like(op.operands[0]))]
            )
            return self._sliced(full, layout)
        operands = [self.constant_like(v, layout if shape_of(v.type) else ()) for v in op.operands]
        return self._again(value, layout, operands)

    def _iota(self, value: OpResult, layout: Layout) -> SSAValue:
        """An iota. If its dim is sharded, a 1-d iota is sliced and then broadcast, so that no device holds the full tensor."""
        dim = value.op.properties["iota_dimension"]
        assert isinstance(dim, IntegerAttr)
        d = dim.value.data
        if not axes_of((layout[d],)):
            return self._again(value, layout, [])
        size = shape_of(value.type)[d]
        line = self.writer.make(
            "iota", [], self.writer.typed(value.type, (size,)), {"iota_dimension": IntegerAttr(0, dim.type)}
        )
        line = self.slice_to(line, replicated((size,)), (layout[d],))
        return self.writer.broadcast(line, [d], local_shape(layout, self.sizes))

    def _sliced(self, full: SSAValue, layout: Layout) -> SSAValue:
        """A device's shard of a tensor that is there in full."""
        return full if is_replicated(layout) else self.slice_to(full, replicated(shape_of(full.type)), layout)


def _replicated_like(value: SSAValue) -> Layout:
    return replicated(shape_of(value.type))

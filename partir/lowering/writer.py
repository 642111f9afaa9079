"""A cursor into a block that appends ops: the few StableHLO ops that lowering and Core IR need to make."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

from xdsl.dialects.builtin import (
    BytesAttr,
    DenseArrayBase,
    DenseIntOrFPElementsAttr,
    TensorType,
    i1,
    i64,
)
from xdsl.ir import Attribute, Block, Operation, SSAValue
from xdsl_jax.dialects.stablehlo.attributes import ComparisonDirection, ComparisonDirectionAttr

from partir.dialect.core import OriginAttr
from partir.dialect.stablehlo import OPS
from partir.sharding.rule import shape_of


@lru_cache(maxsize=1 << 14)
def _tensor(element: Attribute, shape: tuple[int, ...]) -> TensorType[Any]:
    return TensorType(element, shape)


class Writer:
    """Appends ops to `block` and gives each the current `origin`."""

    def __init__(self, block: Block) -> None:
        self.block = block
        self.origin: Attribute | None = None
        # By id(type) and shape: hashing a type walks all of it. The type itself is kept so that its id stays taken.
        self._types: dict[tuple[int, tuple[int, ...]], tuple[TensorType[Any], Attribute]] = {}

    def add(self, op: Operation) -> Operation:
        if self.origin is not None and OriginAttr.KEY not in op.attributes:
            op.attributes[OriginAttr.KEY] = self.origin
        self.block.add_op(op)
        return op

    def make(
        self,
        name: str,
        operands: Sequence[SSAValue],
        type_: Attribute,
        properties: dict[str, Attribute] | None = None,
    ) -> SSAValue:
        """A StableHLO op with one result."""
        op = OPS[f"stablehlo.{name}"].create(operands=operands, result_types=[type_], properties=properties or {})
        return self.add(op).results[0]

    def typed(self, type_: Attribute, shape: tuple[int, ...]) -> TensorType[Any]:
        """The tensor type with the element type of `type_` and this shape."""
        assert isinstance(type_, TensorType)
        found = self._types.get((id(type_), shape))
        if found is None:
            found = self._types[id(type_), shape] = (_tensor(type_.element_type, shape), type_)
        return found[0]

    def splat(self, literal: bytes, type_: TensorType[Any]) -> SSAValue:
        """A constant whose elements are all equal; `literal` is one element as bytes."""
        attr = DenseIntOrFPElementsAttr(type_, BytesAttr(literal))
        return self.make("constant", [], type_, {"value": attr})

    def number(self, value: int, like: Attribute) -> SSAValue:
        """A constant of the tensor type `like` whose elements all are `value`."""
        assert isinstance(like, TensorType)
        scalar = DenseIntOrFPElementsAttr.from_list(_tensor(like.element_type, ()), [value])
        return self.splat(scalar.data.data, like)

    def zeros(self, like: Attribute) -> SSAValue:
        """A constant of the tensor type `like`, of any element type, whose elements all are zero."""
        assert isinstance(like, TensorType)
        return self.splat(bytes(like.element_type.compile_time_size), like)

    def binary(self, name: str, a: SSAValue, b: SSAValue) -> SSAValue:
        return self.make(name, [a, b], a.type)

    def compare(self, direction: ComparisonDirection, a: SSAValue, b: SSAValue) -> SSAValue:
        type_ = _tensor(i1, shape_of(a.type))
        return self.make("compare", [a, b], type_, {"comparison_direction": ComparisonDirectionAttr(direction)})

    def select(self, flag: SSAValue, a: SSAValue, b: SSAValue) -> SSAValue:
        return self.make("select", [flag, a, b], a.type)

    def broadcast(self, x: SSAValue, dims: Sequence[int], shape: tuple[int, ...]) -> SSAValue:
        """Broadcast `x` to `shape`; dim i of `x` becomes dim `dims[i]`."""
        if shape_of(x.type) == shape and tuple(dims) == tuple(range(len(shape))):
            return x
        properties: dict[str, Attribute] = {"broadcast_dimensions": DenseArrayBase.from_list(i64, list(dims))}
        return self.make("broadcast_in_dim", [x], self.typed(x.type, shape), properties)

    def reshape(self, x: SSAValue, shape: tuple[int, ...]) -> SSAValue:
        return x if shape_of(x.type) == shape else self.make("reshape", [x], self.typed(x.type, shape))

    def convert(self, x: SSAValue, element: Attribute) -> SSAValue:
        type_ = _tensor(element, shape_of(x.type))
        return x if x.type == type_ else self.make("convert", [x], type_)

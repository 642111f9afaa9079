"""The `spmd` dialect: the program of one device, with local shapes and explicit collectives over named mesh axes.

Everything between collectives is StableHLO. Replica groups and channel numbers appear only when `runtime` emits MLIR.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from typing import TypeVar

from xdsl.dialects.builtin import DenseArrayBase, TensorType, i32, i64
from xdsl.ir import Attribute, Data, Dialect, Operation, SSAValue
from xdsl.irdl import (
    IRDLOperation,
    base,
    irdl_attr_definition,
    irdl_op_definition,
    operand_def,
    prop_def,
    result_def,
    traits_def,
)
from xdsl.parser import AttrParser, Parser, UnresolvedOperand
from xdsl.printer import Printer
from xdsl.traits import NoMemoryEffect, Pure
from xdsl.utils.exceptions import VerifyException

from partir.dialect import syntax
from partir.dialect.attributes import Kind, KindAttr, TileAttr

_Collective = TypeVar("_Collective", bound="CollectiveOp")

CAUSE = "spmd.cause"
"""The key of the discardable attribute that says why a collective is needed."""


@irdl_attr_definition
class AxesAttr(Data[tuple[tuple[str, int], ...]]):
    """Mesh axes with sizes, major first: `#spmd.axes<"data"=4, "model"=2>`; inside ops `["data"=4, "model"=2]`."""

    name = "spmd.axes"

    @classmethod
    def of(cls, axes: Iterable[tuple[str, int]]) -> AxesAttr:
        return _axes(tuple(axes))

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(name for name, _ in self.data)

    @property
    def sizes(self) -> tuple[int, ...]:
        return tuple(size for _, size in self.data)

    @property
    def total(self) -> int:
        """The number of devices along these axes."""
        return math.prod(size for _, size in self.data)

    def verify(self) -> None:
        if not self.data:
            raise VerifyException("a collective needs at least one mesh axis")
        if len(set(self.names)) != len(self.data):
            raise VerifyException(f"mesh axes {list(self.names)} are not all different")
        for name, size in self.data:
            if size < 1:
                raise VerifyException(f'mesh axis "{name}" has size {size}')

    @classmethod
    def parse_parameter(cls, parser: AttrParser) -> tuple[tuple[str, int], ...]:
        return tuple(parser.parse_comma_separated_list(parser.Delimiter.ANGLE, lambda: syntax.parse_axis(parser)))

    def print_parameter(self, printer: Printer) -> None:
        with printer.in_angle_brackets():
            self.print_list(printer)

    @classmethod
    def parse_bracketed(cls, parser: AttrParser) -> AxesAttr:
        return cls.of(parser.parse_comma_separated_list(parser.Delimiter.SQUARE, lambda: syntax.parse_axis(parser)))

    def print_bracketed(self, printer: Printer) -> None:
        printer.print_string(" ")
        with printer.in_square_brackets():
            self.print_list(printer)

    def print_list(self, printer: Printer) -> None:
        printer.print_list(self.data, lambda axis: syntax.print_axis(printer, *axis))


@cache
def _axes(axes: tuple[tuple[str, int], ...]) -> AxesAttr:
    return AxesAttr(axes)


class CollectiveOp(IRDLOperation, ABC):
    """What the collectives have in common: one tensor `x`, the mesh `axes`, one tensor `result`."""

    x = operand_def(base(TensorType))
    axes = prop_def(AxesAttr)
    result = result_def(base(TensorType))

    traits = traits_def(NoMemoryEffect())

    @abstractmethod
    def inferred_type(self) -> Attribute:
        """The result type that follows from operand and properties. Raises VerifyException if these do not fit."""

    def verify_(self) -> None:
        if (expected := self.inferred_type()) != self.result.type:
            raise VerifyException(
                f"result is {self.result.type}, but {self.name} of {self.x.type} over {_text(self.axes)} is {expected}"
            )


@irdl_op_definition
class AllReduceOp(CollectiveOp):
    """Reduce the values of all devices along the axes; every device gets the result.

    ```mlir
    %r = spmd.all_reduce add %x ["data"=4] : tensor<8x16xf32>
    ```

    ```text
    device   0  1  2  3          0  1  2  3
    %x       a  b  c  d    %r    s  s  s  s      s = a + b + c + d
    ```
    """

    name = "spmd.all_reduce"

    kind = prop_def(KindAttr)

    def __init__(
        self, x: SSAValue | Operation, kind: KindAttr | Kind | str, axes: AxesAttr, result_type: Attribute | None = None
    ) -> None:
        x = SSAValue.get(x)
        super().__init__(
            operands=[x],
            result_types=[result_type or x.type],
            properties={"kind": _kind(kind), "axes": axes},
        )

    def inferred_type(self) -> Attribute:
        self.kind.check(self.x.type)
        return self.x.type

    @classmethod
    def parse(cls, parser: Parser) -> AllReduceOp:
        kind = syntax.parse_kind(parser)
        operand = parser.parse_unresolved_operand()
        axes = AxesAttr.parse_bracketed(parser)
        attributes = parser.parse_optional_attr_dict()
        parser.parse_punctuation(":")
        type = parser.parse_type()
        return cls.create(
            operands=[parser.resolve_operand(operand, type)],
            result_types=[type],
            properties={"kind": kind, "axes": axes},
            attributes=attributes,
        )

    def print(self, printer: Printer) -> None:
        printer.print_string(f" {self.kind.data.value} ")
        printer.print_ssa_value(self.x)
        self.axes.print_bracketed(printer)
        printer.print_op_attributes(self.attributes)
        printer.print_string(" : ")
        printer.print_attribute(self.x.type)


@irdl_op_definition
class AllGatherOp(CollectiveOp):
    """Join the shards of all devices along the axes; every device gets the full tensor.

    ```mlir
    %g = spmd.all_gather %x tile<0> ["data"=4] : tensor<2x16xf32> -> tensor<8x16xf32>
    ```

    ```text
    device   0  1  2  3          0     1     2     3
    %x       a  b  c  d    %g    abcd  abcd  abcd  abcd
    ```
    """

    name = "spmd.all_gather"

    tile = prop_def(TileAttr)

    def __init__(self, x: SSAValue | Operation, tile: TileAttr, axes: AxesAttr, result_type: Attribute | None = None) -> None:
        x = SSAValue.get(x)
        super().__init__(
            operands=[x],
            result_types=[result_type or tile.joined(x.type, axes.total)],
            properties={"tile": tile, "axes": axes},
        )

    def inferred_type(self) -> Attribute:
        return self.tile.joined(self.x.type, self.axes.total)

    @classmethod
    def parse(cls, parser: Parser) -> AllGatherOp:
        operand = parser.parse_unresolved_operand()
        return _parse_rest(cls, parser, operand, {"tile": syntax.parse_tile(parser)})

    def print(self, printer: Printer) -> None:
        _print_rest(self, printer, [self.tile])


@irdl_op_definition
class ReduceScatterOp(CollectiveOp):
    """Reduce the values of all devices along the axes; every device gets its shard of the result.

    ```mlir
    %r = spmd.reduce_scatter add %x tile<0> ["data"=4] : tensor<8x16xf32> -> tensor<2x16xf32>
    ```

    ```text
    before   %s = spmd.all_reduce add %x ["data"=4]
             %r = spmd.all_slice %s tile<0> ["data"=4]
    after    %r = spmd.reduce_scatter add %x tile<0> ["data"=4]
    when     %s has no other use
    ```
    """

    name = "spmd.reduce_scatter"

    kind = prop_def(KindAttr)
    tile = prop_def(TileAttr)

    def __init__(
        self,
        x: SSAValue | Operation,
        kind: KindAttr | Kind | str,
        tile: TileAttr,
        axes: AxesAttr,
        result_type: Attribute | None = None,
    ) -> None:
        x = SSAValue.get(x)
        super().__init__(
            operands=[x],
            result_types=[result_type or tile.cut(x.type, axes.total)],
            properties={"kind": _kind(kind), "tile": tile, "axes": axes},
        )

    def inferred_type(self) -> Attribute:
        self.kind.check(self.x.type)
        return self.tile.cut(self.x.type, self.axes.total)

    @classmethod
    def parse(cls, parser: Parser) -> ReduceScatterOp:
        kind = syntax.parse_kind(parser)
        operand = parser.parse_unresolved_operand()
        return _parse_rest(cls, parser, operand, {"kind": kind, "tile": syntax.parse_tile(parser)})

    def print(self, printer: Printer) -> None:
        printer.print_string(f" {self.kind.data.value}")
        _print_rest(self, printer, [self.tile])


@irdl_op_definition
class AllSliceOp(CollectiveOp):
    """Keep this device's shard of a tensor that is replicated along the axes; nothing is communicated.

    ```mlir
    %s = spmd.all_slice %x tile<0> ["data"=4] : tensor<8x16xf32> -> tensor<2x16xf32>
    ```

    ```text
    device   0     1     2     3           0  1  2  3
    %x       abcd  abcd  abcd  abcd  %s    a  b  c  d
    ```
    """

    name = "spmd.all_slice"

    tile = prop_def(TileAttr)

    def __init__(self, x: SSAValue | Operation, tile: TileAttr, axes: AxesAttr, result_type: Attribute | None = None) -> None:
        x = SSAValue.get(x)
        super().__init__(
            operands=[x],
            result_types=[result_type or tile.cut(x.type, axes.total)],
            properties={"tile": tile, "axes": axes},
        )

    def inferred_type(self) -> Attribute:
        return self.tile.cut(self.x.type, self.axes.total)

    @classmethod
    def parse(cls, parser: Parser) -> AllSliceOp:
        operand = parser.parse_unresolved_operand()
        return _parse_rest(cls, parser, operand, {"tile": syntax.parse_tile(parser)})

    def print(self, printer: Printer) -> None:
        _print_rest(self, printer, [self.tile])


@irdl_op_definition
class AllToAllOp(CollectiveOp):
    """Exchange shards, so that a tensor sharded along one dim becomes sharded along another.

    Shards are joined along `source` and split along `target`.

    ```mlir
    %y = spmd.all_to_all %x tile<0> -> tile<1> ["data"=4] : tensor<2x16xf32> -> tensor<8x4xf32>
    ```

    ```text
    before   %g = spmd.all_gather %x tile<0> ["data"=4]
             %y = spmd.all_slice %g tile<1> ["data"=4]
    after    %y = spmd.all_to_all %x tile<0> -> tile<1> ["data"=4]
    when     %g has no other use
    ```
    """

    name = "spmd.all_to_all"

    source = prop_def(TileAttr)
    target = prop_def(TileAttr)

    def __init__(
        self,
        x: SSAValue | Operation,
        source: TileAttr,
        target: TileAttr,
        axes: AxesAttr,
        result_type: Attribute | None = None,
    ) -> None:
        x = SSAValue.get(x)
        super().__init__(
            operands=[x],
            result_types=[result_type or target.cut(source.joined(x.type, axes.total), axes.total)],
            properties={"source": source, "target": target, "axes": axes},
        )

    def inferred_type(self) -> Attribute:
        if self.source == self.target:
            raise VerifyException(f"source and target are both {_text(self.source)}: nothing to exchange")
        return self.target.cut(self.source.joined(self.x.type, self.axes.total), self.axes.total)

    @classmethod
    def parse(cls, parser: Parser) -> AllToAllOp:
        operand = parser.parse_unresolved_operand()
        source = syntax.parse_tile(parser)
        parser.parse_punctuation("->")
        return _parse_rest(cls, parser, operand, {"source": source, "target": syntax.parse_tile(parser)})

    def print(self, printer: Printer) -> None:
        _print_rest(self, printer, [self.source, self.target])


@irdl_op_definition
class CollectivePermuteOp(CollectiveOp):
    """Send the value from device to device; a device that receives nothing gets zeros.

    `pairs` are (from, to) in the linear index along the axes, first axis major.

    ```mlir
    %y = spmd.collective_permute %x [0->1, 1->2, 2->3] ["pipe"=4] : tensor<2x16xf32>
    ```

    ```text
    device   0  1  2  3          0  1  2  3
    %x       a  b  c  d    %y    0  a  b  c
    ```
    """

    name = "spmd.collective_permute"

    pairs = prop_def(DenseArrayBase.constr(i64))

    def __init__(
        self,
        x: SSAValue | Operation,
        axes: AxesAttr,
        pairs: Sequence[tuple[int, int]],
        result_type: Attribute | None = None,
    ) -> None:
        flat = [device for pair in pairs for device in pair]
        x = SSAValue.get(x)
        super().__init__(
            operands=[x],
            result_types=[result_type or x.type],
            properties={"axes": axes, "pairs": DenseArrayBase.from_list(i64, flat)},
        )

    @property
    def source_target_pairs(self) -> tuple[tuple[int, int], ...]:
        flat = self.pairs.get_values()
        return tuple(zip(flat[::2], flat[1::2], strict=True))

    def inferred_type(self) -> Attribute:
        flat, total = self.pairs.get_values(), self.axes.total
        if len(flat) % 2:
            raise VerifyException(f"pairs has {len(flat)} entries, an odd number")
        for role, devices in (("source", flat[::2]), ("target", flat[1::2])):
            if len(set(devices)) != len(devices):
                raise VerifyException(f"{role} devices {list(devices)} are not all different")
            if outside := [device for device in devices if not 0 <= device < total]:
                raise VerifyException(f"{role} device {outside[0]} is outside {_text(self.axes)}, which has {total} devices")
        return self.x.type

    @classmethod
    def parse(cls, parser: Parser) -> CollectivePermuteOp:
        def pair() -> tuple[int, int]:
            source = parser.parse_integer(allow_boolean=False)
            parser.parse_punctuation("->")
            return source, parser.parse_integer(allow_boolean=False)

        operand = parser.parse_unresolved_operand()
        pairs = parser.parse_comma_separated_list(Parser.Delimiter.SQUARE, pair)
        axes = AxesAttr.parse_bracketed(parser)
        attributes = parser.parse_optional_attr_dict()
        parser.parse_punctuation(":")
        op = cls(parser.resolve_operand(operand, parser.parse_type()), axes, pairs)
        op.attributes.update(attributes)
        return op

    def print(self, printer: Printer) -> None:
        printer.print_string(" ")
        printer.print_ssa_value(self.x)
        printer.print_string(f" [{', '.join(f'{source}->{target}' for source, target in self.source_target_pairs)}]")
        self.axes.print_bracketed(printer)
        printer.print_op_attributes(self.attributes)
        printer.print_string(" : ")
        printer.print_attribute(self.x.type)


@irdl_op_definition
class CoordinateOp(IRDLOperation):
    """The linear index of this device along the axes, first axis major, as a scalar tensor.

    ```mlir
    %c = spmd.coordinate ["data"=4, "model"=2] : tensor<i32>
    ```
    """

    name = "spmd.coordinate"

    axes = prop_def(AxesAttr)
    result = result_def(TensorType(i32, ()))

    traits = traits_def(Pure())

    def __init__(self, axes: AxesAttr) -> None:
        super().__init__(result_types=[TensorType(i32, ())], properties={"axes": axes})

    @classmethod
    def parse(cls, parser: Parser) -> CoordinateOp:
        axes = AxesAttr.parse_bracketed(parser)
        attributes = parser.parse_optional_attr_dict()
        parser.parse_punctuation(":")
        return cls.create(result_types=[parser.parse_type()], properties={"axes": axes}, attributes=attributes)

    def print(self, printer: Printer) -> None:
        self.axes.print_bracketed(printer)
        printer.print_op_attributes(self.attributes)
        printer.print_string(" : ")
        printer.print_attribute(self.result.type)


def _parse_rest(
    cls: type[_Collective], parser: Parser, operand: UnresolvedOperand, properties: Mapping[str, Attribute]
) -> _Collective:
    """Parse what follows the tiles: axes, attributes and types."""
    axes = AxesAttr.parse_bracketed(parser)
    attributes = parser.parse_optional_attr_dict()
    source, target = syntax.parse_arrow_types(parser)
    return cls.create(
        operands=[parser.resolve_operand(operand, source)],
        result_types=[target],
        properties={**properties, "axes": axes},
        attributes=attributes,
    )


def _print_rest(op: CollectiveOp, printer: Printer, tiles: Sequence[TileAttr]) -> None:
    """Print the operand, its tiles, and what `_parse_rest` reads."""
    printer.print_string(" ")
    printer.print_ssa_value(op.x)
    printer.print_string(" ")
    printer.print_list(tiles, lambda tile: syntax.print_part(printer, tile), delimiter=" -> ")
    op.axes.print_bracketed(printer)
    printer.print_op_attributes(op.attributes)
    syntax.print_arrow_types(printer, op.x.type, op.result.type)


def _kind(kind: KindAttr | Kind | str) -> KindAttr:
    return kind if isinstance(kind, KindAttr) else KindAttr.of(kind)


def _text(attribute: TileAttr | AxesAttr) -> str:
    return str(attribute).removeprefix("#partir.").removeprefix("#spmd.axes")


SPMD = Dialect(
    "spmd",
    [AllReduceOp, AllGatherOp, ReduceScatterOp, AllSliceOp, AllToAllOp, CollectivePermuteOp, CoordinateOp],
    [AxesAttr],
)

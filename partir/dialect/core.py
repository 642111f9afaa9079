"""The `partir` dialect: loops over mesh axes around StableHLO ops (Core IR), with the meaning of the program they came from.

A loop stands for the devices along one mesh axis, run one after the other: its body computes on slices, and the loop joins what
its iterations yield. Lowering to the `spmd` dialect turns iterations into devices.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar

from xdsl.dialects.builtin import ArrayAttr, DictionaryAttr, IndexType, IntegerAttr, StringAttr, TensorType, i32, i64
from xdsl.ir import Attribute, BlockArgument, Dialect, Operation, ParametrizedAttribute, Region, SSAValue
from xdsl.irdl import (
    IRDLOperation,
    base,
    eq,
    irdl_attr_definition,
    irdl_op_definition,
    operand_def,
    prop_def,
    region_def,
    result_def,
    traits_def,
    var_operand_def,
    var_result_def,
)
from xdsl.parser import AttrParser, Parser
from xdsl.printer import Printer
from xdsl.traits import HasParent, IsTerminator, NoMemoryEffect, Pure, RecursiveMemoryEffect
from xdsl.utils.exceptions import VerifyException

from partir.dialect import syntax
from partir.dialect.attributes import AnyAttr as AnyAttr
from partir.dialect.attributes import Kind as Kind
from partir.dialect.attributes import KindAttr as KindAttr
from partir.dialect.attributes import OriginAttr as OriginAttr
from partir.dialect.attributes import Phase as Phase
from partir.dialect.attributes import PhaseAttr as PhaseAttr
from partir.dialect.attributes import ReduceAttr as ReduceAttr
from partir.dialect.attributes import TileAttr as TileAttr

PartAttr = TileAttr | ReduceAttr | AnyAttr
"""How a loop joins what its iterations yield to one result."""

INDEX = IndexType()
SCALAR_I32 = TensorType(i32, ())


@irdl_attr_definition
class ActionAttr(ParametrizedAttribute):
    """One decision, with its kind and its fields (strings and integers): `#partir.action<tile value="x" dim=0 axis="data">`.

    The kinds and their meaning are in `partir.sharding.actions`.
    """

    name = "partir.action"
    kind: StringAttr
    arguments: DictionaryAttr

    @classmethod
    def of(cls, kind: str, fields: Mapping[str, str | int]) -> ActionAttr:
        return cls(StringAttr(kind), DictionaryAttr({name: _field(value) for name, value in fields.items()}))

    @property
    def fields(self) -> dict[str, str | int]:
        """The fields by name, in the order of the text."""
        return {name: _value(attr) for name, attr in self.arguments.data.items()}

    @classmethod
    def parse_parameters(cls, parser: AttrParser) -> Sequence[Attribute]:
        with parser.in_angle_brackets():
            return cls.parse_action(parser)

    @classmethod
    def parse_action(cls, parser: AttrParser) -> tuple[StringAttr, DictionaryAttr]:
        """`tile value="x" dim=0 axis="data"`"""
        kind = parser.parse_identifier()
        fields: dict[str, Attribute] = {}
        while (name := parser.parse_optional_identifier()) is not None:
            if name in fields:
                parser.raise_error(f"{name} twice in one action")
            parser.parse_punctuation("=")
            text = parser.parse_optional_str_literal()
            fields[name] = _field(parser.parse_integer(allow_boolean=False) if text is None else text)
        return StringAttr(kind), DictionaryAttr(fields)

    def print_parameters(self, printer: Printer) -> None:
        with printer.in_angle_brackets():
            self.print_action(printer)

    def print_action(self, printer: Printer) -> None:
        """What `parse_action` reads."""
        printer.print_string(self.kind.data)
        for name, value in self.fields.items():
            printer.print_string(f" {name}=")
            if isinstance(value, str):
                printer.print_string_literal(value)
            else:
                printer.print_int(value)


@irdl_attr_definition
class ActionsAttr(ParametrizedAttribute):
    """The decisions that a Core IR module was written from, in order; its loops follow from them.

    The module carries them as the discardable attribute `partir.actions`, one per line:

    ```mlir
    builtin.module @step attributes {partir.actions = #partir.actions<
      tile value="batch/x" dim=0 axis="data",
      tile value="params/w" dim=1 axis="model"
    >} {
    ```
    """

    name = "partir.actions"
    actions: ArrayAttr[ActionAttr]

    KEY: ClassVar[str] = "partir.actions"

    @classmethod
    def of(cls, actions: Sequence[ActionAttr]) -> ActionsAttr:
        return cls(ArrayAttr(actions))

    @classmethod
    def parse_parameters(cls, parser: AttrParser) -> Sequence[Attribute]:
        def action() -> ActionAttr:
            return ActionAttr.new(ActionAttr.parse_action(parser))

        return (ArrayAttr(parser.parse_comma_separated_list(parser.Delimiter.ANGLE, action)),)

    def print_parameters(self, printer: Printer) -> None:
        with printer.in_angle_brackets():
            for number, action in enumerate(self.actions):
                printer.print_string(",\n  " if number else "\n  ")
                action.print_action(printer)
            if self.actions:
                printer.print_string("\n")


def _field(value: str | int) -> Attribute:
    return StringAttr(value) if isinstance(value, str) else IntegerAttr(value, i64)


def _value(attr: Attribute) -> str | int:
    if isinstance(attr, StringAttr):
        return attr.data
    assert isinstance(attr, IntegerAttr)
    return attr.value.data


@irdl_op_definition
class LoopOp(IRDLOperation):
    """Run a body once per device of a mesh axis, and join the yielded values.

    The body may use any value defined before the loop. `results_as` says for each result how the yielded values are
    joined: `tile<d>` concatenates them along dim d, `reduce<kind>` reduces them, `any` takes one (all are equal).
    A loop over an axis cannot be inside another loop over that axis.

    ```mlir
    %y = partir.loop "data"=4 [tile<0>] (%i) : tensor<8x16xf32> {
      %xs = partir.slice %x[%i] tile<0> : tensor<8x16xf32> -> tensor<2x16xf32>
      %s = stablehlo.tanh %xs : tensor<2x16xf32>
      partir.yield %s : tensor<2x16xf32>
    }
    ```

    As a picture, for a value of 8 rows and 4 iterations:

    ```text
    %x   [ 0 1 | 2 3 | 4 5 | 6 7 ]
    %i      0     1     2     3      each iteration sees two rows, %xs
    %y   [ 0 1 | 2 3 | 4 5 | 6 7 ]   tile<0>: what they yield, concatenated
    ```
    """

    name = "partir.loop"

    axis = prop_def(StringAttr)
    size = prop_def(IntegerAttr.constr(eq(i64)))
    results_as = prop_def(ArrayAttr.constr(base(TileAttr) | base(ReduceAttr) | base(AnyAttr)))
    outputs = var_result_def()
    body = region_def("single_block")

    traits = traits_def(RecursiveMemoryEffect())

    def __init__(
        self,
        axis: str,
        size: int,
        results_as: Sequence[PartAttr],
        body: Region,
        attributes: dict[str, Attribute] | None = None,
    ) -> None:
        """A loop whose result types are inferred from what `body` yields."""
        yielded = body.block.last_op
        types = [] if yielded is None else [operand.type for operand in yielded.operands]
        super().__init__(
            result_types=[[whole(part, type, size) for part, type in zip(results_as, types, strict=True)]],
            properties={"axis": StringAttr(axis), "size": IntegerAttr(size, i64), "results_as": ArrayAttr(results_as)},
            attributes=attributes or {},
            regions=[body],
        )

    @property
    def index(self) -> BlockArgument:
        """The number of the running iteration."""
        return self.body.block.args[0]

    @property
    def trip_count(self) -> int:
        return self.size.value.data

    @property
    def yielded(self) -> Sequence[SSAValue]:
        """What an iteration yields, one value per result."""
        last = self.body.block.last_op
        return () if last is None else last.operands

    def verify_(self) -> None:
        if self.trip_count < 1:
            raise VerifyException(f'loop over "{self.axis.data}" of size {self.trip_count}')
        block = self.body.block
        if [argument.type for argument in block.args] != [INDEX]:
            raise VerifyException("the body of a loop has exactly one argument, of type index")
        last = block.last_op
        if not isinstance(last, YieldOp):
            raise VerifyException("the body of a loop ends with partir.yield")
        if not len(self.results_as) == len(self.results) == len(last.operands):
            raise VerifyException(
                f"{len(self.results)} results, {len(self.results_as)} entries in results_as and {len(last.operands)} "
                "yielded values: these must be the same number"
            )
        for number, (part, result, operand) in enumerate(zip(self.results_as, self.results, last.operands, strict=True)):
            if (expected := whole(part, operand.type, self.trip_count)) != result.type:
                raise VerifyException(
                    f"result {number} is {result.type}, but {self.trip_count} x {operand.type} as {_text(part)} make {expected}"
                )
        outer = self.parent_op()
        while outer is not None:
            if isinstance(outer, LoopOp) and outer.axis == self.axis:
                raise VerifyException(f'loop over "{self.axis.data}" inside another loop over "{self.axis.data}"')
            outer = outer.parent_op()

    @classmethod
    def parse(cls, parser: Parser) -> LoopOp:
        axis, size = syntax.parse_axis(parser)
        parts = parser.parse_comma_separated_list(Parser.Delimiter.SQUARE, lambda: syntax.parse_part(parser))
        parser.parse_punctuation("(")
        index = parser.parse_argument(expect_type=False).resolve(INDEX)
        parser.parse_punctuation(")")
        types: list[Attribute] = []
        if parser.parse_optional_punctuation(":"):
            types = list(parser.parse_comma_separated_list(Parser.Delimiter.NONE, parser.parse_type))
        attributes = parser.parse_optional_attr_dict_with_keyword()
        return cls.create(
            result_types=types,
            properties={"axis": StringAttr(axis), "size": IntegerAttr(size, i64), "results_as": ArrayAttr(parts)},
            attributes={} if attributes is None else attributes.data,
            regions=[parser.parse_region([index])],
        )

    def print(self, printer: Printer) -> None:
        printer.print_string(" ")
        syntax.print_axis(printer, self.axis.data, self.trip_count)
        printer.print_string(" ")
        with printer.in_square_brackets():
            printer.print_list(self.results_as, lambda part: syntax.print_part(printer, part))
        printer.print_string(" (")
        printer.print_ssa_value(self.index)
        printer.print_string(")")
        if self.results:
            printer.print_string(" : ")
            printer.print_list(self.result_types, printer.print_attribute)
        printer.print_op_attributes(self.attributes, print_keyword=True)
        printer.print_string(" ")
        printer.print_region(self.body, print_entry_block_args=False)


@irdl_op_definition
class YieldOp(IRDLOperation):
    """End the body of a loop with the values of this iteration.

    ```mlir
    partir.yield %a, %b : tensor<2x16xf32>, tensor<f32>
    ```
    """

    name = "partir.yield"

    values = var_operand_def()

    traits = traits_def(IsTerminator(), HasParent(LoopOp), Pure())

    def __init__(self, *values: SSAValue | Operation) -> None:
        super().__init__(operands=[values])

    @classmethod
    def parse(cls, parser: Parser) -> YieldOp:
        operands, attributes = syntax.parse_typed_operands(parser)
        return cls.create(operands=operands, attributes=attributes)

    def print(self, printer: Printer) -> None:
        syntax.print_typed_operands(printer, self.operands, self.attributes)


@irdl_op_definition
class SliceOp(IRDLOperation):
    """The part of a value that one iteration of a loop works on.

    `x` is split along the tile into as many parts as the loop has iterations; the result is part number `index`, which
    must be the index of an enclosing loop.

    ```mlir
    %xs = partir.slice %x[%i] tile<0> : tensor<8x16xf32> -> tensor<2x16xf32>
    ```

    With an outer size the dim is split inside blocks, as a dim that a reshape merged may need: `tile<0, 2>` over 2 iterations.

    ```text
    %x           [ 0 1 2 3   4 5 6 7 ]
    %i = 0 takes   0 1       4 5
    %i = 1 takes       2 3       6 7
    ```
    """

    name = "partir.slice"

    x = operand_def(base(TensorType))
    index = operand_def(INDEX)
    tile = prop_def(TileAttr)
    result = result_def(base(TensorType))

    traits = traits_def(Pure())

    def __init__(
        self,
        x: SSAValue | Operation,
        index: SSAValue,
        tile: TileAttr,
        result_type: Attribute | None = None,
        *,
        size: int = 0,
    ) -> None:
        """A slice. Without a result type, `size` is the number of parts if the loop does not exist yet."""
        x = SSAValue.get(x)
        if result_type is None:
            loop = loop_of(index)
            if loop is None and not size:
                raise VerifyException("a slice outside a loop needs its result type, or the number of parts")
            result_type = tile.cut(x.type, size if loop is None else loop.trip_count)
        super().__init__(operands=[x, index], result_types=[result_type], properties={"tile": tile})

    def verify_(self) -> None:
        loop = loop_of(self.index)
        if loop is None:
            if isinstance(self.index, BlockArgument) and self.index.block.parent_op() is None:
                return  # the loop around it is still being built
            raise VerifyException("the index of a slice is the index of an enclosing partir.loop")
        expected = self.tile.cut(self.x.type, loop.trip_count)
        if self.result.type != expected:
            raise VerifyException(
                f'part of {self.x.type} over "{loop.axis.data}"={loop.trip_count} as {_text(self.tile)} is {expected}, '
                f"not {self.result.type}"
            )

    @classmethod
    def parse(cls, parser: Parser) -> SliceOp:
        operand = parser.parse_unresolved_operand()
        parser.parse_punctuation("[")
        index = parser.parse_unresolved_operand()
        parser.parse_punctuation("]")
        tile = syntax.parse_tile(parser)
        attributes = parser.parse_optional_attr_dict()
        source, target = syntax.parse_arrow_types(parser)
        return cls.create(
            operands=[parser.resolve_operand(operand, source), parser.resolve_operand(index, INDEX)],
            result_types=[target],
            properties={"tile": tile},
            attributes=attributes,
        )

    def print(self, printer: Printer) -> None:
        printer.print_string(" ")
        printer.print_ssa_value(self.x)
        printer.print_string("[")
        printer.print_ssa_value(self.index)
        printer.print_string("] ")
        syntax.print_part(printer, self.tile)
        printer.print_op_attributes(self.attributes)
        syntax.print_arrow_types(printer, self.x.type, self.result.type)


@irdl_op_definition
class CoordinateOp(IRDLOperation):
    """The index of a loop as a scalar tensor, which StableHLO ops can compute with.

    ```mlir
    %c = partir.coordinate %i : tensor<i32>
    ```
    """

    name = "partir.coordinate"

    index = operand_def(INDEX)
    result = result_def(SCALAR_I32)

    traits = traits_def(Pure())

    def __init__(self, index: SSAValue) -> None:
        super().__init__(operands=[index], result_types=[SCALAR_I32])

    @classmethod
    def parse(cls, parser: Parser) -> CoordinateOp:
        operand = parser.parse_unresolved_operand()
        attributes = parser.parse_optional_attr_dict()
        parser.parse_punctuation(":")
        return cls.create(
            operands=[parser.resolve_operand(operand, INDEX)], result_types=[parser.parse_type()], attributes=attributes
        )

    def print(self, printer: Printer) -> None:
        printer.print_string(" ")
        printer.print_ssa_value(self.index)
        printer.print_op_attributes(self.attributes)
        printer.print_string(" : ")
        printer.print_attribute(self.result.type)


@irdl_op_definition
class BarrierOp(IRDLOperation):
    """Pass values on unchanged; no result is available before all operands are, and compilers merge nothing across it.

    ```mlir
    %c, %d = partir.barrier %a, %b : tensor<8xf32>, tensor<f32>
    ```
    """

    name = "partir.barrier"

    inputs = var_operand_def()
    outputs = var_result_def()

    traits = traits_def(NoMemoryEffect())

    def __init__(self, *inputs: SSAValue | Operation) -> None:
        values = [SSAValue.get(value) for value in inputs]
        super().__init__(operands=[values], result_types=[[value.type for value in values]])

    def verify_(self) -> None:
        if list(self.operand_types) != list(self.result_types):
            raise VerifyException("the results of a barrier have the types of its operands")

    @classmethod
    def parse(cls, parser: Parser) -> BarrierOp:
        operands, attributes = syntax.parse_typed_operands(parser)
        return cls.create(operands=operands, result_types=[value.type for value in operands], attributes=attributes)

    def print(self, printer: Printer) -> None:
        syntax.print_typed_operands(printer, self.operands, self.attributes)


@irdl_op_definition
class TagOp(IRDLOperation):
    """Name a value, so that tactics and people can find it; the value passes on unchanged.

    ```mlir
    %y = partir.tag "residual" %x : tensor<8x16xf32>
    ```
    """

    name = "partir.tag"

    x = operand_def()
    label = prop_def(StringAttr)
    result = result_def()

    traits = traits_def(Pure())

    def __init__(self, label: str, x: SSAValue | Operation) -> None:
        x = SSAValue.get(x)
        super().__init__(operands=[x], result_types=[x.type], properties={"label": StringAttr(label)})

    def verify_(self) -> None:
        if self.x.type != self.result.type:
            raise VerifyException(f"a tag passes its value on unchanged: {self.x.type} is not {self.result.type}")

    @classmethod
    def parse(cls, parser: Parser) -> TagOp:
        label = parser.parse_str_literal()
        operand = parser.parse_unresolved_operand()
        attributes = parser.parse_optional_attr_dict()
        parser.parse_punctuation(":")
        type = parser.parse_type()
        return cls.create(
            operands=[parser.resolve_operand(operand, type)],
            result_types=[type],
            properties={"label": StringAttr(label)},
            attributes=attributes,
        )

    def print(self, printer: Printer) -> None:
        printer.print_string(" ")
        printer.print_string_literal(self.label.data)
        printer.print_string(" ")
        printer.print_ssa_value(self.x)
        printer.print_op_attributes(self.attributes)
        printer.print_string(" : ")
        printer.print_attribute(self.x.type)


def loop_of(index: SSAValue) -> LoopOp | None:
    """The loop that `index` counts, or None if it is no loop's index."""
    if isinstance(index, BlockArgument):
        parent = index.owner.parent_op()
        if isinstance(parent, LoopOp):
            return parent
    return None


def whole(part: Attribute, type: Attribute, size: int) -> Attribute:
    """The type of a loop's result if `size` iterations yield `type`. Raises VerifyException if they cannot be joined so."""
    if isinstance(part, TileAttr):
        return part.joined(type, size)
    if isinstance(part, ReduceAttr):
        part.kind.check(type)
    return type


def _text(part: Attribute) -> str:
    return str(part).removeprefix("#partir.")


PARTIR = Dialect(
    "partir",
    [LoopOp, YieldOp, SliceOp, CoordinateOp, BarrierOp, TagOp],
    [KindAttr, TileAttr, ReduceAttr, AnyAttr, PhaseAttr, OriginAttr, ActionAttr, ActionsAttr],
)

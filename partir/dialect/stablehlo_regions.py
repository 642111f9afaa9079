"""`stablehlo.reduce` and `stablehlo.while` in the syntax of MLIR; xdsl-jax cannot parse what it prints of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

from xdsl.dialects.builtin import DenseArrayBase, TensorType, i64
from xdsl.ir import Attribute, Block, Operation, Region, SSAValue
from xdsl.irdl import (
    IRDLOperation,
    SameVariadicOperandSize,
    irdl_op_definition,
    prop_def,
    region_def,
    traits_def,
    var_operand_def,
    var_result_def,
)
from xdsl.parser import Parser, UnresolvedOperand
from xdsl.printer import Printer
from xdsl.traits import RecursiveMemoryEffect
from xdsl.utils.exceptions import VerifyException
from xdsl_jax.dialects.stablehlo.modularity_ops import ReturnOp

T = TypeVar("T")


@irdl_op_definition
class ReduceOp(IRDLOperation):
    """Combine the elements along some dims, starting from `init_values`.

    ```mlir
    %s = stablehlo.reduce(%x init: %zero) applies stablehlo.add across dimensions = [1]
        : (tensor<8x16xf32>, tensor<f32>) -> tensor<8xf32>
    ```
    """

    name = "stablehlo.reduce"

    inputs = var_operand_def()
    init_values = var_operand_def()
    dimensions = prop_def(DenseArrayBase.constr(i64))
    result = var_result_def()
    body = region_def("single_block")

    irdl_options = (SameVariadicOperandSize(),)
    traits = traits_def(RecursiveMemoryEffect())

    @classmethod
    def parse(cls, parser: Parser) -> ReduceOp:
        pairs = parser.parse_comma_separated_list(Parser.Delimiter.NONE, lambda: _parse_pair(parser))
        applied = parser.parse_identifier() if parser.parse_optional_keyword("applies") else None
        parser.parse_keyword("across")
        parser.parse_keyword("dimensions")
        parser.parse_punctuation("=")
        dimensions = parser.parse_comma_separated_list(Parser.Delimiter.SQUARE, parser.parse_integer)
        attributes = parser.parse_optional_attr_dict()
        parser.parse_punctuation(":")
        position = parser.pos
        types = parser.parse_function_type()
        operands = parser.resolve_operands([*_column(pairs, 0), *_column(pairs, 1)], types.inputs.data, position)
        scalars = [operand.type for operand in operands[len(pairs) :]]
        return cls.create(
            operands=operands,
            result_types=types.outputs.data,
            properties={"dimensions": DenseArrayBase.from_list(i64, dimensions)},
            attributes=attributes,
            regions=[_applying(applied, scalars, parser) if applied else _parse_reducer(parser)],
        )

    def print(self, printer: Printer) -> None:
        def pair(values: tuple[SSAValue, SSAValue]) -> None:
            printer.print_string("(")
            printer.print_ssa_value(values[0])
            printer.print_string(" init: ")
            printer.print_ssa_value(values[1])
            printer.print_string(")")

        printer.print_list(zip(self.inputs, self.init_values, strict=True), pair)
        if applied := applied_op(self.body.block):
            printer.print_string(f" applies {applied.name}")
        printer.print_string(f" across dimensions = [{', '.join(map(str, self.dimensions.get_values()))}]")
        printer.print_op_attributes(self.attributes)
        printer.print_string(" : ")
        printer.print_operation_type(self)
        if not applied:
            self._print_reducer(printer)

    def _print_reducer(self, printer: Printer) -> None:
        arguments, count = self.body.block.args, len(self.inputs)
        printer.print_string(" reducer")
        for left, right in zip(arguments[:count], arguments[count:], strict=True):
            printer.print_string("(" if left is arguments[0] else " (")
            printer.print_block_argument(left)
            printer.print_string(", ")
            printer.print_block_argument(right)
            printer.print_string(")")
        printer.print_string(" ")
        printer.print_region(self.body, print_entry_block_args=False)


@irdl_op_definition
class WhileOp(IRDLOperation):
    """Run `body` on the carried values as long as `cond` returns true.

    ```mlir
    %n, %y = stablehlo.while(%i = %zero, %v = %x) : tensor<i32>, tensor<8xf32> cond {
      %p = stablehlo.compare LT, %i, %five, SIGNED : (tensor<i32>, tensor<i32>) -> tensor<i1>
      stablehlo.return %p : tensor<i1>
    } do {
      %j = stablehlo.add %i, %one : tensor<i32>
      stablehlo.return %j, %v : tensor<i32>, tensor<8xf32>
    }
    ```
    """

    name = "stablehlo.while"

    operand = var_operand_def()
    res = var_result_def()
    cond = region_def("single_block")
    body = region_def("single_block")

    traits = traits_def(RecursiveMemoryEffect())

    def verify_(self) -> None:
        types = list(self.operand_types)
        returned = self.body.block.last_op
        for what, found in {
            "results": self.result_types,
            "arguments of cond": [argument.type for argument in self.cond.block.args],
            "arguments of body": [argument.type for argument in self.body.block.args],
            "values the body returns": returned.operand_types if returned else (),
        }.items():
            if list(found) != types:
                raise VerifyException(f"the {what} have not the types of the operands")

    @classmethod
    def parse(cls, parser: Parser) -> WhileOp:
        def assignment() -> tuple[Parser.UnresolvedArgument, UnresolvedOperand]:
            argument = parser.parse_argument(expect_type=False)
            parser.parse_punctuation("=")
            return argument, parser.parse_unresolved_operand()

        carried = parser.parse_comma_separated_list(Parser.Delimiter.PAREN, assignment)
        types: Sequence[Attribute] = ()
        position = parser.pos
        if carried:
            parser.parse_punctuation(":")
            types = parser.parse_comma_separated_list(Parser.Delimiter.NONE, parser.parse_type)
        operands = parser.resolve_operands([operand for _, operand in carried], types, position)
        attributes = parser.parse_optional_attr_dict_with_keyword()
        regions: list[Region] = []
        for keyword in ("cond", "do"):
            parser.parse_keyword(keyword)
            arguments = [argument.resolve(type) for (argument, _), type in zip(carried, types, strict=True)]
            regions.append(parser.parse_region(arguments))
        return cls.create(
            operands=operands,
            result_types=types,
            attributes={} if attributes is None else attributes.data,
            regions=regions,
        )

    def print(self, printer: Printer) -> None:
        def assignment(pair: tuple[SSAValue, SSAValue]) -> None:
            printer.print_ssa_value(pair[0])
            printer.print_string(" = ")
            printer.print_ssa_value(pair[1])

        arguments = self.body.block.args
        with printer.in_parens():
            printer.print_list(zip(arguments, self.operand, strict=True), assignment)
        if self.operand:
            printer.print_string(" : ")
            printer.print_list(self.operand_types, printer.print_attribute)
        printer.print_op_attributes(self.attributes, print_keyword=True)
        names = printer._ssa_values  # pyright: ignore[reportPrivateUsage]  # both regions use the same names
        names.update((own, names[shown]) for own, shown in zip(self.cond.block.args, arguments, strict=True))
        printer.print_string(" cond ")
        printer.print_region(self.cond, print_entry_block_args=False)
        printer.print_string(" do ")
        printer.print_region(self.body, print_entry_block_args=False)


def applied_op(block: Block) -> Operation | None:
    """The op that a reducer consists of, if it only applies that op to its two arguments in order; else None."""
    ops = list(block.ops)
    if len(ops) != 2 or len(block.args) != 2:
        return None
    applied, returned = ops
    decorated = applied.properties or applied.attributes or applied.regions or returned.attributes
    wired = tuple(applied.operands) == tuple(block.args) and tuple(returned.operands) == tuple(applied.results)
    typed = list(applied.result_types) == [block.args[0].type] == [block.args[1].type]
    return applied if wired and typed and not decorated else None


def _applying(name: str, scalars: Sequence[Attribute], parser: Parser) -> Region:
    """before   applies stablehlo.add
    after    { ^(%a, %b): %c = stablehlo.add %a, %b ; stablehlo.return %c }
    """
    found = parser.ctx.get_optional_op(name)
    if found is None or len(scalars) != 1 or not isinstance(scalars[0], TensorType):
        parser.raise_error(f"'applies {name}' needs a known op and one input")
    block = Block(arg_types=[scalars[0], scalars[0]])
    applied = found.create(operands=block.args, result_types=[scalars[0]])
    block.add_ops([applied, ReturnOp.create(operands=applied.results)])
    return Region(block)


def _parse_pair(parser: Parser) -> tuple[UnresolvedOperand, UnresolvedOperand]:
    """`(%x init: %c)`"""
    with parser.in_parens():
        operand = parser.parse_unresolved_operand()
        parser.parse_keyword("init")
        parser.parse_punctuation(":")
        return operand, parser.parse_unresolved_operand()


def _parse_reducer(parser: Parser) -> Region:
    """`reducer(%a: t, %b: t) (%c: u, %d: u) {...}`; the block's arguments are %a, %c, %b, %d."""
    parser.parse_keyword("reducer")
    pairs: list[list[Parser.Argument]] = []
    while found := parser.parse_optional_comma_separated_list(Parser.Delimiter.PAREN, parser.parse_argument):
        pairs.append(list(found))
    return parser.parse_region([*_column(pairs, 0), *_column(pairs, 1)])


def _column(rows: Sequence[Sequence[T]], index: int) -> list[T]:
    return [row[index] for row in rows]

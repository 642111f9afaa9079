"""Parsers and printers of syntax that the dialects share: axes, tiles, typed operand lists."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from xdsl.ir import Attribute, SSAValue
from xdsl.parser import AttrParser, Parser
from xdsl.printer import Printer

from partir.dialect.attributes import AnyAttr, KindAttr, ReduceAttr, TileAttr


def parse_axis(parser: AttrParser) -> tuple[str, int]:
    """`"data"=4`"""
    name = parser.parse_str_literal()
    parser.parse_punctuation("=")
    return name, parser.parse_integer(allow_boolean=False)


def print_axis(printer: Printer, name: str, size: int) -> None:
    """What `parse_axis` reads."""
    printer.print_string_literal(name)
    printer.print_string(f"={size}")


def parse_tile(parser: AttrParser) -> TileAttr:
    """`tile<0>` or `tile<0, 4>`"""
    parser.parse_keyword("tile")
    return TileAttr.new(TileAttr.parse_parameters(parser))


def parse_kind(parser: AttrParser) -> KindAttr:
    """`add`"""
    return KindAttr(KindAttr.parse_parameter(parser))


def parse_part(parser: AttrParser) -> TileAttr | ReduceAttr | AnyAttr:
    """`tile<0>`, `reduce<add>` or `any`"""
    match parser.parse_keyword_in(("tile", "reduce", "any")):
        case "tile":
            return TileAttr.new(TileAttr.parse_parameters(parser))
        case "reduce":
            return ReduceAttr.new(ReduceAttr.parse_parameters(parser))
        case _:
            return AnyAttr()


def print_part(printer: Printer, part: Attribute) -> None:
    """What `parse_part` reads."""
    assert isinstance(part, TileAttr | ReduceAttr | AnyAttr)
    printer.print_string(part.name.removeprefix("partir."))
    part.print_parameters(printer)


def parse_typed_operands(parser: Parser) -> tuple[Sequence[SSAValue], dict[str, Attribute]]:
    """`%a, %b {attributes} : type, type`, where each part may be left out."""
    operands = parser.parse_optional_undelimited_comma_separated_list(
        parser.parse_optional_unresolved_operand, parser.parse_unresolved_operand
    )
    attributes = parser.parse_optional_attr_dict()
    if not operands:
        return (), attributes
    position = parser.pos
    parser.parse_punctuation(":")
    types = parser.parse_comma_separated_list(Parser.Delimiter.NONE, parser.parse_type)
    return parser.resolve_operands(operands, types, position), attributes


def print_typed_operands(printer: Printer, operands: Sequence[SSAValue], attributes: Mapping[str, Attribute]) -> None:
    """What `parse_typed_operands` reads."""
    if operands:
        printer.print_string(" ")
        printer.print_list(operands, printer.print_ssa_value)
    printer.print_op_attributes(attributes)
    if operands:
        printer.print_string(" : ")
        printer.print_list([operand.type for operand in operands], printer.print_attribute)


def parse_arrow_types(parser: Parser) -> tuple[Attribute, Attribute]:
    """`: type -> type`"""
    parser.parse_punctuation(":")
    source = parser.parse_type()
    parser.parse_punctuation("->")
    return source, parser.parse_type()


def print_arrow_types(printer: Printer, source: Attribute, target: Attribute) -> None:
    """What `parse_arrow_types` reads."""
    printer.print_string(" : ")
    printer.print_attribute(source)
    printer.print_string(" -> ")
    printer.print_attribute(target)

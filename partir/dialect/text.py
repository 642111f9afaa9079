"""Parses and prints modules, and single attributes through memos (the import spends most of its time on those)."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import cache, lru_cache
from io import StringIO
from itertools import pairwise
from typing import TypeVar, cast

from xdsl.context import Context
from xdsl.dialects.builtin import AnyDenseElement, Builtin, DenseIntOrFPElementsAttr, ModuleOp, RankedStructure
from xdsl.dialects.func import Func
from xdsl.ir import Attribute, Operation, TypeAttribute
from xdsl.parser import Parser
from xdsl.printer import Printer
from xdsl.utils.exceptions import DiagnosticException, ParseError

from partir.dialect.chlo import CHLO
from partir.dialect.core import PARTIR
from partir.dialect.literals import CONTENT, dense_from_text
from partir.dialect.sdy import SDY
from partir.dialect.spmd import SPMD
from partir.dialect.stablehlo import QUANT, STABLEHLO
from partir.errors import IRError, error_text

T = TypeVar("T")

DIALECTS = (Builtin, Func, STABLEHLO, CHLO, QUANT, SDY, PARTIR, SPMD)

_MEMO_LIMIT = 4096
"""Texts of more characters than this (dense literals) are not memoised: they are rare, and would never be freed."""

_SHARED = re.compile(r'tensor<\w*>|#sdy\.op_sharding_rule<[^<>"]*->[^<>"]*>|#partir\.origin<"[^"\\]*", \w+, "[^"\\]*">')


def context() -> Context:
    """A new xDSL context with every dialect loaded, in which unknown ops and attributes are errors."""
    new = Context()
    for dialect in DIALECTS:
        new.load_dialect(dialect)
    return new


def parse(text: str, name: str = "<text>") -> ModuleOp:
    """Parse and verify a module. Raises IRError with the line where the text is wrong."""
    module = _read(_context(), text, name, lambda parser: parser.parse_module(), ModuleParser)
    verify(module)
    return module


def verify(op: Operation) -> None:
    """Verify an op and all ops in its regions. Raises IRError with the offending op."""
    try:
        op.verify()
    except DiagnosticException as error:
        raise IRError(error_text("the IR breaks a rule of its dialect", where=_offender(error), why=str(error))) from error


def to_text(op: Operation) -> str:
    """The op in our syntax, which `parse` reads."""
    return _printed(op, generic=False)


def to_generic(op: Operation) -> str:
    """The op in MLIR's generic form, which MLIR reads if it knows the dialects (StableHLO, CHLO, Shardy, func)."""
    return _printed(op, generic=True)


def parse_attribute(text: str) -> Attribute:
    """An attribute or type from text that the MLIR bindings printed; the same text gives the same object.

    An attribute that no dialect here defines is kept as text, and prints the same again. Raises IRError for text that is not an
    attribute.
    """
    return _parse_attribute(text) if len(text) <= _MEMO_LIMIT else _parse_attribute.__wrapped__(text)


@lru_cache(maxsize=1 << 16)
def attribute_text(attribute: Attribute) -> str:
    """An attribute or type as text that MLIR parses."""
    out = StringIO()
    Printer(stream=out, print_generic_format=True).print_attribute(attribute)
    return out.getvalue()


class LiteralParser(Parser):
    """xDSL's parser with our own parser of dense literals (see `literals`)."""

    def parse_dense_int_or_fp_elements_attr(self, type: RankedStructure[AnyDenseElement] | None) -> DenseIntOrFPElementsAttr:
        content = CONTENT.match(self.lexer.input.content, self._current_token.span.start)
        if content is None:
            self.raise_error("expected the elements of a dense attribute in angle brackets")
        self._resume_from(content.end())
        if type is None:
            self.parse_punctuation(":", " in dense attribute")
            type = self._parse_dense_literal_type()
        try:
            return dense_from_text(content, type)
        except ValueError as error:
            self.raise_error(f"dense attribute does not fit its type: {error}", content.start(), content.end())


class ModuleParser(LiteralParser):
    """Parses each tensor type, sharding rule and origin once: a module has few different ones, each thousands of times."""

    def parse_optional_type(self) -> TypeAttribute | None:
        found = self._shared()
        return super().parse_optional_type() if found is None else cast("TypeAttribute", found)

    def parse_optional_attribute(self) -> Attribute | None:
        return self._shared() or super().parse_optional_attribute()

    def _shared(self) -> Attribute | None:
        found = _SHARED.match(self.lexer.input.content, self._current_token.span.start)
        if found is None:
            return None
        try:
            attribute = parse_attribute(found[0])
        except IRError:
            return None  # xDSL's parser then reads it in place, so that the error has its position
        self._resume_from(found.end())
        return attribute


@cache
def _context() -> Context:
    return context()


@cache
def _lenient_context() -> Context:
    lenient = context()
    lenient.allow_unregistered = True
    return lenient


@lru_cache(maxsize=1 << 16)
def _parse_attribute(text: str) -> Attribute:
    def read(parser: Parser) -> Attribute:
        attribute = parser.parse_attribute()
        if parser.pos < len(text.rstrip()):
            parser.raise_error("something follows the attribute")
        return attribute

    return _read(_lenient_context(), text, "<attribute>", read)


class _MemoPrinter(Printer):
    """A printer with a memo of attributes: a program of 20,000 ops has a few hundred different ones."""

    def print_attribute(self, attribute: Attribute) -> None:
        self.print_string(attribute_text(attribute))


def _printed(op: Operation, *, generic: bool) -> str:
    out = StringIO()
    _MemoPrinter(stream=out, print_generic_format=generic).print_op(op)
    return out.getvalue()


def _read(ctx: Context, text: str, name: str, read: Callable[[Parser], T], kind: type[Parser] = LiteralParser) -> T:
    parser = None
    try:
        parser = kind(ctx, text, name)
        return read(parser)
    except ParseError as error:
        raise _syntax_error(error.msg, error.span.start, text, name) from error
    except Exception as error:  # on some malformed text xDSL's parser raises an arbitrary Python exception
        done = text[: parser.pos].rstrip() if parser else ""
        raise _syntax_error(str(error), len(done) - 1, text, name) from error


def _syntax_error(message: str, position: int, text: str, name: str) -> IRError:
    position = max(min(position, len(text.rstrip()) - 1), 0)
    line = text.count("\n", 0, position) + 1
    column = position - (text.rfind("\n", 0, position) + 1) + 1
    shown = text.splitlines()[line - 1].strip() if line <= len(text.splitlines()) else ""
    if len(shown) > 160:
        shown = shown[:157] + "..."
    why = message.splitlines()[0] if message else "the text ends too early"
    return IRError(error_text(f"line {line} is not IR: {why}", where=f"{name}:{line}:{column}: {shown}"))


def _offender(error: DiagnosticException) -> str:
    """The line of the op that failed. xDSL attaches a printout of the module as a note, with that line underlined."""
    for note in getattr(error, "__notes__", ()):
        lines = note.splitlines()
        for above, line in pairwise(lines):
            if line.lstrip().startswith("^^"):
                shown = above.strip()
                return shown if len(shown) <= 160 else shown[:157] + "..."
    return ""

"""Attributes that Core IR and SPMD IR share: how a dim is tiled, how parts are joined to a value, where an op comes from."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import ClassVar

from xdsl.dialects.builtin import IntAttr, IntegerType, StringAttr, TensorType
from xdsl.dialects.utils import EnumAttribute
from xdsl.ir import Attribute, ParametrizedAttribute, SpacedOpaqueSyntaxAttribute
from xdsl.irdl import irdl_attr_definition
from xdsl.parser import AttrParser
from xdsl.printer import Printer
from xdsl.utils.exceptions import VerifyException
from xdsl.utils.str_enum import StrEnum


class Kind(StrEnum):
    """How partial values are combined: the reductions that every backend has as a collective."""

    ADD = "add"
    MUL = "mul"
    MAX = "max"
    MIN = "min"
    AND = "and"
    OR = "or"


@irdl_attr_definition
class KindAttr(EnumAttribute[Kind], SpacedOpaqueSyntaxAttribute):
    """A reduction kind: `#partir<kind add>`; inside ops just `add`."""

    name = "partir.kind"

    @classmethod
    @cache
    def of(cls, kind: Kind | str) -> KindAttr:
        return cls(Kind(kind))

    def check(self, type: Attribute) -> None:
        """Raise VerifyException unless values of `type` can be combined by this kind (`and` and `or` need integers)."""
        element = type.element_type if isinstance(type, TensorType) else type
        if self.data in (Kind.AND, Kind.OR) and not isinstance(element, IntegerType):
            raise VerifyException(f"kind {self.data} needs integers or booleans, not {element}")


@irdl_attr_definition
class TileAttr(ParametrizedAttribute):
    """A split of one dim into equal parts: `#partir.tile<0>`, or `#partir.tile<0, 4>`; inside ops `tile<0>`.

    For n parts, dim `dim` of size D is viewed as [outer, n, D / (outer n)], and part i has index i of the middle dim: the i-th
    contiguous piece of each of the `outer` blocks. With outer = 1 the parts are contiguous.

        tile<0>     over 2 parts of [0 1 2 3 4 5 6 7]:   [0 1 2 3]  [4 5 6 7]
        tile<0, 2>  over 2 parts of [0 1 2 3 4 5 6 7]:   [0 1 4 5]  [2 3 6 7]
    """

    name = "partir.tile"
    dim: IntAttr
    outer: IntAttr

    @classmethod
    @cache
    def of(cls, dim: int, outer: int = 1) -> TileAttr:
        return cls(IntAttr(dim), IntAttr(outer))

    @property
    def position(self) -> int:
        return self.dim.data

    @property
    def outer_size(self) -> int:
        return self.outer.data

    def verify(self) -> None:
        if self.position < 0:
            raise VerifyException(f"tile of dim {self.position}, which is negative")
        if self.outer_size < 1:
            raise VerifyException(f"tile with outer {self.outer_size}, which must be 1 or more")

    def cut(self, type: Attribute, parts: int) -> TensorType:
        """The type of one of `parts` equal parts. Raises VerifyException if the dim does not divide."""
        tensor, size = self._size(type)
        if parts < 1:
            raise VerifyException(f"a cut into {parts} parts")
        if size % (self.outer_size * parts):
            blocks = f" in {self.outer_size} blocks" if self.outer_size > 1 else ""
            raise VerifyException(f"dim {self.position} of {tensor} does not divide by {parts} parts{blocks}")
        return _resized(tensor, self.position, size // parts)

    def joined(self, type: Attribute, parts: int) -> TensorType:
        """The type of `parts` parts joined together: the inverse of `cut`."""
        tensor, size = self._size(type)
        if size % self.outer_size:
            raise VerifyException(f"dim {self.position} of {tensor} does not divide by {self.outer_size} blocks")
        return _resized(tensor, self.position, size * parts)

    def _size(self, type: Attribute) -> tuple[TensorType, int]:
        if not isinstance(type, TensorType):
            raise VerifyException(f"only a tensor can be tiled, not {type}")
        shape = type.get_shape()
        if self.position >= len(shape):
            raise VerifyException(f"tile of dim {self.position} of {type}, which has rank {len(shape)}")
        return type, shape[self.position]

    @classmethod
    def parse_parameters(cls, parser: AttrParser) -> Sequence[Attribute]:
        with parser.in_angle_brackets():
            dim = parser.parse_integer(allow_boolean=False)
            outer = 1
            if parser.parse_optional_punctuation(","):
                outer = parser.parse_integer(allow_boolean=False)
        return IntAttr(dim), IntAttr(outer)

    def print_parameters(self, printer: Printer) -> None:
        with printer.in_angle_brackets():
            printer.print_int(self.position)
            if self.outer_size != 1:
                printer.print_string(f", {self.outer_size}")


@irdl_attr_definition
class ReduceAttr(ParametrizedAttribute):
    """The parts are partial values that have to be reduced: `#partir.reduce<add>`; inside ops `reduce<add>`."""

    name = "partir.reduce"
    kind: KindAttr

    @classmethod
    @cache
    def of(cls, kind: Kind | str) -> ReduceAttr:
        return cls(KindAttr.of(kind))

    @classmethod
    def parse_parameters(cls, parser: AttrParser) -> Sequence[Attribute]:
        with parser.in_angle_brackets():
            return (KindAttr(KindAttr.parse_parameter(parser)),)

    def print_parameters(self, printer: Printer) -> None:
        with printer.in_angle_brackets():
            self.kind.print_parameter(printer)


@irdl_attr_definition
class AnyAttr(ParametrizedAttribute):
    """All parts are equal, and the value is any of them: `#partir.any`; inside ops `any`."""

    name = "partir.any"


class Phase(StrEnum):
    """The part of a training step an op belongs to."""

    FORWARD = "forward"
    BACKWARD = "backward"
    RECOMPUTED = "recomputed"


@irdl_attr_definition
class PhaseAttr(EnumAttribute[Phase], SpacedOpaqueSyntaxAttribute):
    """A phase: `#partir<phase forward>`."""

    name = "partir.phase"


@irdl_attr_definition
class OriginAttr(ParametrizedAttribute):
    """The scope, phase and source line of an op: `#partir.origin<"layer_0/attention-block", forward, "gpt.py:81">`.

    Ops carry it as the discardable attribute `partir.origin`.
    """

    name = "partir.origin"
    scope: StringAttr
    phase: PhaseAttr
    source: StringAttr

    KEY: ClassVar[str] = "partir.origin"

    @classmethod
    @cache
    def of(cls, scope: str, phase: Phase | str = Phase.FORWARD, source: str = "") -> OriginAttr:
        return cls(StringAttr(scope), PhaseAttr(Phase(phase)), StringAttr(source))

    @classmethod
    def parse_parameters(cls, parser: AttrParser) -> Sequence[Attribute]:
        with parser.in_angle_brackets():
            scope = parser.parse_str_literal()
            parser.parse_punctuation(",")
            phase = PhaseAttr.parse_parameter(parser)
            parser.parse_punctuation(",")
            source = parser.parse_str_literal()
        return StringAttr(scope), PhaseAttr(phase), StringAttr(source)

    def print_parameters(self, printer: Printer) -> None:
        with printer.in_angle_brackets():
            printer.print_string_literal(self.scope.data)
            printer.print_string(f", {self.phase.data.value}, ")
            printer.print_string_literal(self.source.data)


def _resized(type: TensorType, dim: int, size: int) -> TensorType:
    shape = type.get_shape()
    return TensorType(type.element_type, (*shape[:dim], size, *shape[dim + 1 :]), type.encoding)

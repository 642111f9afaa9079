"""The attributes of Shardy, printed and parsed exactly as Shardy does (its `attrs.td`, `printers.cc`, `parsers.cc`)."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import ClassVar

from xdsl.ir import Data, OpaqueSyntaxAttribute
from xdsl.irdl import irdl_attr_definition
from xdsl.parser import AttrParser
from xdsl.printer import Printer
from xdsl.utils.exceptions import VerifyException

from partir.dialect import syntax
from partir.mesh import Mesh


@dataclass(frozen=True)
class MeshShape:
    """Named axes with sizes, and the device ids if their order is not 0, 1, 2, ..."""

    axes: tuple[tuple[str, int], ...]
    device_ids: tuple[int, ...] = ()


@irdl_attr_definition
class MeshAttr(Data[MeshShape]):
    """`#sdy.mesh<["data"=4, "model"=2]>`, with `device_ids=[...]` if their order is not 0, 1, 2, ...

    No axes and one device id is Shardy's maximal mesh: everything is on that device.
    """

    name = "sdy.mesh"

    @classmethod
    def of(cls, mesh: Mesh | Iterable[tuple[str, int]], device_ids: Sequence[int] = ()) -> MeshAttr:
        axes = mesh.axes if isinstance(mesh, Mesh) else tuple(mesh)
        return cls(MeshShape(axes, tuple(device_ids)))

    @property
    def axes(self) -> tuple[tuple[str, int], ...]:
        return self.data.axes

    @property
    def device_ids(self) -> tuple[int, ...]:
        return self.data.device_ids

    @property
    def mesh(self) -> Mesh:
        return Mesh(self.axes)

    def verify(self) -> None:
        names = [name for name, _ in self.axes]
        if len(set(names)) != len(names):
            raise VerifyException(f"mesh axes {names} are not all different")

    @classmethod
    def parse_parameter(cls, parser: AttrParser) -> MeshShape:
        device_ids: Sequence[int] = ()
        with parser.in_angle_brackets():
            axes = parser.parse_comma_separated_list(parser.Delimiter.SQUARE, lambda: syntax.parse_axis(parser))
            if parser.parse_optional_punctuation(","):
                parser.parse_keyword("device_ids")
                parser.parse_punctuation("=")
                device_ids = parser.parse_comma_separated_list(parser.Delimiter.SQUARE, parser.parse_integer)
        return MeshShape(tuple(axes), tuple(device_ids))

    def print_parameter(self, printer: Printer) -> None:
        with printer.in_angle_brackets():
            with printer.in_square_brackets():
                printer.print_list(self.axes, lambda axis: syntax.print_axis(printer, *axis))
            if self.device_ids:
                printer.print_string(f", device_ids=[{', '.join(map(str, self.device_ids))}]")


@dataclass(frozen=True)
class AxisRef:
    """A mesh axis or a sub-axis: `"model":(2)4` is the part of size 4 of "model" that comes after a major part of size 2."""

    name: str
    pre_size: int = 0
    size: int = 0

    @property
    def is_part(self) -> bool:
        return self.size > 0


@dataclass(frozen=True)
class DimSharding:
    """The axes of one dim, major first; an open dim (`?`) may be sharded further; `priority` as in `{"a"}p1`."""

    axes: tuple[AxisRef, ...] = ()
    is_closed: bool = True
    priority: int | None = None

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(axis.name for axis in self.axes)


@dataclass(frozen=True)
class Sharding:
    """One tensor's sharding over a mesh (a symbol, or a mesh spelled out)."""

    mesh: str | MeshShape
    dims: tuple[DimSharding, ...]
    replicated: tuple[AxisRef, ...] = ()
    unreduced: tuple[AxisRef, ...] = ()
    unreduced_kind: str = ""
    """Empty for sums; newer Shardy also knows `max` and `min`."""


@irdl_attr_definition
class TensorShardingAttr(Data[Sharding]):
    """`#sdy.sharding<@mesh, [{"data", ?}, {"model":(1)2}], replicated={"x"}, unreduced={"y"}>`."""

    name = "sdy.sharding"

    @classmethod
    def of(
        cls,
        mesh: str | MeshShape,
        dims: Iterable[Iterable[str] | None],
        *,
        is_closed: bool = True,
        replicated: Iterable[str] = (),
        unreduced: Iterable[str] = (),
    ) -> TensorShardingAttr:
        """A sharding from axis names, a list per dim; all dims are closed or all open. None is an open dim without axes."""
        return cls(
            Sharding(
                mesh,
                tuple(
                    DimSharding(is_closed=False) if axes is None else DimSharding(tuple(map(AxisRef, axes)), is_closed)
                    for axes in dims
                ),
                tuple(map(AxisRef, replicated)),
                tuple(map(AxisRef, unreduced)),
            )
        )

    @property
    def mesh(self) -> str | MeshShape:
        """The name of the mesh, or the mesh itself where it is spelled out."""
        return self.data.mesh

    @property
    def dims(self) -> tuple[DimSharding, ...]:
        return self.data.dims

    @property
    def replicated(self) -> tuple[AxisRef, ...]:
        return self.data.replicated

    @property
    def unreduced(self) -> tuple[AxisRef, ...]:
        return self.data.unreduced

    @classmethod
    def parse_parameter(cls, parser: AttrParser) -> Sharding:
        replicated: tuple[AxisRef, ...] = ()
        unreduced: tuple[AxisRef, ...] = ()
        kind = ""
        with parser.in_angle_brackets():
            mesh: str | MeshShape
            if parser.parse_optional_keyword("mesh"):
                mesh = MeshAttr.parse_parameter(parser)
            else:
                mesh = parser.parse_symbol_name().data
            parser.parse_punctuation(",")
            dims = parser.parse_comma_separated_list(parser.Delimiter.SQUARE, lambda: _parse_dim(parser))
            while parser.parse_optional_punctuation(","):
                if parser.parse_keyword_in(("replicated", "unreduced")) == "replicated":
                    parser.parse_punctuation("=")
                    replicated = _parse_axes(parser)
                else:
                    parser.parse_punctuation("=")
                    kind = parser.parse_optional_keyword_in(("max", "min")) or ""
                    unreduced = _parse_axes(parser)
        return Sharding(mesh, tuple(dims), replicated, unreduced, kind)

    def print_parameter(self, printer: Printer) -> None:
        with printer.in_angle_brackets():
            if isinstance(self.mesh, MeshShape):
                printer.print_string("mesh")
                MeshAttr(self.mesh).print_parameter(printer)
            else:
                printer.print_symbol_name(self.mesh)
            printer.print_string(", ")
            with printer.in_square_brackets():
                printer.print_list(self.dims, lambda dim: _print_dim(printer, dim))
            if self.replicated:
                printer.print_string(", replicated=")
                _print_axes(printer, self.replicated)
            if self.unreduced:
                printer.print_string(f", unreduced={self.data.unreduced_kind}")
                _print_axes(printer, self.unreduced)


@irdl_attr_definition
class TensorShardingPerValueAttr(Data[tuple[TensorShardingAttr, ...]]):
    """One sharding per value: `#sdy.sharding_per_value<[<@mesh, [{"data"}, {}]>, <@mesh, [{}]>]>`."""

    name = "sdy.sharding_per_value"

    @property
    def shardings(self) -> tuple[TensorShardingAttr, ...]:
        return self.data

    @classmethod
    def parse_parameter(cls, parser: AttrParser) -> tuple[TensorShardingAttr, ...]:
        with parser.in_angle_brackets():
            return cls.parse_bracketed(parser)

    def print_parameter(self, printer: Printer) -> None:
        with printer.in_angle_brackets():
            self.print_bracketed(printer)

    @classmethod
    def parse_bracketed(cls, parser: AttrParser) -> tuple[TensorShardingAttr, ...]:
        return tuple(
            parser.parse_comma_separated_list(
                parser.Delimiter.SQUARE, lambda: TensorShardingAttr(TensorShardingAttr.parse_parameter(parser))
            )
        )

    def print_bracketed(self, printer: Printer) -> None:
        with printer.in_square_brackets():
            printer.print_list(self.data, lambda sharding: sharding.print_parameter(printer))


@irdl_attr_definition
class ManualAxesAttr(Data[tuple[str, ...]], OpaqueSyntaxAttribute):
    """The axes over which the body of a `sdy.manual_computation` is local: `#sdy<manual_axes{"data", "model"}>`."""

    name = "sdy.manual_axes"

    @classmethod
    def parse_parameter(cls, parser: AttrParser) -> tuple[str, ...]:
        return tuple(parser.parse_comma_separated_list(parser.Delimiter.BRACES, parser.parse_str_literal))

    def print_parameter(self, printer: Printer) -> None:
        with printer.in_braces():
            printer.print_list(self.data, printer.print_string_literal)


Dims = tuple[tuple[int, ...], ...]
"""For each dim of one tensor, the factors that it consists of, major first."""


@dataclass(frozen=True)
class ShardingRule:
    """How the dims of an op's operands and results correspond: each dim is a list of factors 0, 1, ... (printed i, j, ...).

    `sizes` are those of the factors; `reduction` and the following list the factors of that kind.
    """

    operands: tuple[Dims, ...]
    results: tuple[Dims, ...]
    sizes: tuple[int, ...]
    reduction: tuple[int, ...] = ()
    need_replication: tuple[int, ...] = ()
    permutation: tuple[int, ...] = ()
    blocked_propagation: tuple[int, ...] = ()
    is_custom: bool = False


@irdl_attr_definition
class OpShardingRuleAttr(Data[ShardingRule]):
    """`#sdy.op_sharding_rule<([i, k], [k, j])->([i, j]) {i=8, j=16, k=32} reduction={k}>`."""

    name = "sdy.op_sharding_rule"

    KEY: ClassVar[str] = "sdy.sharding_rule"
    LISTS: ClassVar[tuple[str, ...]] = ("reduction", "need_replication", "permutation", "blocked_propagation")

    @classmethod
    def of(
        cls,
        operands: Iterable[Iterable[Iterable[int]]],
        results: Iterable[Iterable[Iterable[int]]],
        sizes: Iterable[int],
        *,
        reduction: Iterable[int] = (),
        need_replication: Iterable[int] = (),
        permutation: Iterable[int] = (),
        blocked_propagation: Iterable[int] = (),
        is_custom: bool = False,
    ) -> OpShardingRuleAttr:
        """A rule. Equal rules are the same object, so that memo tables can find them by `id`."""
        return _rule(
            ShardingRule(
                tuple(tuple(map(tuple, dims)) for dims in operands),
                tuple(tuple(map(tuple, dims)) for dims in results),
                tuple(sizes),
                tuple(reduction),
                tuple(need_replication),
                tuple(permutation),
                tuple(blocked_propagation),
                is_custom,
            )
        )

    @property
    def operands(self) -> tuple[Dims, ...]:
        return self.data.operands

    @property
    def results(self) -> tuple[Dims, ...]:
        return self.data.results

    @property
    def sizes(self) -> tuple[int, ...]:
        return self.data.sizes

    @property
    def reduction(self) -> tuple[int, ...]:
        return self.data.reduction

    @property
    def need_replication(self) -> tuple[int, ...]:
        return self.data.need_replication

    @property
    def permutation(self) -> tuple[int, ...]:
        return self.data.permutation

    @property
    def blocked_propagation(self) -> tuple[int, ...]:
        return self.data.blocked_propagation

    @property
    def is_custom(self) -> bool:
        return self.data.is_custom

    def verify(self) -> None:
        lists = [factors for dims in (*self.operands, *self.results) for factors in dims]
        for factors in [*lists, *(getattr(self.data, name) for name in self.LISTS)]:
            for factor in factors:
                if not 0 <= factor < len(self.sizes):
                    raise VerifyException(f"factor {factor_symbol(factor)} is not one of the {len(self.sizes)} with a size")

    @classmethod
    def parse_parameter(cls, parser: AttrParser) -> ShardingRule:
        lists: dict[str, tuple[int, ...]] = {}
        sizes: Sequence[int] = ()
        with parser.in_angle_brackets():
            operands = _parse_tensors(parser)
            parser.parse_punctuation("->")
            results = _parse_tensors(parser)
            entries = parser.parse_optional_comma_separated_list(parser.Delimiter.BRACES, lambda: _parse_size(parser))
            for position, (factor, size) in enumerate(entries or ()):
                if factor != position:
                    parser.raise_error(f"expected the size of {factor_symbol(position)}, not {factor_symbol(factor)}")
                sizes = (*sizes, size)
            for name in cls.LISTS:
                if parser.parse_optional_keyword(name):
                    parser.parse_punctuation("=")
                    factors = parser.parse_comma_separated_list(parser.Delimiter.BRACES, lambda: _parse_factors(parser))
                    lists[name] = tuple(factor for dim in factors for factor in dim)
            is_custom = parser.parse_optional_punctuation(",") is not None
            if is_custom:
                parser.parse_keyword("custom")
        return ShardingRule(operands, results, tuple(sizes), **lists, is_custom=is_custom)

    def print_parameter(self, printer: Printer) -> None:
        with printer.in_angle_brackets():
            printer.print_string(f"{_tensors_text(self.operands)}->{_tensors_text(self.results)}")
            if self.sizes:
                sizes = ", ".join(f"{factor_symbol(factor)}={size}" for factor, size in enumerate(self.sizes))
                printer.print_string(f" {{{sizes}}}")
            for name in self.LISTS:
                if factors := getattr(self.data, name):
                    printer.print_string(f" {name}={{{', '.join(map(factor_symbol, factors))}}}")
            if self.is_custom:
                printer.print_string(", custom")


@cache
def _rule(rule: ShardingRule) -> OpShardingRuleAttr:
    return OpShardingRuleAttr(rule)


def factor_symbol(factor: int) -> str:
    """The letter of a factor: i to z, then z_1, z_2, ...

    >>> [factor_symbol(factor) for factor in (0, 17, 18)]
    ['i', 'z', 'z_1']
    """
    return chr(ord("i") + factor) if factor < 18 else f"z_{factor - 17}"


def _parse_factors(parser: AttrParser) -> tuple[int, ...]:
    """The factors of one dim: `ij`, `zz_1`, or nothing."""
    text = parser.parse_optional_identifier() or ""
    symbols = re.findall(r"z_[1-9]\d*|[i-z]", text)
    if "".join(symbols) != text:
        parser.raise_error(f"expected factor symbols i to z, z_1, z_2 ..., not '{text}'")
    return tuple(int(s[2:]) + 17 if len(s) > 1 else ord(s) - ord("i") for s in symbols)


def _parse_size(parser: AttrParser) -> tuple[int, int]:
    (factor,) = _parse_factors(parser) or (-1,)
    parser.parse_punctuation("=")
    return factor, parser.parse_integer()


def _parse_tensors(parser: AttrParser) -> tuple[Dims, ...]:
    def tensor() -> Dims:
        return tuple(parser.parse_comma_separated_list(parser.Delimiter.SQUARE, lambda: _parse_factors(parser)))

    return tuple(parser.parse_comma_separated_list(parser.Delimiter.PAREN, tensor))


def _tensors_text(tensors: tuple[Dims, ...]) -> str:
    def tensor(dims: Dims) -> str:
        return f"[{', '.join(''.join(map(factor_symbol, factors)) for factors in dims)}]"

    return f"({', '.join(map(tensor, tensors))})"


def _parse_axis(parser: AttrParser) -> AxisRef:
    name = parser.parse_str_literal()
    if not parser.parse_optional_punctuation(":"):
        return AxisRef(name)
    parser.parse_punctuation("(")
    pre_size = parser.parse_integer()
    parser.parse_punctuation(")")
    return AxisRef(name, pre_size, parser.parse_integer())


def _print_axis(printer: Printer, axis: AxisRef) -> None:
    printer.print_string_literal(axis.name)
    if axis.is_part:
        printer.print_string(f":({axis.pre_size}){axis.size}")


def _parse_axes(parser: AttrParser) -> tuple[AxisRef, ...]:
    return tuple(parser.parse_comma_separated_list(parser.Delimiter.BRACES, lambda: _parse_axis(parser)))


def _print_axes(printer: Printer, axes: Sequence[AxisRef]) -> None:
    with printer.in_braces():
        printer.print_list(axes, lambda axis: _print_axis(printer, axis))


def _parse_dim(parser: AttrParser) -> DimSharding:
    """`{"a", "b":(1)2, ?}p0`"""

    def entry() -> AxisRef | None:
        return None if parser.parse_optional_punctuation("?") else _parse_axis(parser)

    entries = parser.parse_comma_separated_list(parser.Delimiter.BRACES, entry)
    axes = tuple(axis for axis in entries if axis is not None)
    if entries[: len(axes)] != list(axes) or len(entries) > len(axes) + 1:
        parser.raise_error("'?' comes once, after the axes of a dim")
    priority = parser.parse_optional_identifier()
    if priority is not None and not re.fullmatch(r"p(0|[1-9]\d*)", priority):
        parser.raise_error(f"expected a priority like 'p0', not '{priority}'")
    return DimSharding(axes, len(entries) == len(axes), None if priority is None else int(priority[1:]))


def _print_dim(printer: Printer, dim: DimSharding) -> None:
    with printer.in_braces():
        printer.print_list(dim.axes, lambda axis: _print_axis(printer, axis))
        if not dim.is_closed:
            printer.print_string(", ?" if dim.axes else "?")
    if dim.priority is not None:
        printer.print_string(f"p{dim.priority}")

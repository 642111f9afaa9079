"""The StableHLO and CHLO attributes that xdsl-jax lacks, printed and parsed as StableHLO does."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from xdsl.dialects.builtin import UnregisteredAttr
from xdsl.dialects.utils import EnumAttribute
from xdsl.ir import Attribute, Data, SpacedOpaqueSyntaxAttribute
from xdsl.irdl import irdl_attr_definition
from xdsl.parser import AttrParser
from xdsl.printer import Printer
from xdsl.utils.str_enum import StrEnum


class FftType(StrEnum):
    """The transform of `stablehlo.fft`."""

    FFT = "FFT"
    IFFT = "IFFT"
    RFFT = "RFFT"
    IRFFT = "IRFFT"


@irdl_attr_definition
class FftTypeAttr(EnumAttribute[FftType], SpacedOpaqueSyntaxAttribute):
    """`#stablehlo<fft_type RFFT>`"""

    name = "stablehlo.fft_type"


class RngAlgorithm(StrEnum):
    """The generator of `stablehlo.rng_bit_generator`."""

    DEFAULT = "DEFAULT"
    THREE_FRY = "THREE_FRY"
    PHILOX = "PHILOX"


@irdl_attr_definition
class RngAlgorithmAttr(EnumAttribute[RngAlgorithm], SpacedOpaqueSyntaxAttribute):
    """`#stablehlo<rng_algorithm THREE_FRY>`"""

    name = "stablehlo.rng_algorithm"


class RngDistribution(StrEnum):
    """The distribution of `stablehlo.rng`."""

    UNIFORM = "UNIFORM"
    NORMAL = "NORMAL"


@irdl_attr_definition
class RngDistributionAttr(EnumAttribute[RngDistribution], SpacedOpaqueSyntaxAttribute):
    """`#stablehlo<rng_distribution UNIFORM>`"""

    name = "stablehlo.rng_distribution"


class Transpose(StrEnum):
    """What `stablehlo.triangular_solve` does to its matrix."""

    INVALID = "TRANSPOSE_INVALID"
    NO_TRANSPOSE = "NO_TRANSPOSE"
    TRANSPOSE = "TRANSPOSE"
    ADJOINT = "ADJOINT"


@irdl_attr_definition
class TransposeAttr(EnumAttribute[Transpose], SpacedOpaqueSyntaxAttribute):
    """`#stablehlo<transpose NO_TRANSPOSE>`"""

    name = "stablehlo.transpose"


@dataclass(frozen=True)
class Channel:
    """The number and the type of a channel."""

    handle: int
    type: int


@irdl_attr_definition
class ChannelHandleAttr(Data[Channel]):
    """`#stablehlo.channel_handle<handle = 1, type = 1>`; type 1 is device to device, 2 and 3 to and from the host."""

    name = "stablehlo.channel_handle"

    @classmethod
    def of(cls, handle: int, type: int = 1) -> ChannelHandleAttr:
        return cls(Channel(handle, type))

    @classmethod
    def parse_parameter(cls, parser: AttrParser) -> Channel:
        values = {"handle": 0, "type": 0}

        def entry() -> None:
            key = parser.parse_keyword_in(values)
            parser.parse_punctuation("=")
            values[key] = parser.parse_integer()

        parser.parse_comma_separated_list(parser.Delimiter.ANGLE, entry)
        return Channel(**values)

    def print_parameter(self, printer: Printer) -> None:
        printer.print_string(f"<handle = {self.data.handle}, type = {self.data.type}>")


@dataclass(frozen=True)
class ConvDimensions:
    """The position of each kind of dim in lhs, kernel and output of a convolution."""

    input_batch: int
    input_feature: int
    input_spatial: tuple[int, ...]
    kernel_input_feature: int
    kernel_output_feature: int
    kernel_spatial: tuple[int, ...]
    output_batch: int
    output_feature: int
    output_spatial: tuple[int, ...]


@irdl_attr_definition
class ConvDimensionNumbersAttr(Data[ConvDimensions]):
    """`#stablehlo.conv<[b, 0, 1, f]x[0, 1, i, o]->[b, 0, 1, f]>`: what each dim of lhs, kernel and output is."""

    name = "stablehlo.conv"

    @classmethod
    def parse_parameter(cls, parser: AttrParser) -> ConvDimensions:
        with parser.in_angle_brackets():
            lhs = _parse_dims(parser)
            parser.parse_keyword("x")
            kernel = _parse_dims(parser)
            parser.parse_punctuation("->")
            output = _parse_dims(parser)
        return ConvDimensions(
            *(lhs.index("b"), lhs.index("f"), _spatial(lhs)),
            *(kernel.index("i"), kernel.index("o"), _spatial(kernel)),
            *(output.index("b"), output.index("f"), _spatial(output)),
        )

    def print_parameter(self, printer: Printer) -> None:
        d = self.data
        lhs = _dims_text(d.input_spatial, b=d.input_batch, f=d.input_feature)
        kernel = _dims_text(d.kernel_spatial, i=d.kernel_input_feature, o=d.kernel_output_feature)
        output = _dims_text(d.output_spatial, b=d.output_batch, f=d.output_feature)
        printer.print_string(f"<{lhs}x{kernel}->{output}>")


def _parse_dims(parser: AttrParser) -> list[str | int]:
    def entry() -> str | int:
        name = parser.parse_optional_identifier()
        return parser.parse_integer() if name is None else name

    return list(parser.parse_comma_separated_list(parser.Delimiter.SQUARE, entry))


def _spatial(dims: Sequence[str | int]) -> tuple[int, ...]:
    count = sum(isinstance(dim, int) for dim in dims)
    return tuple(dims.index(number) for number in range(count))


def _dims_text(spatial: Sequence[int], **named: int) -> str:
    names = {position: name for name, position in named.items()}
    names.update({position: str(number) for number, position in enumerate(spatial)})
    return f"[{', '.join(names[position] for position in sorted(names))}]"


def raw(name: str, *, is_type: bool = False) -> type[Attribute]:
    """An attribute (or type) that is kept as the text between its brackets, and not interpreted; it prints the same again."""
    attribute = UnregisteredAttr.with_name_and_type(name, is_type)
    attribute.name = name
    return attribute

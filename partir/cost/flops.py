"""How many operations one op is, counted on its whole shapes: what a device does is that over the axes the op is cut over.

Counts are those of XLA's own cost analysis: two for a multiply and add, one for every element of anything else that computes.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

from xdsl.dialects.builtin import IntegerAttr, StringAttr
from xdsl.ir import Attribute, Operation

from partir.dialect.kinds import LAYOUT, is_pointwise
from partir.dialect.stablehlo_attributes import ConvDimensionNumbersAttr
from partir.sharding.rule import shape_of
from partir.sharding.tables import OpRow

TRANSCENDENTAL = frozenset(
    f"stablehlo.{name}"
    for name in [
        "atan2",
        "cbrt",
        "cosine",
        "exponential",
        "exponential_minus_one",
        "log",
        "log_plus_one",
        "logistic",
        "power",
        "rsqrt",
        "sine",
        "sqrt",
        "tan",
        "tanh",
    ]
)

MOVES = LAYOUT | frozenset(
    f"stablehlo.{name}"
    for name in [
        "slice",
        "dynamic_slice",
        "dynamic_update_slice",
        "concatenate",
        "pad",
        "gather",
        "reverse",
        "copy",
        "convert",
        "select_and_gather",
        "bitcast_convert",
        "get_tuple_element",
        "tuple",
        "iota",
        "constant",
    ]
)
"""Ops that compute nothing."""


@dataclass(frozen=True)
class Work:
    """Operations of one op: `matrix` on the matrix unit, `vector` elsewhere, `transcendental` of those that are exp and alike;
    `passes` is how many narrower products one of f32 takes at the precision it asks for."""

    matrix: float = 0.0
    vector: float = 0.0
    transcendental: float = 0.0
    passes: int = 1

    @property
    def flops(self) -> float:
        """All of them but the transcendental ones, as XLA counts."""
        return self.matrix + self.vector


NONE = Work()


def work_of(row: OpRow) -> Work:
    """The operations of a row of the tables."""
    if row.kind in ("carry", "predicate") or row.op.name in MOVES:
        return NONE
    special = _SPECIAL.get(row.op.name)
    if special is not None:
        return special(row)
    if is_pointwise(row.op):
        count = float(math.prod(shape_of(row.op.results[0].type)))
        if row.op.name in TRANSCENDENTAL or row.op.name.startswith("chlo."):
            return Work(transcendental=count)
        return Work(vector=count)
    return NONE


def passes_of(op: Operation) -> int:
    """How many bf16 products one f32 product takes: 1 at DEFAULT precision, 3 at HIGH, 6 at HIGHEST."""
    return _passes(op.properties.get("precision_config"))


@cache
def _passes(precision: Attribute | None) -> int:
    text = str(precision)
    return 6 if "HIGHEST" in text else 3 if "HIGH" in text else 1


def _dot(row: OpRow) -> Work:
    return Work(matrix=2.0 * math.prod(row.rule.sizes), passes=passes_of(row.op))


def _convolution(row: OpRow) -> Work:
    """Two for each element of the kernel that meets one of the input, padding left out, as XLA does."""
    op = row.op
    numbers = op.properties["dimension_numbers"]
    assert isinstance(numbers, ConvDimensionNumbersAttr)
    dims = numbers.data
    image, kernel, out = (shape_of(v.type) for v in (*op.operands, *op.results))
    rank = len(dims.kernel_spatial)
    strides = _ints(op, "window_strides") or (1,) * rank
    padding = _ints(op, "padding") or (0,)
    padding = padding if len(padding) == 2 * rank else padding[:1] * (2 * rank)  # all alike: said once
    base = _ints(op, "lhs_dilation") or (1,) * rank
    spread = _ints(op, "rhs_dilation") or (1,) * rank
    meets = 1
    for k in range(rank):
        meets *= _meeting(
            image[dims.input_spatial[k]],
            kernel[dims.kernel_spatial[k]],
            out[dims.output_spatial[k]],
            strides[k],
            padding[2 * k],
            base[k],
            spread[k],
        )
    batch, features = out[dims.output_batch], out[dims.output_feature]
    return Work(matrix=2.0 * meets * batch * features * kernel[dims.kernel_input_feature], passes=passes_of(op))


@cache
def _meeting(image: int, kernel: int, out: int, stride: int, low: int, base: int, spread: int) -> int:
    """How many (output, kernel) positions of one dim read an element of the image."""
    count = 0
    for k in range(kernel):
        for o in range(out):
            at = o * stride - low + k * spread
            count += 0 <= at < (image - 1) * base + 1 and at % base == 0
    return count


def _reduce(row: OpRow) -> Work:
    count = sum(math.prod(shape_of(v.type)) for v in row.op.operands[: len(row.op.results)])
    return Work(vector=float(count - sum(math.prod(shape_of(v.type)) for v in row.op.results)))


def _window(row: OpRow) -> Work:
    window = math.prod(_ints(row.op, "window_dimensions") or (1,))
    return Work(vector=float(math.prod(shape_of(row.op.results[0].type)) * max(1, window - 1)))


def _scatter(row: OpRow) -> Work:
    return Work(vector=float(math.prod(shape_of(row.op.operands[-1].type))))


def _sort(row: OpRow) -> Work:
    shape = shape_of(row.op.operands[0].type)
    dimension = row.op.properties.get("dimension")
    size = shape[dimension.value.data] if isinstance(dimension, IntegerAttr) and shape else 1
    return Work(vector=float(math.prod(shape) * max(1, math.ceil(math.log2(max(2, size))))))


def _random(row: OpRow) -> Work:
    """Threefry: about 20 rounds of add, rotate and xor for two words."""
    return Work(vector=30.0 * math.prod(shape_of(row.op.results[-1].type)))


def _fft(row: OpRow) -> Work:
    shape = shape_of(row.op.operands[0].type)
    lengths = _ints(row.op, "fft_length") or shape[-1:]
    return Work(vector=5.0 * math.prod(shape) * math.log2(max(2, math.prod(lengths))))


def _cholesky(row: OpRow) -> Work:
    shape = shape_of(row.op.operands[0].type)
    return Work(matrix=math.prod(shape) * shape[-1] / 3.0)


def _solve(row: OpRow) -> Work:
    return Work(matrix=float(math.prod(shape_of(row.op.operands[1].type)) * shape_of(row.op.operands[0].type)[-1]))


def _custom(row: OpRow) -> Work:
    """Linear algebra of LAPACK and cuSOLVER: of the order n^3 for each matrix. What is not known counts nothing."""
    target = row.op.properties.get("call_target_name")
    name = target.data if isinstance(target, StringAttr) else ""
    shape = shape_of(row.op.operands[0].type) if row.op.operands else ()
    if len(shape) >= 2 and ("lapack" in name or "cusolver" in name or "blas" in name):
        return Work(matrix=float(math.prod(shape) * min(shape[-2:])))
    return NONE


_SPECIAL: dict[str, Callable[[OpRow], Work]] = {
    "stablehlo.dot_general": _dot,
    "stablehlo.convolution": _convolution,
    "stablehlo.reduce": _reduce,
    "stablehlo.reduce_window": _window,
    "stablehlo.select_and_scatter": _scatter,
    "stablehlo.scatter": _scatter,
    "stablehlo.sort": _sort,
    "stablehlo.rng_bit_generator": _random,
    "stablehlo.fft": _fft,
    "stablehlo.cholesky": _cholesky,
    "stablehlo.triangular_solve": _solve,
    "stablehlo.custom_call": _custom,
}


def _ints(op: Operation, name: str) -> tuple[int, ...] | None:
    """A property that is an array of integers, dense or as elements; None when it is not there."""
    attr = op.properties.get(name)
    if attr is None:
        return None
    values = getattr(attr, "get_values", None)
    return tuple(int(i) for i in values()) if values is not None else None

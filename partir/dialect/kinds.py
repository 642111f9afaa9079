"""Sets of op names that the compiler treats alike: pointwise ops, layout ops, contractions."""

from __future__ import annotations

from xdsl.dialects.builtin import StringAttr, TensorType
from xdsl.ir import Operation

from partir.dialect.chlo import BINARY, UNARY

_POINTWISE = """
    abs add and atan2 cbrt ceil clamp compare complex convert cosine count_leading_zeros divide exponential
    exponential_minus_one floor imag is_finite log log_plus_one logistic maximum minimum multiply negate not or popcnt power
    real remainder reduce_precision round_nearest_afz round_nearest_even rsqrt select shift_left shift_right_arithmetic
    shift_right_logical sign sine sqrt subtract tan tanh xor
"""

POINTWISE = frozenset(
    {f"stablehlo.{name}" for name in _POINTWISE.split()} | {f"chlo.{name}" for name in (*UNARY.split(), *BINARY)}
)
"""Ops that compute each element of the result from the same element of the operands (a scalar operand counts for all)."""

LAYOUT = frozenset({"stablehlo.reshape", "stablehlo.broadcast_in_dim", "stablehlo.transpose"})
"""Ops that only move elements."""

MATRIX = frozenset({"stablehlo.dot_general", "stablehlo.convolution"})
"""Ops that run on the matrix unit."""

CONTRACTIONS = frozenset({"stablehlo.dot_general", "stablehlo.convolution", "stablehlo.gather", "stablehlo.scatter"})
"""Ops that sum over, or index into, dims that their result does not have."""


CALLED = "partir.called"
"""The attribute of a custom call with the private functions that it calls, as MLIR text."""


def happens_once(op: Operation) -> bool:
    """Whether an op must run on one device only: it calls back to the host for an effect (debug.print, io_callback), or draws
    random numbers without a key, which would differ between devices."""
    if op.name != "stablehlo.custom_call":
        return op.name == "stablehlo.rng"
    target, effect = op.properties.get("call_target_name"), op.properties.get("has_side_effect")
    return isinstance(target, StringAttr) and "callback" in target.data and str(effect) == "true"


def is_pointwise(op: Operation) -> bool:
    """Whether an op is pointwise; a bitcast is when it keeps the number of elements."""
    if op.name == "stablehlo.bitcast_convert":
        before, after = op.operands[0].type, op.results[0].type
        return isinstance(before, TensorType) and isinstance(after, TensorType) and before.get_shape() == after.get_shape()
    return op.name in POINTWISE

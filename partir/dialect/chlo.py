"""The `chlo` dialect: the ops that JAX emits where StableHLO has none (erf, top_k, ragged_dot, ...)."""

from __future__ import annotations

from xdsl.ir import Dialect
from xdsl.irdl import AnyAttr, base

from partir.dialect.define import BOOL, ELEMENTS, I64, LIST, Optional, define
from partir.dialect.stablehlo_attributes import raw

PrecisionAttr = raw("chlo.precision")
ComparisonDirectionAttr = raw("chlo.comparison_direction")
ComparisonTypeAttr = raw("chlo.comparison_type")
RaggedDotDimensionNumbersAttr = raw("chlo.ragged_dot")

UNARY = (
    "_asin_acos_kernel acos acosh asin asinh atan atanh bessel_i1e conj cosh digamma erf erf_inv erfc "
    "is_inf is_neg_inf is_pos_inf lgamma sinh square tan"
)
BINARY = {"mulhi": "lhs, rhs", "next_after": "x, y", "polygamma": "n, x", "zeta": "x, q"}


def _pointwise(operands: str) -> str:
    """`%x, %y : type, type -> type`"""
    names = [f"${name.strip()}" for name in operands.split(",")]
    types = [f"type({name})" for name in names]
    return f"{' `,` '.join(names)} attr-dict `:` {' `,` '.join(types)} `->` type($result)"


TopKOp = define(
    "chlo.top_k", "operand -> values, indices", k=I64, is_stable=Optional(BOOL),
    syntax="`(` $operand `,` `k` `=` $k `)` attr-dict `:` type($operand) `->` `(` type($values) `,` type($indices) `)`",
)  # fmt: skip
RaggedDotOp = define(
    "chlo.ragged_dot", "lhs, rhs, group_sizes -> result",
    ragged_dot_dimension_numbers=base(RaggedDotDimensionNumbersAttr), precision_config=Optional(LIST),
)  # fmt: skip
ScanOp = define(
    "chlo.scan", "inputs*, inits* -> outputs*, carries*", regions="body", segments=True,
    dimension=I64, scan_dim_size=Optional(I64), is_reverse=Optional(BOOL), is_associative=Optional(BOOL),
)  # fmt: skip
ConstantOp = define("chlo.constant", "-> output", value=ELEMENTS)
ConstantLikeOp = define("chlo.constant_like", "operand -> result", value=AnyAttr())

CHLO = Dialect(
    "chlo",
    [
        *(define(f"chlo.{name}", "operand -> result", syntax=_pointwise("operand")) for name in UNARY.split()),
        *(define(f"chlo.{name}", f"{operands} -> result", syntax=_pointwise(operands)) for name, operands in BINARY.items()),
        *(TopKOp, RaggedDotOp, ScanOp, ConstantOp, ConstantLikeOp),
    ],
    [PrecisionAttr, ComparisonDirectionAttr, ComparisonTypeAttr, RaggedDotDimensionNumbersAttr],
)

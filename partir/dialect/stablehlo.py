"""The `stablehlo` dialect: the ops of xdsl-jax, with missing ones added, and those replaced that refuse JAX's output."""

from __future__ import annotations

from xdsl.ir import Dialect, Operation
from xdsl_jax.dialects.stablehlo import StableHLO

from partir.dialect import stablehlo_ops
from partir.dialect.stablehlo_attributes import (
    ChannelHandleAttr,
    ConvDimensionNumbersAttr,
    FftTypeAttr,
    RngAlgorithmAttr,
    RngDistributionAttr,
    TransposeAttr,
    raw,
)
from partir.dialect.stablehlo_regions import ReduceOp as ReduceOp
from partir.dialect.stablehlo_regions import WhileOp as WhileOp

QUANT = Dialect("quant", [], [raw("quant.uniform", is_type=True)])
"""Quantised element types, kept as text."""

_OURS = [op for name, op in vars(stablehlo_ops).items() if name.endswith("Op") and name[0].isupper()]

OPS: dict[str, type[Operation]] = {op.name: op for op in [*StableHLO.operations, *_OURS, ReduceOp, WhileOp]}
"""Every StableHLO op class by op name; ours replace those of xdsl-jax."""

STABLEHLO = Dialect(
    "stablehlo",
    [*OPS.values()],
    [
        *StableHLO.attributes,
        ChannelHandleAttr,
        ConvDimensionNumbersAttr,
        FftTypeAttr,
        RngAlgorithmAttr,
        RngDistributionAttr,
        TransposeAttr,
        stablehlo_ops.BoundsAttr,
        stablehlo_ops.ReplicaGroupMeshAxesAttr,
        stablehlo_ops.ResultAccuracyAttr,
    ],
)

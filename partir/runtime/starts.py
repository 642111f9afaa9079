"""Works around an XLA rewrite that drops the clamp of run-time start indices, in slices, gathers and scatters.

XLA merges a dynamic_slice with the slice that takes a device's shard of its result, and leaves out the clamp of the first one's
start (seen with jaxlib 0.10.2, on CPU). So starts that are known only at run time are clamped here, before the op: a start that
is in range needs no clamp. A scatter that places one window is a second case. XLA writes it as a dynamic_slice of the operand,
an add, and a dynamic_update_slice, and relies on the clamp if the window is out of range and nothing may be written. The slice
in it must not be merged with a slice before it, nor with what reads the result: optimization barriers keep these apart.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from jax.extend.mlir import ir as bindings
from jax.extend.mlir.dialects import stablehlo as hlo
from xdsl.ir import Operation, SSAValue
from xdsl_jax.dialects.stablehlo.data_movement_ops import GatherOp, ScatterOp

from partir.dialect.constants import dtype_of
from partir.dialect.kinds import LAYOUT
from partir.sharding.rule import shape_of

ir: Any = bindings


def in_range(op: Operation, operands: Sequence[Any]) -> list[Any]:
    """The operands with which to emit an op (`operands` are their MLIR values).

    Run-time starts are clamped if the window has more than one element, so that a shard of it may be sliced later. Operands of
    a scatter that are slices are passed through a barrier.
    """
    if isinstance(op, ScatterOp):
        count = len(op.results)
        sliced = [_is_slice(value) for value in op.operands[:count]]
        return [hlo.OptimizationBarrierOp([x]).results[0] if k < count and sliced[k] else x for k, x in enumerate(operands)]
    if op.name == "stablehlo.dynamic_slice":
        bounds = zip(op.operands[1:], shape_of(op.operands[0].type), shape_of(op.results[0].type), strict=True)
        starts = [
            _clamped(start, x, np.array(size - window)) if window > 1 and not _is_constant(start) else x
            for x, (start, size, window) in zip(operands[1:], bounds, strict=True)
        ]
        return [operands[0], *starts]
    if isinstance(op, GatherOp):
        windows = [int(size) for size in op.slice_sizes.get_values()]
        dims = [dim.value.data for dim in op.dimension_numbers.start_index_map]
        if any(windows[dim] > 1 for dim in dims) and not _is_constant(op.operands[1]):
            table, where = shape_of(op.operands[0].type), shape_of(op.operands[1].type)
            vector = op.dimension_numbers.index_vector_dim.value.data
            highest = np.array([table[dim] - windows[dim] for dim in dims])
            along = [len(dims) if d == vector else 1 for d in range(len(where))]
            return [operands[0], _clamped(op.operands[1], operands[1], highest.reshape(along))]
    return list(operands)


def held_apart(op: Operation, results: Sequence[Any]) -> list[Any]:
    """The results of an emitted op; those of a scatter of one window pass through a barrier."""
    if not isinstance(op, ScatterOp) or _windows(op) > 1:
        return list(results)
    barrier = hlo.OptimizationBarrierOp(list(results))
    return list(barrier.results)


def _windows(op: ScatterOp) -> int:
    """How many windows a scatter places."""
    shape = shape_of(op.operands[len(op.results)].type)
    vector = op.scatter_dimension_numbers.index_vector_dim.value.data
    return math.prod(size for d, size in enumerate(shape) if d != vector)


def _is_slice(value: SSAValue) -> bool:
    """Whether a value is a slice at a run-time index (a device's shard is one, too), or such a slice reshaped or transposed."""
    while isinstance(value.owner, Operation) and value.owner.name in LAYOUT:
        value = value.owner.operands[0]
    return isinstance(value.owner, Operation) and value.owner.name in ("stablehlo.dynamic_slice", "spmd.all_slice")


def _is_constant(value: SSAValue) -> bool:
    return isinstance(value.owner, Operation) and value.owner.name == "stablehlo.constant"


def _clamped(value: SSAValue, x: Any, highest: np.ndarray[Any, Any]) -> Any:
    """`x`, the MLIR value of `value`, clamped to 0 .. `highest`."""
    dtype = dtype_of(value.type)

    def literal(bound: np.ndarray[Any, Any]) -> Any:
        whole = np.broadcast_to(bound, shape_of(value.type))
        # The bound may be too large for the index type; then every index is in range, and the type's maximum serves as bound.
        fits = np.array(np.minimum(whole, np.iinfo(dtype).max), dtype=dtype)
        return hlo.ConstantOp(ir.DenseElementsAttr.get(fits, type=ir.RankedTensorType(x.type).element_type)).result

    return hlo.ClampOp(literal(np.array(0)), x, literal(highest)).result

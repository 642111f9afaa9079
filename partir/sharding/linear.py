"""Which ops an unreduced sum passes: where op(sum of pieces) is the sum of op(each piece).

A piece of an unreduced value may only meet values that are whole on the unreduced axis. Where the op adds, a whole operand is
masked to one device; where it scales, exactly one operand may be unreduced.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from xdsl.dialects.builtin import DenseIntOrFPElementsAttr, TensorType
from xdsl.ir import Operation, OpResult, SSAValue

from partir.dialect.constants import is_splat
from partir.dialect.reduction import body_kind, neutral

ADDS: dict[str, tuple[int, ...] | None] = {
    "stablehlo.add": (0, 1),
    "stablehlo.subtract": (0, 1),
    "stablehlo.select": (1, 2),
    "stablehlo.concatenate": None,
    "stablehlo.dynamic_update_slice": (0, 1),
}
"""Ops that are linear in these operands together; None: in all of them."""

SCALES = frozenset({"stablehlo.multiply", "stablehlo.dot_general"})
"""Ops that are linear in each operand alone."""

FIRST = frozenset(
    f"stablehlo.{name}"
    for name in [
        "negate",
        "divide",
        "reshape",
        "transpose",
        "broadcast_in_dim",
        "slice",
        "dynamic_slice",
        "gather",
        "real",
        "imag",
        "reverse",
    ]
) | {"partir.tag"}
"""Ops that are linear in their first operand when the others are whole."""

ORDERED = frozenset(f"stablehlo.{name}" for name in ["reshape", "transpose", "broadcast_in_dim", "slice"]) | {"partir.tag"}
"""Ops that pass an unreduced max, min, and, or, product: they only move elements."""


@dataclass(frozen=True)
class Passing:
    """An op lets an unreduced state through; `masked` are its whole operands that only one device may contribute."""

    masked: tuple[int, ...] = ()


def passing(op: Operation, unreduced: Sequence[bool], kind: str) -> Passing | None:
    """Whether `op` passes an unreduced state of `kind` when exactly these operands are unreduced; None when it does not."""
    name = op.name
    count = sum(unreduced)
    if kind != "add":
        if name in ORDERED and unreduced[0] and count == 1:
            return Passing()
        same = {"max": "stablehlo.maximum", "min": "stablehlo.minimum", "and": "stablehlo.and", "or": "stablehlo.or"}
        return Passing() if name == same.get(kind) and all(unreduced) else None
    if name in ADDS:
        linear = ADDS[name] or tuple(range(len(unreduced)))
        if any(flag for i, flag in enumerate(unreduced) if i not in linear):
            return None
        return Passing(tuple(i for i in linear if not unreduced[i] and not is_zero(op.operands[i])))
    if name in SCALES:
        return Passing() if count == 1 else None
    if not unreduced[0] or count != 1:
        return None
    if name in FIRST:
        return Passing()
    if name == "stablehlo.convert":
        return Passing() if _widens(op.operands[0].type, op.results[0].type) else None
    if name == "stablehlo.pad":
        return Passing() if is_zero(op.operands[1]) else None
    if name == "stablehlo.reduce":
        return Passing() if body_kind(op) == "add" and is_zero(op.operands[1]) else None
    return None


def _widens(before: Any, after: Any) -> bool:
    """Whether a convert between float types loses nothing."""
    order = ["f16", "f32", "f64"]
    names = []
    for type_ in (before, after):
        text = str(type_.element_type) if isinstance(type_, TensorType) else ""
        names.append("f16" if text == "bf16" and names[:1] != ["f16"] else text)
    return all(name in order for name in names) and order.index(names[0]) < order.index(names[1])


def splat_of(value: SSAValue) -> DenseIntOrFPElementsAttr | None:
    """The splat literal a value is everywhere, seen through broadcasts and reshapes; None when it is not one."""
    while isinstance(value, OpResult):
        op = value.op
        if op.name == "stablehlo.constant":
            attr = op.properties["value"]
            return attr if isinstance(attr, DenseIntOrFPElementsAttr) and is_splat(attr) else None
        if op.name not in ("stablehlo.broadcast_in_dim", "stablehlo.reshape"):
            return None
        value = op.operands[0]
    return None


def is_zero(value: SSAValue) -> bool:
    """Whether a value is a constant zero."""
    splat = splat_of(value)
    return splat is not None and not any(splat.data.data)


def is_one(value: SSAValue) -> bool:
    """Whether a value is a constant one."""
    splat = splat_of(value)
    if splat is None:
        return False
    one = neutral(splat.get_element_type(), "mul")
    return one is not None and splat.data.data.startswith(one)

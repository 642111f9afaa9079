"""Finds the op that a reduction combines elements with, and its neutral value."""

from __future__ import annotations

import math
from typing import Any

from xdsl.dialects.builtin import (
    AnyFloat,
    BytesAttr,
    ComplexType,
    DenseIntOrFPElementsAttr,
    IntegerType,
    Signedness,
    TensorType,
)
from xdsl.ir import Attribute, Operation, SSAValue

from partir.dialect.constants import is_splat

COMBINER_KINDS = {
    "stablehlo.add": "add",
    "stablehlo.multiply": "mul",
    "stablehlo.maximum": "max",
    "stablehlo.minimum": "min",
    "stablehlo.and": "and",
    "stablehlo.or": "or",
}


def combiner(op: Operation) -> Operation | None:
    """The op that a region combines two scalars with, if the region is that one op and it is a known kind, else None.

    before   reduce(%x) { ^(a, b): %s = stablehlo.add %a, %b ; return %s }
    after    stablehlo.add
    """
    if len(op.regions) != 1 or not op.regions[0].blocks:
        return None
    block = op.regions[0].blocks[0]
    body = list(block.ops)
    if len(body) != 2 or len(block.args) != 2 or set(body[0].operands) != set(block.args):
        return None
    if tuple(body[1].operands) != tuple(body[0].results) or body[0].name not in COMBINER_KINDS:
        return None
    return body[0]


def body_kind(op: Operation) -> str | None:
    """The reduction kind ("add", "max", …) of an op whose region combines two scalars with one known op, else None."""
    found = combiner(op)
    return COMBINER_KINDS[found.name] if found is not None else None


def is_neutral(value: SSAValue, kind: str) -> bool:
    """Whether a value is a constant whose elements all are the neutral value of a kind (0 for "add", -inf for "max", ...)."""
    op = value.owner
    attr = op.properties.get("value") if isinstance(op, Operation) and op.name == "stablehlo.constant" else None
    if not isinstance(attr, DenseIntOrFPElementsAttr) or not is_splat(attr):
        return False
    element = attr.get_element_type()
    raw = attr.data.data[: element.compile_time_size]
    if kind in ("add", "or"):
        return not any(raw)
    if isinstance(element, IntegerType) and (kind == "and" or element.width.data == 1):
        return (raw[0] & 1 == 1) == (kind in ("and", "min", "mul"))
    return raw == neutral(element, kind)


def neutral(element: Attribute, kind: str) -> bytes | None:
    """The bytes of the neutral value of a kind, in an element type; None if the type has no such value."""
    if isinstance(element, ComplexType):
        part = neutral(element.element_type, kind) if kind in ("add", "mul") else None
        return part + bytes(len(part)) if part is not None else None
    if isinstance(element, IntegerType):
        width, unsigned = element.width.data, element.signedness.data == Signedness.UNSIGNED or element.width.data == 1
        low, high = (0, 2**width - 1) if unsigned else (-(2 ** (width - 1)), 2 ** (width - 1) - 1)
        number = {"add": 0, "or": 0, "mul": 1, "and": high if unsigned else -1, "max": low, "min": high}[kind]
        return number.to_bytes(element.compile_time_size, "little", signed=not unsigned)
    if not isinstance(element, AnyFloat) or kind in ("and", "or"):
        return None
    number = {"add": 0.0, "mul": 1.0, "max": -math.inf, "min": math.inf}[kind]
    raw = element.pack([number])
    return raw if element.unpack(raw, 1)[0] == number else None


def neutral_literal(scalar: TensorType[Any], kind: str) -> DenseIntOrFPElementsAttr | None:
    """The neutral value of a kind as a constant of a scalar tensor type; None if there is none."""
    raw = neutral(scalar.element_type, kind)
    return DenseIntOrFPElementsAttr(scalar, BytesAttr(raw)) if raw is not None else None

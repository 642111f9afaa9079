"""Parses dense literals: hexadecimal floats, which xDSL's parser gets wrong, and splats, which it expands."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, cast

from xdsl.dialects.builtin import (
    AnyDenseElement,
    AnyFloat,
    BytesAttr,
    ComplexType,
    DenseIntOrFPElementsAttr,
    IndexType,
    RankedStructure,
    i1,
)

Scalar = int | float

CONTENT = re.compile(r'<\s*(?:"0x(?P<hex>[0-9A-Fa-f]*)"|(?P<list>[^<>"]*))\s*>')
"""The text between the brackets of `dense<...>`."""

_TOKEN = re.compile(r"[\[\](),]|[^\[\](),\s]+")
_WORDS = {"true": 1, "false": 0}


def dense_from_text(content: re.Match[str], type: RankedStructure[AnyDenseElement]) -> DenseIntOrFPElementsAttr:
    """The attribute `dense<content> : type`. Raises ValueError if the two do not fit.

    A splat is stored as one element, whatever its type's size: xDSL would expand `dense<0.0> : tensor<32x1024x1024xf32>` to
    128 MB. It prints the same.
    """
    shape = type.get_shape()
    count = 1
    for size in shape:
        count *= size
    width = type.element_type.compile_time_size
    if content["hex"] is not None:
        data = bytes.fromhex(content["hex"])
        if len(data) not in (width, count * width):
            raise ValueError(f"{len(data)} bytes for {count} elements of {width} bytes")
    else:
        elements, found = _elements(_TOKEN.findall(content["list"]), type.element_type)
        if (found and list(shape) != found) or (not elements and count):
            raise ValueError(f"a literal of shape {found} for {type}")
        data = _pack(elements, type.element_type)
    if count and data == data[:width] * count:
        data = data[:width]
    return DenseIntOrFPElementsAttr(type, BytesAttr(data if count else b""))


def _elements(tokens: Sequence[str], element: AnyDenseElement) -> tuple[list[Scalar | tuple[Scalar, Scalar]], list[int]]:
    """The flat elements of a nested list, and its shape ([] for a single element)."""
    elements: list[Scalar | tuple[Scalar, Scalar]] = []
    counts: list[int] = []  # how many entries each open list has
    shape: list[int] = []
    part = element.element_type if isinstance(element, ComplexType) else element
    position = 0
    while position < len(tokens):
        token = tokens[position]
        position += 1
        if token == "[":
            counts.append(0)
            if len(counts) > len(shape):
                shape.append(-1)
        elif token == "]":
            depth, count = len(counts) - 1, counts.pop()
            if shape[depth] not in (-1, count):
                raise ValueError(f"lists of {shape[depth]} and of {count} entries side by side")
            shape[depth] = count
            if counts:
                counts[-1] += 1
        elif token != ",":
            if token == "(":
                real, _, imaginary, close = tokens[position : position + 4]
                if close != ")":
                    raise ValueError(f"a complex number ends with ')', not '{close}'")
                position += 4
                elements.append((_scalar(real, part), _scalar(imaginary, part)))
            else:
                elements.append(_scalar(token, part))
            if counts:
                counts[-1] += 1
    if counts:
        raise ValueError("']' is missing")
    return elements, shape


def _scalar(text: str, type: AnyDenseElement) -> Scalar:
    """One number; a hexadecimal one holds the bits of a float."""
    if not isinstance(type, AnyFloat):
        return _WORDS[text] if text in _WORDS else int(text, 0)
    if text.startswith("0x"):
        return type.unpack(int(text, 16).to_bytes(type.compile_time_size, "little"), 1)[0]
    return float(text)


def _pack(elements: Sequence[Any], type: AnyDenseElement) -> bytes:
    if isinstance(type, AnyFloat | ComplexType | IndexType):
        return cast(Any, type).pack(elements)
    if type == i1:
        return bytes(map(bool, elements))  # xDSL would write -1 for true, which is not what numpy or MLIR have
    if type.bitwidth < 8:
        return bytes(element % (1 << type.bitwidth) for element in elements)  # as MLIR: the unused bits are zero
    return type.pack([type.get_normalized_value(element) for element in elements])

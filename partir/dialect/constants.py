"""Converts dense constants to numpy arrays and back. A splat is stored as one element, whatever its shape."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
from xdsl.dialects.builtin import (
    BytesAttr,
    ComplexType,
    DenseIntOrFPElementsAttr,
    IntegerType,
    Signedness,
    TensorType,
    bf16,
    f4E2M1FN,
    f6E2M3FN,
    f6E3M2FN,
    f8E3M4,
    f8E4M3,
    f8E4M3B11FNUZ,
    f8E4M3FN,
    f8E4M3FNUZ,
    f8E5M2,
    f8E5M2FNUZ,
    f8E8M0FNU,
    f16,
    f32,
    f64,
    i1,
)
from xdsl.ir import Attribute

Array = np.ndarray[Any, np.dtype[Any]]

_FLOATS = {
    bf16: ml_dtypes.bfloat16,
    f4E2M1FN: ml_dtypes.float4_e2m1fn,
    f6E2M3FN: ml_dtypes.float6_e2m3fn,
    f6E3M2FN: ml_dtypes.float6_e3m2fn,
    f8E3M4: ml_dtypes.float8_e3m4,
    f8E4M3: ml_dtypes.float8_e4m3,
    f8E4M3B11FNUZ: ml_dtypes.float8_e4m3b11fnuz,
    f8E4M3FN: ml_dtypes.float8_e4m3fn,
    f8E4M3FNUZ: ml_dtypes.float8_e4m3fnuz,
    f8E5M2: ml_dtypes.float8_e5m2,
    f8E5M2FNUZ: ml_dtypes.float8_e5m2fnuz,
    f8E8M0FNU: ml_dtypes.float8_e8m0fnu,
    f16: np.float16,
    f32: np.float32,
    f64: np.float64,
    ComplexType(f32): np.complex64,
    ComplexType(f64): np.complex128,
}
_INTEGERS = {
    (width, sign): np.dtype(getattr(ml_dtypes if width < 8 else np, f"{prefix}int{width}"))
    for width in (2, 4, 8, 16, 32, 64)
    for sign, prefix in ((Signedness.SIGNLESS, ""), (Signedness.UNSIGNED, "u"))
}
_DTYPES: dict[Attribute, np.dtype[Any]] = {
    i1: np.dtype(bool),
    **{type: np.dtype(dtype) for type, dtype in _FLOATS.items()},
    **{IntegerType(width, sign): dtype for (width, sign), dtype in _INTEGERS.items()},
}
_TYPES = {dtype: type for type, dtype in _DTYPES.items()}


def dtype_of(type: Attribute) -> np.dtype[Any]:
    """The numpy dtype of an element type, or of a tensor's. Raises KeyError where numpy has none."""
    return _DTYPES[type.element_type if isinstance(type, TensorType) else type]


def element_type_of(dtype: Any) -> Attribute:
    """The element type of a numpy dtype.

    >>> str(element_type_of("uint8")), str(element_type_of(np.complex64))
    ('ui8', 'complex<f32>')
    """
    return _TYPES[np.dtype(dtype)]


def dense(array: Any) -> DenseIntOrFPElementsAttr:
    """A constant with the values, shape and dtype of an array.

    >>> str(dense(np.zeros((4, 4), np.float32)))
    'dense<0.000000e+00> : tensor<4x4xf32>'
    """
    values = np.asarray(array)
    type: TensorType[Any] = TensorType(element_type_of(values.dtype), values.shape)
    raw = np.ascontiguousarray(values).reshape(-1).view(np.uint8).reshape(values.size, values.itemsize)
    if values.size > 1 and (raw == raw[0]).all():
        raw = raw[:1]
    return DenseIntOrFPElementsAttr(type, BytesAttr(raw.tobytes()))


def splat(type: TensorType[Any], value: Any) -> DenseIntOrFPElementsAttr:
    """A constant of `type` whose elements all are `value`.

    >>> str(splat(TensorType(f32, [8, 16]), -1))
    'dense<-1.000000e+00> : tensor<8x16xf32>'
    """
    one = np.asarray(value).astype(dtype_of(type)).tobytes()
    return DenseIntOrFPElementsAttr(type, BytesAttr(one if 0 not in type.get_shape() else b""))


def is_splat(constant: DenseIntOrFPElementsAttr) -> bool:
    """Whether all elements are equal; fast for a constant that is stored as one element."""
    data, width = constant.data.data, constant.type.element_type.compile_time_size
    return len(data) > 0 and data == data[:width] * (len(data) // width)


def resized(constant: DenseIntOrFPElementsAttr, type: TensorType[Any]) -> DenseIntOrFPElementsAttr:
    """A splat of another shape: the value of `constant` with the shape of `type`."""
    assert is_splat(constant), "only a splat can be given another shape"
    width = constant.type.element_type.compile_time_size
    return DenseIntOrFPElementsAttr(type, BytesAttr(constant.data.data[:width] if 0 not in type.get_shape() else b""))


def to_numpy(constant: DenseIntOrFPElementsAttr) -> Array:
    """The values of a constant; for a splat a read-only view of its one element.

    >>> to_numpy(splat(TensorType(f32, [2, 3]), 7)).tolist()
    [[7.0, 7.0, 7.0], [7.0, 7.0, 7.0]]
    """
    shape = constant.type.get_shape()
    dtype = dtype_of(constant.type.element_type)
    values: Array = np.frombuffer(constant.data.data, dtype=dtype)
    return np.broadcast_to(values.reshape(()), shape) if values.size == 1 else values.reshape(shape)

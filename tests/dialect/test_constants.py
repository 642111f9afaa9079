"""Constants to arrays and back, and literals as MLIR writes them."""

import re

import ml_dtypes
import numpy as np
import pytest
from xdsl.dialects.builtin import TensorType, f32, i32

from partir.dialect.constants import dense, dtype_of, element_type_of, is_splat, resized, splat, to_numpy
from partir.dialect.text import attribute_text, parse, parse_attribute
from partir.errors import IRError

pytestmark = pytest.mark.core

ARRAYS = [
    np.arange(6, dtype=np.int8).reshape(2, 3),
    np.array([True, False]),
    np.ones((3, 2), bool),
    np.array(3, ml_dtypes.bfloat16),
    np.array([1, -2, 7, -8], ml_dtypes.int4),
    np.array([1, 3], ml_dtypes.uint2),
    np.zeros((0, 3), np.float32),
    np.array([1 + 2j, complex(np.inf, -0.0)]),
    np.array([np.inf, -np.inf, np.nan, -0.0, 1e-45, 3e38, 0.1, 16777217.0], np.float32),
    np.array([0.1, 1e300, 5e-324, 2.0**53]),
    np.linspace(0, 1, 5).astype(ml_dtypes.float8_e4m3fn),
    np.linspace(0, 1, 300).astype(np.float16),
    np.array([2**64 - 1, 0], np.uint64),
    np.zeros((5, 7), np.int64),
]


@pytest.mark.parametrize("array", ARRAYS, ids=lambda array: f"{array.dtype}{list(array.shape)}")
def test_arrays_go_through_text(array: np.ndarray) -> None:
    constant = dense(array)

    again = parse_attribute(attribute_text(constant))

    assert again == constant
    assert to_numpy(again).dtype == array.dtype
    np.testing.assert_array_equal(to_numpy(again), array)


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("dense<0x7F800000> : tensor<f32>", np.float32(np.inf)),
        ("dense<[0xFF800000, 1.5]> : tensor<2xf32>", np.array([-np.inf, 1.5], np.float32)),
        ("dense<(0x7F800000,1.0)> : tensor<complex<f32>>", np.complex64(complex(np.inf, 1))),
        ('dense<"0x0000803F00000040"> : tensor<2xf32>', np.array([1, 2], np.float32)),
        ('dense<"0x0000803F"> : tensor<3xf32>', np.array([1, 1, 1], np.float32)),
        ("dense<true> : tensor<2x2xi1>", np.ones((2, 2), bool)),
        ("dense<[[1, 1], [1, 1]]> : tensor<2x2xi32>", np.ones((2, 2), np.int32)),
        ("dense<-3> : tensor<3xi4>", np.full(3, -3, ml_dtypes.int4)),
    ],
)
def test_literals(text: str, values: np.ndarray) -> None:
    np.testing.assert_array_equal(to_numpy(parse_attribute(text)), values)


def test_a_big_splat_stays_small() -> None:
    text = "dense<0.000000e+00> : tensor<32x1024x1024xf32>"

    constant = parse_attribute(text)
    module = parse(f"%c = stablehlo.constant {text}")

    assert len(constant.data.data) == 4
    assert module.body.block.first_op.value == constant
    assert is_splat(constant)
    assert constant.is_splat()
    assert attribute_text(constant) == text
    assert to_numpy(constant).shape == (32, 1024, 1024)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("dense<[1, 2, 3]> : tensor<2xi32>", "a literal of shape [3] for tensor<2xi32>"),
        ("dense<[[1, 2], [3]]> : tensor<2x2xi32>", "lists of 2 and of 1 entries side by side"),
        ("dense<[1, 2> : tensor<2xi32>", "']' is missing"),
        ("dense<> : tensor<2xi32>", "a literal of shape [] for tensor<2xi32>"),
        ('dense<"0x00"> : tensor<2xi32>', "1 bytes for 2 elements of 4 bytes"),
        ("dense<x> : tensor<2xi32>", "invalid literal for int()"),
        ("dense<(1.0,2.0> : tensor<complex<f32>>", "dense attribute does not fit its type"),
    ],
)
def test_what_is_wrong_is_refused(text: str, message: str) -> None:
    with pytest.raises(IRError, match=re.escape(message)):
        parse_attribute(text)


def test_splats() -> None:
    constant = splat(TensorType(f32, [8, 16]), 2)

    assert attribute_text(constant) == "dense<2.000000e+00> : tensor<8x16xf32>"
    assert resized(constant, TensorType(f32, [4])) == splat(TensorType(f32, [4]), 2)
    assert dense(np.full((8, 16), 2, np.float32)) == constant
    assert not is_splat(dense(np.arange(3)))
    assert not is_splat(dense(np.zeros(0)))


def test_types() -> None:
    assert dtype_of(TensorType(i32, [3])) == np.dtype(np.int32)
    for array in ARRAYS:
        assert dtype_of(element_type_of(array.dtype)) == array.dtype
    with pytest.raises(KeyError):
        element_type_of("U3")

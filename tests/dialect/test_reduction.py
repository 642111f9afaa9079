"""What changes nothing when it is combined once more, as literals say it."""

import numpy as np
import pytest
from xdsl.dialects.builtin import TensorType
from xdsl.ir import SSAValue

from partir.dialect.constants import dense
from partir.dialect.reduction import is_neutral
from partir.dialect.stablehlo import OPS
from partir.sharding.linear import is_one, is_zero

pytestmark = pytest.mark.core


def literal(array: object) -> SSAValue:
    value = dense(np.asarray(array))
    type_ = TensorType(value.get_element_type(), value.type.get_shape())
    return OPS["stablehlo.constant"].create(result_types=[type_], properties={"value": value}).results[0]


def test_neutral_values():
    assert is_neutral(literal(np.float32(0)), "add")
    assert is_neutral(literal(np.full((4, 4), -np.inf)), "max")
    assert not is_neutral(literal(np.float32(0)), "mul")
    assert not is_neutral(literal(np.arange(3.0)), "add")
    assert is_zero(literal(np.zeros((2, 2))))
    assert is_one(literal(np.ones((2, 2))))


def test_a_literal_without_elements_is_none_of_them():
    nothing = literal(np.zeros((0, 3), np.float32))

    assert not is_neutral(nothing, "add")
    assert not is_zero(nothing)
    assert not is_one(nothing)

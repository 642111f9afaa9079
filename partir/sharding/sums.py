"""The dtype that a sum over devices is made in: that of its values, or the one that a `ReduceIn` asks for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from xdsl.dialects.builtin import AnyFloat, TensorType

from partir.dialect.constants import dtype_of, element_type_of
from partir.errors import ProgramError, error_text

ROUNDED = frozenset({"add", "mul"})
"""The reductions that round; a maximum or minimum is exact in any dtype."""

Asked = Mapping[str, str]
"""By mesh axis, the dtype that sums over it are asked for in."""


def dtype_name(dtype: Any) -> str:
    """The name of a dtype in which sums can be made. Raises ProgramError for anything that is no float of a known name.

    >>> dtype_name("float32"), dtype_name(np.float16), dtype_name("bfloat16")
    ('float32', 'float16', 'bfloat16')
    """
    try:
        found = np.dtype(dtype)
        is_float = dtype is not None and isinstance(element_type_of(found), AnyFloat)
    except (TypeError, KeyError):
        found, is_float = None, False
    if found is None or not is_float:
        raise ProgramError(
            error_text(
                f"sums cannot be made in {dtype if isinstance(dtype, str) else repr(dtype)}",
                why="that is no dtype" if found is None else "it is no floating-point dtype",
                hint="reduce_dtype='float32', 'bfloat16', 'float16' or 'float64'",
            )
        )
    return found.name


def float_name(type_: Any) -> str | None:
    """The dtype of a tensor of real floats by its name; None for other types."""
    element = type_.element_type if isinstance(type_, TensorType) else None
    return dtype_of(element).name if isinstance(element, AnyFloat) else None


def item_bytes(name: str) -> int:
    """The bytes of one number."""
    return np.dtype(name).itemsize


def summed_in(type_: Any, kind: str | None, axes: Sequence[str], asked: Asked) -> str | None:
    """The dtype in which values of a type are reduced over some axes together; None for their own.

    Of several axes the widest counts of what is asked for each; where nothing is asked, that is the dtype of the values. A
    scalar is not narrowed, as that saves nothing.
    """
    own = float_name(type_) if kind in ROUNDED and any(axis in asked for axis in axes) else None
    if own is None:
        return None
    found = asked.get(axes[0], own)
    for axis in axes[1:]:
        found = _wider(found, asked.get(axis, own))
    narrows = item_bytes(found) < item_bytes(own)
    return None if found == own or (narrows and not type_.get_shape()) else found


def _wider(a: str, b: str) -> str:
    """The wider of two dtypes; of two of one size, float32, which holds both."""
    if a == b or item_bytes(a) > item_bytes(b):
        return a
    return b if item_bytes(a) < item_bytes(b) else "float32"

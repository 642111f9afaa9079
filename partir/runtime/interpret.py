"""Runs Core IR on one CPU device, loop iterations in sequence, to compare its results with those of the original program.

It does not use the lowering to SPMD: `unroll` writes the loops out, and the result is an ordinary StableHLO program.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import ShapedArray
from xdsl.dialects.builtin import ModuleOp, TensorType

from partir.coreir.boundary import main_of
from partir.coreir.unroll import unroll
from partir.dialect.constants import dtype_of
from partir.errors import ProgramError, error_text
from partir.frontend.trace import Host
from partir.mesh import Mesh
from partir.runtime.emit import emit
from partir.runtime.execute import Callee, call
from partir.sharding.rule import shape_of

Array = np.ndarray[Any, np.dtype[Any]]


def interpret(module: ModuleOp, arguments: Sequence[Any], *, host: Host | None = None) -> list[Array]:
    """The results of a Core IR (or plain StableHLO) module on flat `arguments`, one array per argument of `main`.

    `host` holds the program's host callbacks, if it has any. Raises ProgramError for arguments of other shapes or dtypes, and
    IRError for a module with collectives.
    """
    plain = unroll(module)
    function = main_of(plain).function_type
    expected = [_aval(type_) for type_ in function.inputs]
    given = [_numbers(x) for x in arguments]
    if [(x.shape, x.dtype) for x in given] != [(aval.shape, aval.dtype) for aval in expected]:
        raise ProgramError(
            error_text(
                "the arguments do not fit the module",
                where=f"it takes {', '.join(f'{a.dtype}{list(a.shape)}' for a in expected)}",
                why=f"{', '.join(f'{x.dtype}{list(x.shape)}' for x in given)} were given",
            )
        )
    local = emit(plain, Mesh())
    with jax.enable_x64(True):  # JAX must not narrow the 64-bit types that the module may have
        device = jax.local_devices(backend="cpu")[0]
        callee = Callee(local, tuple(_aval(type_) for type_ in function.outputs), host or Host(), "interpret")
        results = jax.jit(lambda *xs: call(callee, *xs))(*jax.device_put(given, device))
        return [np.asarray(x) for x in results]


def _aval(type_: Any) -> Any:
    assert isinstance(type_, TensorType)
    return ShapedArray(shape_of(type_), dtype_of(type_))


def _numbers(x: Any) -> Array:
    if isinstance(x, jax.Array) and jnp.issubdtype(x.dtype, jax.dtypes.prng_key):
        x = jax.random.key_data(x)
    return np.asarray(x)

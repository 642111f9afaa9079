"""Every public function of jax.lax, jax.numpy, jax.nn, jax.scipy, jax.random and their submodules, called once.

`SURFACE[name]` is (function, arguments): a call from `surface_calls`, else the function itself, where the names of its
required parameters are all in `MEANING`. `LEFT_OUT` says which are not called and why; `missing()` are those that are neither.
"""

import importlib
import inspect
import types
from collections.abc import Callable, Iterator
from typing import Any

import jax.scipy.stats
import numpy as np
from surface_calls import CALLS, LEFT_OUT

MODULES = (
    *("lax", "lax.linalg", "numpy", "numpy.linalg", "numpy.fft", "nn", "nn.initializers", "random", "ops", "image"),
    *("scipy.special", "scipy.linalg", "scipy.fft", "scipy.signal", "scipy.ndimage", "scipy.integrate", "scipy.interpolate"),
    *("scipy.optimize", "scipy.sparse.linalg", "scipy.cluster.vq", "scipy.spatial.transform", "scipy.stats"),
    *(f"scipy.stats.{name}" for name in dir(jax.scipy.stats) if inspect.ismodule(getattr(jax.scipy.stats, name))),
)


def _arrays() -> dict[str, Any]:
    rng = np.random.default_rng(0)
    square = rng.standard_normal((8, 8))
    return {
        "x": rng.uniform(0.1, 0.9, (8, 8)),
        "y": rng.uniform(0.2, 1.8, (8, 8)),
        "v": rng.uniform(0.1, 0.9, 8),
        "w": rng.uniform(0.2, 1.8, 8),
        "t": rng.standard_normal((8, 8, 8)),
        "spd": square @ square.T + 8 * np.eye(8),
        "i": rng.integers(0, 8, (8, 8)).astype("int32"),
        "j": rng.integers(0, 8, 8).astype("int32"),
        "u": rng.integers(0, 8, (8, 8)).astype("uint32"),
        "bytes": rng.integers(0, 256, (8, 8)).astype("uint8"),
        "b": rng.integers(0, 2, (8, 8)).astype("bool"),
        "c": square + 1j * rng.standard_normal((8, 8)),
        "n": np.int32(2),
        "s": np.float64(0.5),
        "images": rng.standard_normal((8, 8, 8, 4)),
        "kernel": rng.standard_normal((3, 3, 4, 8)),
        "key": np.array([3, 5], "uint32"),
    }


ARRAYS = _arrays()
"""What the parameters of a call in `surface_calls` stand for."""

_SAME = {
    "x": "a operand ary array arr val element x1 a1 p obs test_elements lhs data input condition keys values",
    "y": "b x2 a2 q rhs on_true lmbda df loc d",
    "s": "alpha beta scale lam concentration c kappa",
    "n": "k mu",
}
OWN = {name: name for name in ARRAYS}
MEANING = OWN | {name: array for array, names in _SAME.items() for name in names.split()}
"""Parameter names of JAX's functions, by the array that is passed for them."""

Program = tuple[Callable[..., Any], tuple[Any, ...]]


def functions() -> Iterator[tuple[str, Callable[..., Any]]]:
    """Every public function by name, as `numpy.fft.fft`; classes and modules left out."""
    for name in MODULES:
        module = importlib.import_module(f"jax.{name}")
        for own in dir(module):
            found = getattr(module, own)
            if (
                not own.startswith("_")
                and callable(found)
                and not inspect.isclass(found)
                and not isinstance(found, types.ModuleType)
            ):
                yield f"{name}.{own}", found


def required(fun: Callable[..., Any]) -> list[str] | None:
    """The names of the parameters a function must be given; None where they cannot be told."""
    try:
        parameters = inspect.signature(fun).parameters.values()
    except (TypeError, ValueError):
        return None
    if any(p.kind is p.VAR_POSITIONAL for p in parameters):
        return None
    return [p.name for p in parameters if p.default is p.empty and p.kind is not p.VAR_KEYWORD]


def program(name: str, fun: Callable[..., Any]) -> Program | None:
    """How a function is called; None where nobody says."""
    call = CALLS.get(name, fun)
    names, meaning = required(call), MEANING if call is fun else OWN
    if not names or any(n not in meaning for n in names):
        return None
    return call, tuple(ARRAYS[meaning[n]] for n in names)


_FOUND = {name: program(name, fun) for name, fun in functions() if name not in LEFT_OUT}
SURFACE: dict[str, Program] = {name: found for name, found in _FOUND.items() if found is not None}


def missing() -> list[str]:
    """Public functions that are neither called nor left out for a reason."""
    return [name for name, found in _FOUND.items() if found is None]

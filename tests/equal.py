"""Comparing a partitioned function with the plain one on one device, and the meshes the tests do it on."""

from typing import Any

import jax
import numpy as np

RTOL = 1e-9
"""Of every entry in float64."""

ROUNDING = 1e-11
"""Of the largest entry of a leaf: what sums in another order may leave of an entry that is all but cancelled. A leaf whose
true value is zero (the gradient of a key's bias) is rounding noise as a whole, and Adam divides noise by noise: it is held
to this share of the largest entry of the tree it is part of."""

MESHES = {
    "8": ((8,), ("data",)),
    "4x2": ((4, 2), ("data", "model")),
    "2x4": ((2, 4), ("data", "model")),
    "2x2x2": ((2, 2, 2), ("data", "model", "stage")),
}


def mesh_of(name: str) -> jax.sharding.Mesh:
    """One of MESHES on the virtual devices, with JAX's default axis types."""
    shape, axes = MESHES[name]
    return jax.make_mesh(shape, axes)


def assert_same(actual: Any, expected: Any) -> None:
    """Equal in float64 at rtol 1e-9 (see ROUNDING); equal exactly where the numbers are whole; the same pytrees."""
    assert jax.tree.structure(actual) == jax.tree.structure(expected)
    groups = list(expected) if isinstance(expected, tuple) and not hasattr(expected, "_fields") else [expected]
    largest = [max((_largest(leaf) for leaf in jax.tree.leaves(group)), default=0.0) for group in groups]
    scales = [scale for scale, group in zip(largest, groups, strict=True) for _ in jax.tree.leaves(group)]
    wrong: list[str] = []
    pairs = zip(jax.tree_util.tree_leaves_with_path(expected), jax.tree.leaves(actual), scales, strict=True)
    for (path, there), here, scale in pairs:
        name = jax.tree_util.keystr(path)
        there, here = _numbers(there), _numbers(here)
        assert (here.shape, here.dtype) == (there.shape, there.dtype), f"{name}: {here.dtype}{here.shape}"
        if not np.issubdtype(there.dtype, np.inexact):
            if not np.array_equal(here, there):
                wrong.append(f"{name}: {int(np.sum(here != there))} of {there.size} entries differ")
            continue
        own = _largest(there)
        floor = ROUNDING * (scale if own <= ROUNDING * scale else own)
        with np.errstate(invalid="ignore"):
            off = np.abs(here - there) - RTOL * np.abs(there) - floor
        off = np.where((here == there) | (np.isnan(here) & np.isnan(there)), -np.inf, np.where(np.isnan(off), np.inf, off))
        if np.any(off > 0):
            worst = np.unravel_index(np.argmax(off), there.shape)
            wrong.append(f"{name}{list(map(int, worst))}: {here[worst]!r}, should be {there[worst]!r}")
    assert not wrong, "\n".join(wrong)


def assert_close_to_largest(actual: Any, expected: Any, tolerance: float) -> None:
    """Every entry within `tolerance` times the largest entry of its leaf's tree: what float32 can promise."""
    largest = max(_largest(leaf) for leaf in jax.tree.leaves(expected))
    for (path, there), here in zip(jax.tree_util.tree_leaves_with_path(expected), jax.tree.leaves(actual), strict=True):
        error = np.max(np.abs(_numbers(here) - _numbers(there)), initial=0.0)
        assert error <= tolerance * largest, f"{jax.tree_util.keystr(path)}: off by {error}, largest entry {largest}"


def _numbers(leaf: Any) -> np.ndarray[Any, Any]:
    if isinstance(leaf, jax.Array) and jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.prng_key):
        leaf = jax.random.key_data(leaf)
    return np.asarray(leaf)


def _largest(leaf: Any) -> float:
    numbers = _numbers(leaf)
    finite = numbers[np.isfinite(numbers)] if np.issubdtype(numbers.dtype, np.inexact) else np.zeros(0)
    return float(np.max(np.abs(finite), initial=0.0))

"""Names for what goes in and out: argument paths as users write them, roles, and which arguments are a step's state."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import numpy as np
from jax.tree_util import DictKey, FlattenedIndexKey, GetAttrKey, SequenceKey

from partir.program import Leaf, Path, Role, Signature

STATE_NAMES = frozenset(
    ["params", "parameters", "weights", "variables", "state", "opt_state", "model", "key", "rng", "rngs", "seed"]
)
"""Argument names that mean state (or a random key) even where nothing is handed on: a forward function's parameters."""


def key_text(key: Any) -> str:
    """One pytree key as a user writes it."""
    if isinstance(key, DictKey | FlattenedIndexKey):
        return str(key.key)
    if isinstance(key, SequenceKey):
        return str(key.idx)
    if isinstance(key, GetAttrKey):
        return str(key.name)
    return str(key).strip(".[]'\"")


def paths_of(tree: Any, root: Path = ()) -> list[tuple[Path, Any]]:
    """(path, leaf) of every leaf of a pytree, in flat order."""
    leaves, _ = jax.tree_util.tree_flatten_with_path(tree)
    return [((*root, *map(key_text, keys)), leaf) for keys, leaf in leaves]


def static_names(
    fun: Callable[..., Any], static_argnums: Any, static_argnames: Any, positional: int
) -> tuple[frozenset[int], frozenset[str]]:
    """The positions and keyword names of static arguments, each completed by the other, as `jax.jit` does."""
    numbers = set(_tuple(static_argnums))
    names = set(_tuple(static_argnames))
    numbers = {n % positional if n < 0 and positional else n for n in numbers}
    parameters = _parameters(fun)
    for number in list(numbers):
        if number < len(parameters):
            names.add(parameters[number])
    numbers |= {i for i, name in enumerate(parameters) if name in names}
    return frozenset(numbers), frozenset(names)


def _tuple(value: Any) -> tuple[Any, ...]:
    if value is None:
        return ()
    return (value,) if isinstance(value, int | str) else tuple(value)


def _parameters(fun: Callable[..., Any]) -> list[str]:
    """Names of the positional parameters; `*rest` and everything after it have none."""
    try:
        found = inspect.signature(fun).parameters.values()
    except (TypeError, ValueError):
        return []
    return [p.name for p in found if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]


def argument_paths(
    fun: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any], static: tuple[frozenset[int], frozenset[str]]
) -> list[tuple[Path, Any]]:
    """(path, leaf) of every traced argument in JAX's flat order: positional ones, then keywords by name."""
    names = _parameters(fun)
    variadic = next(
        (p.name for p in _signature(fun) if p.kind is inspect.Parameter.VAR_POSITIONAL),
        "args",
    )
    found: list[tuple[Path, Any]] = []
    for i, arg in enumerate(args):
        if i not in static[0]:
            root = (names[i],) if i < len(names) else (variadic, str(i - len(names)))
            found += paths_of(arg, root)
    for name in sorted(kwargs):
        if name not in static[1]:
            found += paths_of(kwargs[name], (name,))
    return found


def _signature(fun: Callable[..., Any]) -> list[inspect.Parameter]:
    try:
        return list(inspect.signature(fun).parameters.values())
    except (TypeError, ValueError):
        return []


def signature_of(
    arguments: Sequence[tuple[Path, Any]],
    donated: Sequence[bool],
    out: Any,
    stated: Sequence[tuple[int, int]] | None = None,
) -> Signature:
    """Put a signature together: leaves with roles, and the state pairs (`stated`, or inferred)."""
    results = paths_of(out, ("result",))
    pairs = tuple(stated) if stated is not None else infer_state(arguments, donated, out)
    paired = {argument for argument, _ in pairs}
    leaves: list[Leaf] = []
    for i, (path, leaf) in enumerate(arguments):
        role: Role = "state" if i in paired or path[0] in STATE_NAMES or _is_key(leaf) else "input"
        leaves.append(Leaf(path, tuple(leaf.shape), str(leaf.dtype), role, donated[i]))
    return Signature(
        tuple(leaves),
        tuple(Leaf(path, tuple(leaf.shape), str(leaf.dtype)) for path, leaf in results),
        pairs,
    )


def _is_key(leaf: Any) -> bool:
    """Whether a leaf is a random key: typed, or the raw pair of words."""
    if str(leaf.dtype).startswith("key<"):
        return True
    return leaf.dtype == np.uint32 and tuple(leaf.shape[-1:]) in ((2,), (4,))


def infer_state(arguments: Sequence[tuple[Path, Any]], donated: Sequence[bool], out: Any) -> tuple[tuple[int, int], ...]:
    """Which argument leaves a step hands on: donated arguments first, then containers, to results of equal structure.

    Each top-level argument is compared with each top-level result: same paths below, shapes and dtypes. An argument that
    is not donated is paired only when it holds several leaves, so that `f(x) -> y` of equal shape is not taken for a step.
    """
    groups: dict[Path, list[int]] = {}
    for i, (path, _) in enumerate(arguments):
        groups.setdefault(path[:1], []).append(i)
    below = _result_groups(out)
    free = list(range(len(below)))
    pairs: list[tuple[int, int]] = []
    order = sorted(groups.values(), key=lambda members: not all(donated[i] for i in members))
    for members in order:
        if not all(donated[i] for i in members) and len(members) < 2:
            continue
        wanted = [(arguments[i][0][1:], tuple(arguments[i][1].shape), arguments[i][1].dtype) for i in members]
        for g in free:
            if [(path, tuple(leaf.shape), leaf.dtype) for path, leaf, _ in below[g]] == wanted:
                pairs += [(i, index) for i, (_, _, index) in zip(members, below[g], strict=True)]
                free.remove(g)
                break
    return tuple(sorted(pairs))


def _result_groups(out: Any) -> list[list[tuple[Path, Any, int]]]:
    """The results as groups that could each be a state: the items of a tuple, or all of it; leaves with flat numbers."""
    flat = paths_of(out)
    if isinstance(out, tuple | list) and not hasattr(out, "_fields"):
        groups: dict[str, list[tuple[Path, Any, int]]] = {}
        for index, (path, leaf) in enumerate(flat):
            groups.setdefault(path[0], []).append((path[1:], leaf, index))
        return list(groups.values())
    return [[(path, leaf, index) for index, (path, leaf) in enumerate(flat)]]

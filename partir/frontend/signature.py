"""Names the arguments and results of a function by the paths that users write, and makes a program's signature of them."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import jax
from jax.tree_util import DictKey, FlattenedIndexKey, GetAttrKey, SequenceKey

from partir.program import Leaf, Path, Role, Signature

Arguments = Sequence[tuple[Path, Any]]
"""(path, leaf) of every traced argument, in flat order."""


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
    """The positions and the names of static arguments. As in `jax.jit`, each list is completed from the other.

    `positional` is the number of positional arguments of the call (for negative numbers).
    """
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
    """(path, leaf) of every traced argument in JAX's flat order: positional arguments, then keywords sorted by name."""
    found: list[tuple[Path, Any]] = []
    for i, (arg, root) in enumerate(zip(args, argument_roots(fun, len(args)), strict=True)):
        if i not in static[0]:
            found += paths_of(arg, root)
    for name in sorted(kwargs):
        if name not in static[1]:
            found += paths_of(kwargs[name], (name,))
    return found


def argument_roots(fun: Callable[..., Any], positional: int) -> list[Path]:
    """The path of each positional argument, static ones included."""
    names = _parameters(fun)
    variadic = next(
        (p.name for p in _signature(fun) if p.kind is inspect.Parameter.VAR_POSITIONAL),
        "args",
    )
    return [(names[i],) if i < len(names) else (variadic, str(i - len(names))) for i in range(positional)]


def _signature(fun: Callable[..., Any]) -> list[inspect.Parameter]:
    try:
        return list(inspect.signature(fun).parameters.values())
    except (TypeError, ValueError):
        return []


def signature_of(
    arguments: Arguments, donated: Sequence[bool], out: Any, pairs: Sequence[tuple[int, int]], others: Collection[int]
) -> Signature:
    """Make the signature: leaves with roles, and the state `pairs` (argument, result).

    `others` are arguments that are state without a result (only read, or random keys).
    """
    results = paths_of(out, ("result",))
    is_state = {argument for argument, _ in pairs}.union(others)
    leaves: list[Leaf] = []
    for i, (path, leaf) in enumerate(arguments):
        role: Role = "state" if i in is_state else "input"
        leaves.append(Leaf(path, tuple(leaf.shape), str(leaf.dtype), role, donated[i]))
    return Signature(
        tuple(leaves),
        tuple(Leaf(path, tuple(leaf.shape), str(leaf.dtype)) for path, leaf in results),
        tuple(pairs),
    )

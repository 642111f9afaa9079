"""Finds the arguments that are raw random keys: uint32 arrays that the program draws random numbers from."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from jax.extend.core import ClosedJaxpr, Jaxpr, Literal

KEYS = {"random_wrap": 1, "threefry2x32": 2, "rng_bit_generator": 1}
"""Primitives that take raw (uint32) keys, each with how many of its leading operands are the key."""

MOVES = frozenset(
    [
        "broadcast_in_dim",
        "concatenate",
        "copy",
        "dynamic_slice",
        "expand_dims",
        "gather",
        "optimization_barrier",
        "reshape",
        "rev",
        "select_n",
        "slice",
        "split",
        "squeeze",
        "stack",
        "transpose",
    ]
)
"""Primitives whose results have elements of their operands and compute no new ones."""

Sources = frozenset[int]
"""The candidates that a value's elements come from."""
_NONE: Sources = frozenset()


def keys_of(traced: Any, candidates: Sequence[int]) -> set[int]:
    """Those of the `candidates` (numbers of flat arguments of the `ClosedJaxpr` `traced`) that are used as random keys."""
    found: set[int] = set()
    if candidates:
        wanted = set(candidates)
        own = [frozenset({i}) if i in wanted else _NONE for i in range(len(traced.jaxpr.invars))]
        _walk(traced.jaxpr, own, found)
    return found


def _walk(jaxpr: Any, given: Sequence[Sources], found: set[int]) -> list[Sources]:
    """Follow the candidates through one jaxpr and add the keys to `found`; returns the sources of each result.

    `given` are the sources of each of its arguments.
    """
    sources: dict[Any, Sources] = {var: own for var, own in zip(jaxpr.invars, given, strict=True) if own}

    def of(atom: Any) -> Sources:
        return _NONE if isinstance(atom, Literal) else sources.get(atom, _NONE)

    for equation in jaxpr.eqns if sources else ():
        operands = [of(atom) for atom in equation.invars]
        if not any(operands):
            continue
        name = equation.primitive.name
        for own in operands[: KEYS.get(name, 0)]:
            found |= own
        if name in MOVES:
            every = frozenset[int]().union(*operands)
            sources.update((var, every) for var in equation.outvars)
        for inner in _inner(equation.params):
            count = len(inner.invars)
            # The last operands are the inner arguments: a branch takes all but the predicate, the body of a while loop all but
            # the constants of its condition.
            if count <= len(operands):
                back = _walk(inner, operands[len(operands) - count :], found)
                if len(back) == len(equation.outvars):
                    sources.update((var, of(var) | own) for var, own in zip(equation.outvars, back, strict=True))
    return [of(atom) for atom in jaxpr.outvars]


def _inner(params: dict[str, Any]) -> Iterator[Any]:
    for value in params.values():
        for item in value if isinstance(value, tuple | list) else (value,):
            if isinstance(item, ClosedJaxpr):
                yield item.jaxpr
            elif isinstance(item, Jaxpr):
                yield item

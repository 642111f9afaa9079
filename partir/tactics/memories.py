"""Arguments and results that are kept in host memory (`memory_kind`): as the user's shardings, or the arguments, say.

An argument in host memory is moved to the device as a step begins, a result back as it ends. State that comes in from host
memory goes back there.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import jax
from jax.sharding import NamedSharding

from partir.frontend.memories import host_kind
from partir.program import Leaf, Program
from partir.tactics.specs import by_argument, is_spec, spread_over

Layouts = Sequence[tuple[int, Any]]


def with_memories(program: Program, layouts: Layouts, in_shardings: Any, out_shardings: Any) -> Program:
    """The program with the kind of memory of each argument and result that is not kept in the device's own.

    A NamedSharding decides; else an argument stays in the memory that it comes in, and a result goes where the function puts
    it, or where the state is that it hands on.
    """
    signature = program.signature
    given = (sharding for tree in (in_shardings, out_shardings) for sharding in jax.tree.leaves(tree, is_leaf=is_spec))
    said = [*given, *(sharding for _, sharding in layouts)]
    if not any(isinstance(s, jax.sharding.Sharding) and host_kind(s) for s in said):
        return program
    arguments = {number: host_kind(sharding) for number, sharding in layouts}
    arguments |= _named(by_argument(in_shardings, signature.arguments), signature.arguments, (), "argument")
    results = {number: leaf.memory for number, leaf in enumerate(signature.results)}
    results |= {result: arguments[argument] for argument, result in signature.state if arguments.get(argument)}
    results |= _named(out_shardings, signature.results, ("result",), "result")
    changed = replace(signature, arguments=_kept(signature.arguments, arguments), results=_kept(signature.results, results))
    return replace(program, signature=changed)


def moves_memory(leaves: Sequence[Leaf], number: int, sharding: Any, in_shardings: Any) -> bool:
    """Whether an argument comes in in another memory than it is kept in, and no NamedSharding in `in_shardings` says which."""
    if leaves[number].memory == host_kind(sharding):
        return False
    return number not in _named(by_argument(in_shardings, leaves), leaves, (), "argument")


def _named(tree: Any, leaves: Sequence[Leaf], root: tuple[str, ...], what: str) -> dict[int, str]:
    """The kinds of memory that the NamedShardings of a tree say, by number."""
    if tree is None:
        return {}
    return {n: host_kind(spec) for n, spec in spread_over(tree, leaves, root, what) if isinstance(spec, NamedSharding)}


def _kept(leaves: Sequence[Leaf], kinds: dict[int, str]) -> tuple[Leaf, ...]:
    return tuple(replace(leaf, memory=kinds.get(number, "")) for number, leaf in enumerate(leaves))

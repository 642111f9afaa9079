"""What tactics need to know of a program: which rows are the model's forward pass, which arguments are its parameters.

A training step is one program: forward, backward, optimizer. The optimizer is what comes after the backward pass.
"""

from __future__ import annotations

from dataclasses import dataclass
from weakref import WeakKeyDictionary

from partir.sharding.assignment import Structure


@dataclass(frozen=True, eq=False)
class Roles:
    """`forward[row]`: whether a row is part of the forward pass. `parameters`: state arguments that the forward pass (or,
    where there is no backward pass, the program) reads. `of_parameters[value]`: computed from state and constants alone."""

    forward: list[bool]
    parameters: tuple[int, ...]
    of_parameters: list[bool]


_memo: WeakKeyDictionary[Structure, Roles] = WeakKeyDictionary()


def roles_of(structure: Structure) -> Roles:
    """The roles of a program's rows and arguments, worked out once."""
    found = _memo.get(structure)
    if found is None:
        found = _memo[structure] = _roles(structure)
    return found


def _roles(structure: Structure) -> Roles:
    tables = structure.tables
    leaves = tables.program.signature.arguments
    after = [False] * len(tables.values)
    of_parameters = [leaf.role == "state" for leaf in leaves] + [False] * (len(tables.values) - len(leaves))
    forward: list[bool] = []
    read: dict[int, None] = {}
    for row in tables.rows:
        sources = [view.source for view in row.operands if view is not None] + list(row.captured)
        if row.is_invariant or row.op.name == "stablehlo.dynamic_slice":
            sources = sources[:1]
        backward = tables.phase(row) != "forward" or any(after[s] for s in sources)
        forward.append(not backward)
        alone = bool(sources) and all(of_parameters[s] for s in sources)
        for result in row.results:
            after[result] = backward
            of_parameters[result] = alone
        if not backward:
            read.update((s, None) for s in sources if s < len(leaves) and leaves[s].role == "state")
    parameters = tuple(sorted(i for i in read if not _is_counter(leaves[i].shape, leaves[i].dtype)))
    if any(forward) and not all(forward):
        meets = _meets_inputs(structure, forward, of_parameters)
        parameters = tuple(i for i in parameters if meets[i])
    return Roles(forward, parameters, of_parameters)


def _meets_inputs(structure: Structure, forward: list[bool], of_parameters: list[bool]) -> list[bool]:
    """Whether a value enters the model: the optimizer's counters and moments meet only state before the backward pass."""
    meets = [False] * len(of_parameters)
    for row, is_forward in zip(reversed(structure.tables.rows), reversed(forward), strict=True):
        if is_forward and any(meets[r] or not of_parameters[r] for r in row.results):
            for view in row.operands:
                if view is not None:
                    meets[view.source] = True
    return meets


def _is_counter(shape: tuple[int, ...], dtype: str) -> bool:
    return not shape and not dtype.startswith(("float", "bfloat", "complex"))

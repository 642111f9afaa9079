"""What tactics and search need to know of a program: which rows are its forward pass, which arguments are its parameters.

A training step is one program: forward, backward, optimizer. The optimizer is what comes after the backward pass.
"""

from __future__ import annotations

from dataclasses import dataclass
from weakref import WeakKeyDictionary

from partir.frontend.accumulators import accumulators
from partir.frontend.flow import Flow
from partir.sharding.structure import Structure


@dataclass(frozen=True, eq=False)
class Roles:
    """`forward[row]`: whether a row is part of the forward pass. `parameters`: state arguments that the forward pass (or,
    where there is no backward pass, the program) reads. `of_parameters[value]`: computed from state and constants alone.
    `caches`: (argument, dim) of state that has a batch and that a program without a backward pass updates; no parameters."""

    forward: list[bool]
    parameters: tuple[int, ...]
    of_parameters: list[bool]
    caches: tuple[tuple[int, int], ...] = ()


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
    caches = _caches(structure) if all(forward) else ()
    running = {argument for argument, _ in caches} | _summed_in_loops(structure)
    return Roles(forward, tuple(i for i in parameters if i not in running), of_parameters, caches)


def _summed_in_loops(structure: Structure) -> set[int]:
    """The arguments that a loop only adds to."""
    tables = structure.tables
    found: set[int] = set()
    for accumulator in tables.accumulators.values():
        start = tables.rows[accumulator.carry].operands[0]
        if start is not None and all(row == accumulator.carry for row, _ in tables.uses[start.source]):
            found.add(start.source)
    return found


def accumulators_of(structure: Structure) -> list[int]:
    """State that sums gradients over steps, and that the forward pass does not read."""
    program, parameters = structure.program, set(roles_of(structure).parameters)
    state = [pair for pair in program.signature.state if pair[0] not in parameters]
    return accumulators(Flow(program.main), state)


def _caches(structure: Structure) -> tuple[tuple[int, int], ...]:
    """State that is updated and has a dim in the class of an input's first: (argument, that dim)."""
    tables, classes, atoms = structure.tables, structure.classes(), structure.atoms
    leaves = tables.program.signature.arguments

    def class_of(argument: int, dim: int) -> int | None:
        return classes.class_of(argument, dim) if atoms.sizes_of[argument][dim] else None

    batch = {class_of(i, 0) for i, leaf in enumerate(leaves) if leaf.role == "input" and leaf.shape} - {None}
    found: list[tuple[int, int]] = []
    for argument, result in tables.program.signature.state:
        view = tables.outputs[result]
        if view is not None and view.source != argument:
            dims = range(len(tables.shapes[argument]))
            found += [(argument, dim) for dim in dims if class_of(argument, dim) in batch][:1]
    return tuple(found)


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

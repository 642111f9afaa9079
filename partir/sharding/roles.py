"""What tactics and search need to know of a program: which rows are its forward pass, which arguments are its parameters.

A training step is one program: forward, backward, optimizer. The optimizer is what comes after the backward pass.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal
from weakref import WeakKeyDictionary

import numpy as np

from partir.dialect.kinds import MATRIX
from partir.frontend.accumulators import accumulators
from partir.frontend.flow import Flow
from partir.sharding.classes import Classes
from partir.sharding.indices import ClassId, RowIndex, ValueIndex
from partir.sharding.structure import Structure


@dataclass(frozen=True, eq=False)
class Roles:
    """What the parts of a program are for."""

    forward: list[bool]
    """[rows] whether a row is part of the forward pass."""
    parameters: tuple[ValueIndex, ...]
    """The state arguments that the forward pass (or, where there is no backward pass, the program) reads."""
    of_parameters: list[bool]
    """[values] whether a value is computed from state and constants alone."""
    caches: tuple[tuple[ValueIndex, int], ...] = ()
    """(argument, dim) of state that has a batch, and that a program without a backward pass updates; no parameters."""


@dataclass(frozen=True)
class Sum:
    """A class that an op of the forward pass sums over (or takes the maximum over, or looks up along)."""

    class_: ClassId
    row: RowIndex
    op: str
    """The name of the op: "stablehlo.dot_general" for a matrix multiplication, "stablehlo.reduce" for means and maxima."""
    scope: str
    """The named scope of the op: "layer_0/mlp-block/up"."""
    reads: Literal["constants", "parameters", "activations", "both"]
    """What the op reads: "both" for an activation with a parameter, as in a dense layer; "activations" for attention, norms and
    softmax; "parameters" for what is computed from parameters alone, "constants" where all operands are."""

    @property
    def is_contraction(self) -> bool:
        """Whether it is a matrix multiplication or a convolution, and no sum, mean or maximum of one value."""
        return self.op in MATRIX

    @property
    def is_projection(self) -> bool:
        """Whether it is a contraction with a parameter, as in a dense layer or a convolution."""
        return self.reads == "both" and self.is_contraction


_memo: WeakKeyDictionary[Structure, Roles] = WeakKeyDictionary()


def roles_of(structure: Structure) -> Roles:
    """The roles of a program's rows and arguments, worked out once."""
    found = _memo.get(structure)
    if found is None:
        found = _memo[structure] = _roles(structure)
    return found


def sums_of(structure: Structure, classes: Classes) -> list[Sum]:
    """What the forward pass sums over, op by op in program order."""
    tables, roles = structure.tables, roles_of(structure)
    found: list[Sum] = []
    for factor in np.flatnonzero(classes.reduction & (classes.of_factor >= 0)).tolist():
        position = RowIndex(int(classes.row_of_factor[factor]))
        if not roles.forward[position]:
            continue
        row = tables.rows[position]
        of_parameters = {roles.of_parameters[view.source] for view in row.operands if view is not None}
        reads = "both" if len(of_parameters) == 2 else "constants" if not of_parameters else "activations"
        reads = "parameters" if of_parameters == {True} else reads
        found.append(Sum(ClassId(int(classes.of_factor[factor])), position, row.op.name, tables.scope(row), reads))
    return found


def _roles(structure: Structure) -> Roles:
    tables = structure.tables
    leaves = tables.program.signature.arguments
    after = [False] * len(tables.values)
    of_parameters = [leaf.role == "state" for leaf in leaves] + [False] * (len(tables.values) - len(leaves))
    forward: list[bool] = []
    read: dict[ValueIndex, None] = {}
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
    kept = tuple(i for i in parameters if i not in running)
    return Roles(forward=forward, parameters=kept, of_parameters=of_parameters, caches=caches)


def _summed_in_loops(structure: Structure) -> set[ValueIndex]:
    """The arguments that a loop only adds to."""
    tables = structure.tables
    found: set[ValueIndex] = set()
    for accumulator in tables.accumulators.values():
        start = tables.rows[accumulator.carry].operands[0]
        if start is not None and all(row == accumulator.carry for row, _ in tables.uses[start.source]):
            found.add(start.source)
    return found


def accumulators_of(structure: Structure) -> list[ValueIndex]:
    """State that sums gradients over steps, and that the forward pass does not read."""
    program, parameters = structure.program, set(roles_of(structure).parameters)
    state = [pair for pair in program.signature.state if pair[0] not in parameters]
    return [ValueIndex(argument) for argument in accumulators(Flow(program.main), state)]


def _caches(structure: Structure) -> tuple[tuple[ValueIndex, int], ...]:
    """State that is updated and has a dim in the class of an input's first: (argument, that dim)."""
    tables, classes, atoms = structure.tables, structure.classes(), structure.atoms
    leaves = tables.program.signature.arguments

    def class_of(argument: ValueIndex, dim: int) -> ClassId | None:
        return classes.class_of(argument, dim) if atoms.sizes_of[argument][dim] else None

    batch = {class_of(i, 0) for i in tables.arguments if leaves[i].role == "input" and leaves[i].shape} - {None}
    found: list[tuple[ValueIndex, int]] = []
    for argument, result in tables.state:
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

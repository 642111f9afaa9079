"""Data parallelism: every input is split along its batch, the state stays replicated."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from partir.errors import PathError, TilingError, error_text, error_texts
from partir.sharding.actions import Action, ReduceIn, Tile
from partir.sharding.assignment import Assignment
from partir.sharding.classes import one_of_each
from partir.sharding.indices import ValueIndex
from partir.sharding.sums import dtype_name
from partir.tactics.manual import refusal


@dataclass(frozen=True)
class DataParallel:
    """Tile dim 0 of the inputs over `axis`. A training step then owes one all_reduce per parameter tensor and one for the loss.

    `inputs` are patterns of argument paths; None takes every leaf that is not state (nor a random key or a scalar). A batch
    that does not divide raises where it was named, and is reported where it was not.

    `reduce_dtype` is the dtype in which all sums over `axis` of floating values are made (`ReduceIn`): float32 keeps the bits
    that bfloat16 gradients lose, for twice the bytes; bfloat16 halves those of float32. None leaves them as the program says.
    """

    axis: str
    inputs: str | Sequence[str] | None = None
    reduce_dtype: Any = None

    def __post_init__(self) -> None:
        if self.reduce_dtype is not None:
            object.__setattr__(self, "reduce_dtype", dtype_name(self.reduce_dtype))

    def actions(self, assignment: Assignment) -> Sequence[Action]:
        assignment.mesh.check(self.axis)
        inputs = self._all(assignment) if self.inputs is None else self._named(assignment, self.inputs)
        batches = one_of_each(dim for dim in assignment.dims_of(inputs) if dim.dim == 0)
        new: list[Action] = [] if self.reduce_dtype is None else [ReduceIn(self.axis, self.reduce_dtype)]
        held: list[Action] = []
        for batch in batches:
            tile = Tile(batch.name, 0, self.axis)
            (held if assignment.is_claimed(batch.class_, self.axis) else new).append(tile)
        return new or held

    def _all(self, assignment: Assignment) -> list[ValueIndex]:
        """Every input that has dims. Raises PathError where there is none."""
        leaves = assignment.structure.program.signature.arguments
        inputs = [i for i in assignment.structure.tables.arguments if leaves[i].role == "input" and leaves[i].shape]
        if not inputs:
            raise PathError(
                error_text(
                    f"{self!r} finds no input to split",
                    why="every argument with dims is state (it is handed on, donated, or named like state)",
                    hint="DataParallel(axis, inputs='batch/**') names the inputs",
                )
            )
        return inputs

    def _named(self, assignment: Assignment, patterns: str | Sequence[str]) -> list[ValueIndex]:
        """The inputs that patterns name. Raises TilingError for all of them whose batch cannot be split, at once."""
        signature = assignment.structure.program.signature
        each = [patterns] if isinstance(patterns, str) else patterns
        inputs = list(dict.fromkeys(ValueIndex(i) for pattern in each for i in signature.select(pattern)))
        refused = (refusal(assignment, signature.arguments[i].name, 0, self.axis, assignment) for i in inputs)
        problems = [problem for problem in refused if problem is not None]
        if problems:
            raise TilingError(error_texts(problems))
        return inputs

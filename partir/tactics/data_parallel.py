"""Data parallelism: every input is split along its batch, the state stays replicated."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from partir.errors import PathError, TilingError, error_text, error_texts
from partir.sharding.actions import Action, ReduceIn, Tile
from partir.sharding.assignment import NEVER, Assignment
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
        signature = assignment.structure.program.signature
        if self.inputs is None:
            chosen = [i for i, leaf in enumerate(signature.arguments) if leaf.role == "input" and leaf.shape]
            if not chosen:
                raise PathError(
                    error_text(
                        f"{self!r} finds no input to split",
                        why="every argument with dims is state (it is handed on, donated, or named like state)",
                        hint="DataParallel(axis, inputs='batch/**') names the inputs",
                    )
                )
        else:
            patterns = [self.inputs] if isinstance(self.inputs, str) else list(self.inputs)
            chosen = list(dict.fromkeys(i for pattern in patterns for i in signature.select(pattern)))
            problems = [
                problem
                for i in chosen
                if (problem := refusal(assignment, signature.arguments[i].name, 0, self.axis, assignment)) is not None
            ]
            if problems:
                raise TilingError(error_texts(problems))
        actions: list[Action] = [] if self.reduce_dtype is None else [ReduceIn(self.axis, self.reduce_dtype)]
        held: list[Action] = []
        seen: set[int] = set()
        for i in chosen:
            class_ = assignment.class_of(i, 0)
            if class_ is None or class_ in seen:
                continue
            seen.add(class_)
            free = assignment.claims.order[self.axis][class_] == NEVER
            (actions if free else held).append(Tile(signature.arguments[i].name, 0, self.axis))
        return actions or held

"""Sequence parallelism (Korthikanti et al. 2022): what Megatron leaves replicated is split along the sequence."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from partir.errors import NoEffectError, error_text
from partir.sharding.actions import Action, Tile
from partir.sharding.assignment import NEVER, Assignment
from partir.sharding.roles import roles_of
from partir.tactics.megatron import address


@dataclass(frozen=True)
class SequenceParallel:
    """Tile the sequence class over `axis`, after `Megatron` on the same axis: its all_reduces become all_gather and
    reduce_scatter, and layer norms, dropout and residual adds work on slices.

    The sequence is the class of an input's second or later dim that no parameter is contracted over; among several, the one
    that most activations have.
    """

    axis: str

    def actions(self, assignment: Assignment) -> Sequence[Action]:
        assignment.mesh.check(self.axis)
        classes, signature = assignment.classes, assignment.structure.program.signature
        contracted = _contracted(assignment)
        batch = {assignment.class_of(i, 0) for i, leaf in enumerate(signature.arguments) if leaf.role == "input" and leaf.shape}
        found: dict[int, int] = {}
        held: dict[int, int] = {}
        for i, leaf in enumerate(signature.arguments):
            for dim in range(1, len(leaf.shape)) if leaf.role == "input" else ():
                class_ = assignment.class_of(i, dim)
                if class_ is None or class_ in contracted or class_ in batch or class_ in assignment.scanned:
                    continue
                free = assignment.claims.order[self.axis][class_] == NEVER
                (found if free else held)[class_] = len(classes.atoms_by_class[class_])
        if not found:
            raise NoEffectError(
                error_text(
                    f"{self!r} finds no sequence dim",
                    why="no input has a second dim that is free and that no parameter is contracted over",
                    hint="Manual with the dim you mean",
                ),
                [Tile(*address(assignment, max(held, key=lambda c: (held[c], -c))), self.axis)] if held else (),
            )
        best = max(found, key=lambda c: (found[c], -c))
        return [Tile(*address(assignment, best), self.axis)]


def _contracted(assignment: Assignment) -> set[int]:
    """Classes that the forward pass contracts with a parameter: widths, not sequences."""
    roles = roles_of(assignment.structure)
    classes, tables = assignment.classes, assignment.structure.tables
    found: set[int] = set()
    for factor in np.flatnonzero(classes.reduction & (classes.of_factor >= 0)).tolist():
        row = int(classes.row_of_factor[factor])
        if roles.forward[row] and tables.rows[row].op.name == "stablehlo.dot_general":
            sources = [view.source for view in tables.rows[row].operands if view is not None]
            if any(roles.of_parameters[s] for s in sources):
                found.add(int(classes.of_factor[factor]))
    return found

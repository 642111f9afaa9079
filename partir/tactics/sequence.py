"""Sequence parallelism (Korthikanti et al. 2022): what Megatron leaves replicated is split along the sequence."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from partir.errors import NoEffectError, error_text
from partir.sharding.actions import Action
from partir.sharding.assignment import Assignment
from partir.sharding.indices import ClassId


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
        found = _sequences(assignment)
        free = [class_ for class_ in found if not assignment.is_claimed(class_, self.axis)]
        if not free:
            raise NoEffectError(
                error_text(
                    f"{self!r} finds no sequence dim",
                    why="no input has a second dim that is free and that no parameter is contracted over",
                    hint="Manual with the dim you mean",
                ),
                [assignment.tile(class_, self.axis) for class_ in found[:1]],
            )
        return [assignment.tile(free[0], self.axis)]


def _sequences(assignment: Assignment) -> list[ClassId]:
    """The classes that may be a sequence, that of the most activations first."""
    widths = {
        total.class_
        for total in assignment.forward_sums
        if total.op == "stablehlo.dot_general" and total.reads in ("parameters", "both")
    }
    dims = assignment.input_dims
    batches = {dim.class_ for dim in dims if dim.dim == 0}
    found = {dim.class_ for dim in dims if dim.dim > 0} - widths - batches - assignment.scanned
    members = assignment.classes.atoms_by_class
    return sorted(found, key=lambda class_: (-len(members[class_]), class_))

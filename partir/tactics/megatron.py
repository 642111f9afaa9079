"""Tensor parallelism within blocks (Shoeybi et al. 2019), found by analysis: no parameter names are looked at."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from partir.errors import NoEffectError, error_text
from partir.sharding.actions import Action, Tile
from partir.sharding.assignment import Assignment
from partir.sharding.indices import ClassId, ValueIndex
from partir.sharding.scopes import in_scope
from partir.tactics.tactic import holds


@dataclass(frozen=True)
class Hidden:
    """A class inside a block: made by some parameter matrices, summed away by contractions with others."""

    class_: ClassId
    matrices: frozenset[ValueIndex]
    contractions: int
    bytes: int
    """Of all its matrices together."""


@dataclass(frozen=True)
class Megatron:
    """Tile the hidden classes (attention heads, MLP hidden) over `axis`: 2 all_reduces per block pair and direction.

    In the bipartite graph of classes and parameter matrices the hidden classes are an independent set: each touches two
    matrices or more, no matrix has two of them, and in the forward pass each is summed only by contractions with a
    parameter. The residual width is none of them (layer norms sum over it); neither are batch, sequence and vocabulary.
    Where a class does not divide (8 key-value heads on 16 devices) the next best that shares its matrices is taken.

    `scope` limits it to the classes that are contracted inside scopes of that name or glob.
    """

    axis: str
    scope: str | None = None

    def actions(self, assignment: Assignment) -> Sequence[Action]:
        assignment.mesh.check(self.axis)
        found = hidden_classes(assignment, self.scope)
        chosen: list[ClassId] = []
        taken: set[ValueIndex] = set()
        misfits: list[str] = []
        held: list[Tile] = []
        for hidden in found:
            if not taken.isdisjoint(hidden.matrices):
                continue
            if assignment.is_claimed(hidden.class_, self.axis):
                held.append(assignment.tile(hidden.class_, self.axis))
                taken |= hidden.matrices if holds(assignment, held[-1]) else frozenset()
            elif not assignment.fits(hidden.class_, self.axis):
                held.append(assignment.tile(hidden.class_, self.axis))
                misfits.append(f"{held[-1].value} dim {held[-1].dim} ({assignment.classes.size[hidden.class_]})")
            else:
                taken |= hidden.matrices
                chosen.append(hidden.class_)
        if not chosen:
            where = f' in scope "{self.scope}"' if self.scope else ""
            raise NoEffectError(
                error_text(
                    f"{self!r} finds no hidden dim to split{where}",
                    why=f"of {len(found)} hidden classes none is free and divides by {assignment.mesh.size_of(self.axis)}"
                    + (f": {', '.join(misfits[:4])}" if misfits else ""),
                    hint="a smaller axis, sizes that divide, or Manual for models of another form",
                ),
                held,
            )
        return [assignment.tile(class_, self.axis) for class_ in sorted(chosen)]


def hidden_classes(assignment: Assignment, scope: str | None = None) -> list[Hidden]:
    """Hidden classes, best first: fewest contractions (so fewest all_reduces), then most bytes of matrices.

    A residual width that no norm sums over (of a network with batch norms) is contracted in every block that reads it, and
    comes after what is hidden within one.
    """
    bytes_of = assignment.structure.tables.bytes_of
    projections = [total for total in assignment.forward_sums if total.is_projection]
    others = [total for total in assignment.forward_sums if total.reads in ("activations", "both") and not total.is_projection]
    contractions = Counter(total.class_ for total in projections)
    in_scopes = {total.class_ for total in projections if scope is None or in_scope(scope, total.scope)}
    candidates = in_scopes - {total.class_ for total in others}
    found = [
        Hidden(class_, frozenset(own), contractions[class_], sum(bytes_of[matrix] for matrix in own))
        for class_, own in _matrices(assignment).items()
        if class_ in candidates and len(own) > 1
    ]
    return sorted(found, key=lambda hidden: (hidden.contractions, -hidden.bytes, hidden.class_))


def _matrices(assignment: Assignment) -> dict[ClassId, set[ValueIndex]]:
    """The parameters of two dims or more that have each class."""
    parameters, shapes = set(assignment.roles.parameters), assignment.structure.tables.shapes
    matrices = {parameter for parameter in parameters if sum(size > 1 for size in shapes[parameter]) > 1}
    members = enumerate(assignment.classes.arguments_by_class)
    return {ClassId(c): {argument for argument, _, _ in own if argument in matrices} for c, own in members}

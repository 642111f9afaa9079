"""Tensor parallelism within blocks (Shoeybi et al. 2019), found by analysis: no parameter names are looked at."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from partir.errors import NoEffectError, error_text
from partir.sharding.actions import Action, Tile
from partir.sharding.assignment import NEVER, Assignment, in_scope
from partir.sharding.roles import Roles, roles_of
from partir.tactics.tactic import holds


@dataclass(frozen=True)
class Hidden:
    """A class inside a block: made by some parameter matrices, used up by contractions with others."""

    class_: int
    matrices: frozenset[int]
    contractions: int
    bytes: int


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
        chosen: list[int] = []
        taken: set[int] = set()
        misfits: list[str] = []
        held: list[Tile] = []
        for hidden in found:
            if not taken.isdisjoint(hidden.matrices):
                continue
            if assignment.claims.order[self.axis][hidden.class_] != NEVER:
                held.append(Tile(*address(assignment, hidden.class_), self.axis))
                taken |= hidden.matrices if holds(assignment, held[-1]) else frozenset()
                continue
            size = assignment.classes.size[hidden.class_]
            devices = assignment.mesh.size_of(self.axis, *assignment.axes_of_class(hidden.class_))
            if size % devices:
                misfits.append(f"{address(assignment, hidden.class_)} ({size})")
                held.append(Tile(*address(assignment, hidden.class_), self.axis))
                continue
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
        return [Tile(*address(assignment, class_), self.axis) for class_ in sorted(chosen)]


def hidden_classes(assignment: Assignment, scope: str | None = None) -> list[Hidden]:
    """Hidden classes, best first: fewest contractions (so fewest all_reduces), then most bytes of matrices.

    A residual width that no norm sums over (of a network with batch norms) is contracted in every block that reads it, and
    comes after what is hidden within one.
    """
    roles = roles_of(assignment.structure)
    classes, tables = assignment.classes, assignment.structure.tables
    matrices: dict[int, set[int]] = {}
    parameters = set(roles.parameters)
    for class_, members in enumerate(classes.arguments_by_class):
        own = {a for a, _, _ in members if a in parameters and sum(n > 1 for n in tables.shapes[a]) > 1}
        if len(own) > 1:
            matrices[class_] = own
    contractions, bad, scoped = _sums(assignment, roles, scope)
    found = [
        Hidden(c, frozenset(own), contractions[c], sum(tables.bytes_of[a] for a in own))
        for c, own in matrices.items()
        if contractions.get(c) and c not in bad and (scope is None or c in scoped)
    ]
    return sorted(found, key=lambda h: (h.contractions, -h.bytes, h.class_))


def _sums(assignment: Assignment, roles: Roles, scope: str | None) -> tuple[dict[int, int], set[int], set[int]]:
    """How the forward pass sums over each class: contractions with a parameter, classes summed otherwise, classes contracted
    in `scope`."""
    classes, tables = assignment.classes, assignment.structure.tables
    contractions: dict[int, int] = {}
    bad: set[int] = set()
    scoped: set[int] = set()
    for factor in np.flatnonzero(classes.reduction & (classes.of_factor >= 0)).tolist():
        position = int(classes.row_of_factor[factor])
        if not roles.forward[position]:
            continue
        row = tables.rows[position]
        sources = [view.source for view in row.operands if view is not None]
        if all(roles.of_parameters[s] for s in sources):
            continue
        class_ = int(classes.of_factor[factor])
        if row.op.name in ("stablehlo.dot_general", "stablehlo.convolution") and any(roles.of_parameters[s] for s in sources):
            contractions[class_] = contractions.get(class_, 0) + 1
            if scope is not None and in_scope(scope, tables.scope(row)):
                scoped.add(class_)
        else:
            bad.add(class_)
    return contractions, bad, scoped


def address(assignment: Assignment, class_: int) -> tuple[str, int]:
    """A (value, dim) that names a class: an argument whose outermost part it is, else the first value where it is that."""
    classes, structure = assignment.classes, assignment.structure
    for argument, dim, part in classes.arguments_by_class[class_]:
        if part == 0:
            return structure.addresses.names[argument], dim
    for atom in classes.atoms_by_class[class_]:
        value, dim, part = structure.atoms.owner_of(atom)
        if part == 0:
            return structure.addresses.names[value], dim
    raise NoEffectError(error_text(f"class {class_} is the outermost part of no dim", why="so no tile can name it"))

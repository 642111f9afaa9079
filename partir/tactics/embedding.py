"""Embedding parallelism: tables split by rows, each device looks up its own and the sum puts them together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from partir.errors import NoEffectError, error_text
from partir.sharding.actions import Action, Tile
from partir.sharding.assignment import NEVER, Assignment, in_scope
from partir.sharding.roles import roles_of


@dataclass(frozen=True)
class EmbeddingParallel:
    """Tile the vocabulary (the looked-up dim) of embedding tables over `axis`.

    A look-up is then a masked partial sum, reduced by one all_reduce of the activations; its gradient touches only the rows a
    device has. With tied embeddings the logits, too, are split by vocabulary, and the softmax over them costs two small
    all_reduces. `scope` limits it to look-ups inside scopes of that name or glob.
    """

    axis: str
    scope: str | None = None

    def actions(self, assignment: Assignment) -> Sequence[Action]:
        assignment.mesh.check(self.axis)
        structure = assignment.structure
        tables, roles = structure.tables, roles_of(structure)
        actions: dict[int, Action] = {}
        held: dict[int, Action] = {}
        for position, row in enumerate(tables.rows):
            if row.op.name != "stablehlo.gather" or not roles.forward[position]:
                continue
            if self.scope is not None and not in_scope(self.scope, tables.scope(row)):
                continue
            view = row.operands[0]
            if view is None or view.source not in roles.parameters:
                continue
            for dim, factors in enumerate(row.rule.operands[0]):
                if view.dims[dim] >= 0 and any(f in row.rule.indexed and f in row.rule.reduction for f in factors):
                    class_ = assignment.class_of(view.source, view.dims[dim])
                    if class_ is not None:
                        name = structure.addresses.names[view.source]
                        free = assignment.claims.order[self.axis][class_] == NEVER
                        (actions if free else held).setdefault(class_, Tile(name, view.dims[dim], self.axis))
        if not actions:
            raise NoEffectError(
                error_text(
                    f"{self!r} finds no embedding table",
                    why="no parameter is looked up by index" + (f' in scope "{self.scope}"' if self.scope else ""),
                    hint="Manual with the table and dim you mean",
                ),
                tuple(held.values()),
            )
        return list(actions.values())

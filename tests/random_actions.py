"""Random decisions about a program, and the partitioning they make."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

import partir
from partir.mesh import Mesh
from partir.sharding.actions import Action, Cut, Prefer, Replicate, Tile
from partir.sharding.assignment import Assignment


def draw_actions(rng: np.random.Generator, assignment: Assignment) -> list[Action]:
    """One to six decisions about arguments and intermediate values; axes repeat, so dims get several, in any order."""
    names, shapes = assignment.structure.addresses.names, assignment.structure.tables.shapes
    arguments = assignment.structure.tables.argument_count
    axes = assignment.mesh.names

    def value() -> int:
        inner = rng.random() < 0.5 and len(shapes) > arguments
        choices = [v for v in range(arguments if inner else 0, len(shapes) if inner else arguments) if shapes[v]]
        return int(rng.choice(choices or [v for v, shape in enumerate(shapes) if shape]))

    actions: list[Action] = []
    for _ in range(int(rng.integers(1, 7)) if any(shapes) else 0):
        v = value()
        name, dim, axis = names[v], int(rng.integers(len(shapes[v]))), str(rng.choice(axes))
        kind = rng.random()
        if kind < 0.65:
            actions.append(Tile(name, dim, axis))
            if rng.random() < 0.3:  # the same dim over another axis as well
                actions.append(Tile(name, dim, str(rng.choice(axes))))
        elif kind < 0.8:
            actions.append(Replicate(names[int(rng.integers(arguments))], axis))
        elif kind < 0.95:
            actions.append(Prefer(str(rng.choice(["*", "**"])), name, dim, axis))
        else:
            actions.append(Cut(name, dim))
    return actions


def partitioned(traced: partir.Traced, actions: Sequence[Action]) -> partir.Partitioned:
    """A program under exactly these decisions."""
    start = Assignment(traced.structure, Mesh.of(traced.mesh))
    return traced.replay(partir.Strategy.of(start, actions))

"""Which factor of each row has each axis: that of the earliest claim, unless a preference or a constraint says otherwise."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np

from partir.mesh import Mesh
from partir.sharding.atoms import Atoms
from partir.sharding.claims import NEVER, Claims
from partir.sharding.classes import Classes
from partir.sharding.constraints import Wishes
from partir.sharding.indices import FactorId, IntArray


def winners(
    classes: Classes,
    mesh: Mesh,
    claims: Claims,
    preferred: Mapping[str, Iterable[tuple[FactorId, int]]],
    wishes: Wishes,
) -> dict[str, IntArray]:
    """By axis, [rows] int64: the factor that has it at each row, or -1.

    A matmul of x (class 0, claimed first) and w (class 2), both on "data", with factors i, j, k of classes 0, 2, 1:

        order of its factors   [0, 1, NEVER]
        least of its row       0, at factor i      and class 0 divides: i has "data" there

    `preferred` are, by axis, (factor, order) pairs that stand in for the order of claim.
    """
    atoms = classes.atoms
    starts = atoms.factor_starts  # [rows] int64
    counts = np.diff(np.append(starts, len(classes.of_factor)))  # [rows] int64: how many factors a row has
    rows = np.flatnonzero(counts)
    found: dict[str, IntArray] = {}
    for axis in mesh.names:
        order = claims.order[axis][classes.of_factor]  # [factors] int64
        for factor, position in preferred[axis]:
            order[factor] = position
        winner = np.full(len(starts), -1, dtype=np.int64)  # [rows] int64
        if len(rows):
            best = np.minimum.reduceat(order, starts[rows])  # [rows with factors] int64: the least order of the row
            hit = np.flatnonzero((order == np.repeat(best, counts[rows])) & (order != NEVER))
            hit = hit[claims.divides[axis][classes.of_factor[hit]] == 1]
            winner[classes.row_of_factor[hit]] = hit
        found[axis] = winner
    for position, factors in wishes.factors.items():
        is_open = wishes.open.get(position, ())
        for axis in mesh.names:
            if axis in factors:
                found[axis][position] = starts[position] + factors[axis]
            elif int(found[axis][position] - starts[position]) not in is_open:
                found[axis][position] = -1
    _hold(atoms, mesh, wishes, found)
    return found


def _hold(atoms: Atoms, mesh: Mesh, wishes: Wishes, winners: dict[str, IntArray]) -> None:
    """Where a constraint still holds, its factors have their axes, and others as far as they still divide."""
    starts, sizes = atoms.factor_starts, atoms.factor_sizes
    for axis, (rows, factors) in wishes.held_on.items():
        winners[axis][rows] = starts[rows] + factors
    for axis, (rows, factors) in wishes.held_on.items():
        kept = starts[rows] + factors  # [held rows] int64: the factor that has the axis
        devices = np.full(len(rows), mesh.size_of(axis), dtype=np.int64)  # [held rows] over how many devices it is split
        others = [other for other in mesh.names if other != axis]
        nowhere = np.zeros(0, dtype=np.int64)
        is_held = {other: np.isin(rows, wishes.held_on.get(other, (nowhere, nowhere))[0]) for other in others}
        for other in others:
            devices[is_held[other] & (winners[other][rows] == kept)] *= mesh.size_of(other)
        for other in others:
            shares = (winners[other][rows] == kept) & ~is_held[other]
            fits = sizes[kept] % (devices * mesh.size_of(other)) == 0
            winners[other][rows[shares & ~fits]] = -1
            devices[shares & fits] *= mesh.size_of(other)

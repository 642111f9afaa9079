"""What the `Tile` actions of an assignment claim: which class has which axis, since when, and where sizes do not divide."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from partir.sharding.atoms import Join
from partir.sharding.indices import FactorId, IntArray, RowIndex

NEVER = np.iinfo(np.int64).max
"""The order of a class that claims no axis: later than every action."""


@dataclass(frozen=True)
class Undivided:
    """A class that stays replicated over an axis because its size does not divide: named, with the sizes that would."""

    value: str
    dim: int
    size: int
    axis: str
    devices: int

    def __str__(self) -> str:
        below = self.size - self.size % self.devices
        near = f"{below + self.devices}" if below == 0 else f"{below} or {below + self.devices}"
        return (
            f'{self.value} dim {self.dim} ({self.size}) stays replicated over "{self.axis}": {self.size} does not divide by '
            f"{self.devices} ({self.size} mod {self.devices} = {self.size % self.devices}); {near} would"
        )


@dataclass(frozen=True)
class Conflict:
    """An op where several classes wanted one axis: the class of factor `winner` has it, those of `losers` do not."""

    row: RowIndex
    axis: str
    winner: FactorId
    losers: tuple[FactorId, ...]


@dataclass(frozen=True)
class Claims:
    """Which classes the actions put on which axes.

    Two tiles of a program with three classes, `Tile(x, 0, "data")` of class 0 and then `Tile(w, 1, "data")` of class 2:

        order["data"]     [0, NEVER, 1, NEVER]
        divides["data"]   [1, 0, 1, 0]            where both sizes divide
    """

    order: dict[str, IntArray]
    """By axis, [classes + 1] int64: the position among the actions of the one that claimed it for a class, or NEVER. The last
    entry, NEVER always, is what a closed factor finds at its class, -1."""
    divides: dict[str, IntArray]
    """By axis, [classes + 1] int64: 1 where a class is split over it: it has claimed it, and its size divides."""
    undivided: tuple[Undivided, ...]
    joins: tuple[Join, ...] = ()
    """The dims that divide as a whole, though their outermost block does not."""

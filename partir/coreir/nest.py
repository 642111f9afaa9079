"""The loops an op stands in, read off a plan: which operands each level slices, and how results come together again.

An op cut along the factors of its rule over some axes is one loop per axis, the earliest claimed axis outermost:

    before   %y = dot_general %x, %w                      i over "data", k over "model"
    after    %y = loop "data" [tile<0>] (%i) {
               %x1 = slice %x[%i] tile<0>
               %s = loop "model" [reduce<add>] (%j) {
                 %x2 = slice %x1[%j] tile<1> ; %w2 = slice %w[%j] tile<0>
                 %p = dot_general %x2, %w2
                 yield %p }
               yield %s }
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from partir.dialect.core import AnyAttr, PartAttr, ReduceAttr, TileAttr
from partir.sharding.atoms import OpShape
from partir.sharding.indices import FactorId, RowIndex
from partir.sharding.plan import Plan
from partir.sharding.rule import shape_of
from partir.sharding.tables import OpRow

Shape = tuple[int, ...]
IDENTITIES = frozenset({"sdy.sharding_constraint", "partir.tag"})
"""Ops that say something about a value and compute nothing: never in a loop."""

AxisFactor = tuple[str, int]
"""An axis, and the sub-factor (of the row) it cuts."""


@dataclass(frozen=True)
class Slice:
    """Operand `slot` is cut by `tile` to `shape`."""

    slot: int
    tile: TileAttr
    shape: Shape


@dataclass(frozen=True, eq=False)
class Level:
    """One loop around an op; `shapes` are those of its results, put together as `parts` say."""

    axis: str
    slices: tuple[Slice, ...]
    parts: tuple[PartAttr, ...]
    shapes: tuple[Shape, ...]


@dataclass(frozen=True, eq=False)
class Nest:
    """The loops around one op, outermost first; `inner` are the shapes of the op's own results."""

    cuts: tuple[AxisFactor, ...]
    levels: tuple[Level, ...]
    inner: tuple[Shape, ...]


class Nests:
    """The nest of each row of a plan; rows that are cut alike share one.

    An op stands in the loops it has claimed - also where the plan has it give up a claim, to pass an unreduced sum on:
    values in Core IR are global, and none is unreduced. A pass-through op has its operand's loops, in the order of its factors.
    """

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.assignment = plan.assignment
        self.atoms = plan.assignment.structure.atoms
        self.by_axis = plan.assignment.mesh.shape
        self.claimed = self._claimed()
        self._memo: dict[object, Nest] = {}

    def of(self, position: RowIndex, row: OpRow) -> Nest | None:
        """The loops around a row; None where it stands in none."""
        if row.op.name in IDENTITIES or row.kind in ("carry", "predicate"):
            return None
        if row.kind == "pass_through":
            own = self.plan.rows[position].factor_axes
            cuts = tuple((axis, factor) for factor, axes in enumerate(own) for axis in axes)
        else:
            cuts = self._in_order(position, self.claimed.get(position, ()))
        if not cuts:
            return None
        shape = self.atoms.shapes[position]
        key = (id(shape), cuts)
        found = self._memo.get(key)
        if found is None:
            operands = [shape_of(v.type) for v in row.op.operands]
            results = [shape_of(v.type) for v in row.op.results]
            found = self._memo[key] = nest_of(shape, cuts, self.by_axis, operands, results)
        return found

    def _claimed(self) -> dict[int, tuple[AxisFactor, ...]]:
        """By row, the sub-factors that have an axis."""
        found: dict[int, tuple[AxisFactor, ...]] = {}
        for axis in self.assignment.mesh.names:
            winners = self.assignment.winners[axis]
            for row in map(RowIndex, (winners >= 0).nonzero()[0].tolist()):
                factor = self.atoms.local_factor(row, FactorId(int(winners[row])))
                found[row] = (*found.get(row, ()), (axis, factor))
        return found

    def _in_order(self, position: RowIndex, cuts: tuple[AxisFactor, ...]) -> tuple[AxisFactor, ...]:
        """Cuts by the time of their claim, the earliest first."""
        if len(cuts) < 2:
            return cuts
        classes, order = self.assignment.classes.of_row(position), self.assignment.reach.order
        return tuple(sorted(cuts, key=lambda cut: int(order[cut[0]][classes[cut[1]]])))


def nest_of(
    shape: OpShape, cuts: Sequence[AxisFactor], sizes: dict[str, int], operands: Sequence[Shape], results: Sequence[Shape]
) -> Nest:
    """The loops that cut an op of these (global) operand and result shapes, one after the other."""
    extents = list(shape.sizes)
    sources = [list(dims) for dims in operands]
    targets = [list(dims) for dims in results]
    levels: list[Level] = []
    for axis, factor in cuts:
        devices = sizes[axis]
        whole = tuple(tuple(dims) for dims in targets)
        slices: list[Slice] = []
        for slot, dims in enumerate(sources):
            for tile in tiles_of(shape, slot, factor, extents):
                dims[tile.position] //= devices
                slices.append(Slice(slot, tile, tuple(dims)))
        parts: list[PartAttr] = []
        for number, dims in enumerate(targets):
            tiles = tiles_of(shape, shape.operand_count + number, factor, extents)
            for tile in tiles:
                dims[tile.position] //= devices
            parts.append(_part(shape, factor, tiles))
        extents[factor] //= devices
        levels.append(Level(axis, tuple(slices), tuple(parts), whole))
    return Nest(tuple(cuts), tuple(levels), tuple(tuple(dims) for dims in targets))


def tiles_of(shape: OpShape, slot: int, factor: int, extents: Sequence[int]) -> list[TileAttr]:
    """Where a sub-factor sits in an operand (or result, counted after the operands) as it is cut so far."""
    found: list[TileAttr] = []
    for dim, pieces in enumerate(shape.slots[slot]):
        if pieces is None or factor not in pieces:
            continue
        outer = 1
        for piece in pieces[: pieces.index(factor)]:
            outer *= extents[piece]
        found.append(TileAttr.of(dim, outer))
    return found


def _part(shape: OpShape, factor: int, tiles: Sequence[TileAttr]) -> PartAttr:
    if tiles:
        return tiles[0]
    if shape.reduction[factor] and shape.kind is not None:
        return ReduceAttr.of(shape.kind)
    return AnyAttr()

"""Finds the loops that a plan puts around an op: which operands each loop slices, and how it joins the results of iterations.

An op that is sharded along factors of its rule over some axes stands in one loop per axis, the earliest claimed axis outermost:

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
"""Ops that annotate a value and compute nothing: never in a loop."""

AxisFactor = tuple[str, int]
"""A mesh axis, and the sub-factor (of the row) that is sharded over it."""


@dataclass(frozen=True)
class Slice:
    """A loop slices operand number `slot` along `tile`; the slice has the shape `shape`."""

    slot: int
    tile: TileAttr
    shape: Shape


@dataclass(frozen=True, eq=False)
class Level:
    """One loop around an op. For each result, `parts` says how the loop joins what iterations yield, `shapes` is its shape."""

    axis: str
    slices: tuple[Slice, ...]
    parts: tuple[PartAttr, ...]
    shapes: tuple[Shape, ...]


@dataclass(frozen=True, eq=False)
class Nest:
    """The loops around one op: `cuts` and `levels`, outermost first. `inner` are the shapes of the local op's results."""

    cuts: tuple[AxisFactor, ...]
    levels: tuple[Level, ...]
    inner: tuple[Shape, ...]


class Nests:
    """The loop nest of each row of a plan; rows with the same shapes and sharding share one.

    An op stands in a loop for each axis that it claimed. That includes claims that the plan gives up so that the op can pass an
    unreduced value on: values in Core IR are global and never unreduced. A pass-through op has the loops of its operand, in the
    order of its factors.
    """

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.assignment = plan.assignment
        self.atoms = plan.assignment.structure.atoms
        self.by_axis = plan.assignment.mesh.shape
        self.claimed = self._claimed()
        self._memo: dict[object, Nest] = {}

    def of(self, position: RowIndex, row: OpRow) -> Nest | None:
        """The loops around a row; None if there are none."""
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
        """For each row that has claimed an axis: its (axis, sub-factor) pairs."""
        found: dict[int, tuple[AxisFactor, ...]] = {}
        for axis in self.assignment.mesh.names:
            winners = self.assignment.winners[axis]
            for row in map(RowIndex, (winners >= 0).nonzero()[0].tolist()):
                factor = self.atoms.local_factor(row, FactorId(int(winners[row])))
                found[row] = (*found.get(row, ()), (axis, factor))
        return found

    def _in_order(self, position: RowIndex, cuts: tuple[AxisFactor, ...]) -> tuple[AxisFactor, ...]:
        """The (axis, sub-factor) pairs of a row in the order of their claims."""
        if len(cuts) < 2:
            return cuts
        classes, order = self.assignment.classes.of_row(position), self.assignment.reach.order
        return tuple(sorted(cuts, key=lambda cut: int(order[cut[0]][classes[cut[1]]])))


def nest_of(
    shape: OpShape, cuts: Sequence[AxisFactor], sizes: dict[str, int], operands: Sequence[Shape], results: Sequence[Shape]
) -> Nest:
    """The loops around an op of these global operand and result shapes, one for each of `cuts`; `sizes` are the axis sizes."""
    extents = list(shape.sizes)
    sources = [list(dims) for dims in operands]
    targets = [list(dims) for dims in results]
    levels: list[Level] = []
    for axis, factor in cuts:
        devices = sizes[axis]
        joined = tuple(tuple(dims) for dims in targets)
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
        levels.append(Level(axis, tuple(slices), tuple(parts), joined))
    return Nest(tuple(cuts), tuple(levels), tuple(tuple(dims) for dims in targets))


def tiles_of(shape: OpShape, slot: int, factor: int, extents: Sequence[int]) -> list[TileAttr]:
    """The tiles along which slicing a sub-factor slices operand `slot` (results are counted after the operands).

    `extents` are the sizes of the sub-factors inside the loops so far.
    """
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
    """How a loop joins a result: by a tile if it has the factor, by a reduction if the op reduces it, else any of them."""
    if tiles:
        return tiles[0]
    if shape.reduction[factor] and shape.kind is not None:
        return ReduceAttr.of(shape.kind)
    return AnyAttr()

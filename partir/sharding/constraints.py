"""What the user wrote into the program as sharding constraints: first actions in program order, exact at their own op.

A constraint asks for a layout of one value. Each axis it names tiles the class of its dim (so that it flows, as any tile
does); at the constraint itself the layout is exactly what was written, but for dims it leaves open. It holds on through the
pointwise ops and reductions that read nothing else of that size, until an op wants otherwise. What cannot be done is said,
never dropped.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from xdsl.dialects.builtin import ArrayAttr, StringAttr
from xdsl.ir import SSAValue

from partir.dialect.kinds import is_pointwise
from partir.dialect.sdy import ManualComputationOp, ShardingConstraintOp, TensorShardingAttr
from partir.errors import ProgramError, error_text
from partir.mesh import Mesh
from partir.sharding.actions import Action, Addresses, Tile
from partir.sharding.atoms import Atoms, Join, OpShape, dealt
from partir.sharding.indices import IntArray, LocalFactor, RowIndex, ValueIndex
from partir.sharding.layout import Layout
from partir.sharding.rule import shape_of
from partir.sharding.tables import OpRow, Tables, View

Given = dict[str, LocalFactor]
"""By axis, the factor of a row that has it."""


@dataclass(frozen=True)
class Wishes:
    """What the constraints of a program ask for, on one mesh."""

    factors: dict[RowIndex, Given]
    """By row of a constraint, the factors that it gives axes to."""
    open: dict[RowIndex, frozenset[LocalFactor]]
    """By row of a constraint, the factors of the dims that it leaves open."""
    held: dict[RowIndex, Given]
    """By row of an op after a constraint, as long as that holds, the factors that have its axes."""
    actions: tuple[Action, ...]
    """The tiles that the constraints are."""
    joins: frozenset[Join]
    """The dims that divide only as a whole."""
    refused: tuple[str, ...]
    """What cannot be done, in words."""

    @cached_property
    def held_on(self) -> dict[str, tuple[IntArray, IntArray]]:
        """By axis, the rows at which a constraint still holds it [held] int64, and the local factors that have it [held] int64.

        before   held = {4: {"data": 0}, 7: {"data": 2, "model": 1}}
        after    {"data": ([4, 7], [0, 2]), "model": ([7], [1])}
        """
        found: dict[str, list[tuple[RowIndex, LocalFactor]]] = {}
        for row, given in self.held.items():
            for axis, factor in given.items():
                found.setdefault(axis, []).append((row, factor))
        arrays = {axis: np.array(pairs, dtype=np.int64).T for axis, pairs in found.items()}
        return {axis: (rows, factors) for axis, (rows, factors) in arrays.items()}


def dim_axes(sharding: TensorShardingAttr) -> list[tuple[str, ...]]:
    """The axes of each dim, major first; a part of an axis shows as such, a name that no mesh has."""
    return [
        tuple(f"{axis.name}:({axis.pre_size}){axis.size}" if axis.is_part else axis.name for axis in dim.axes)
        for dim in sharding.dims
    ]


def strange_axes(op: ShardingConstraintOp | ManualComputationOp) -> list[tuple[int, str]]:
    """(dim, axis and its mesh) for what is asked over axes that the import could not say as ours, or inside a `shard_map`."""
    found = op.attributes.get(ShardingConstraintOp.REFUSED)
    texts = [item.data for item in found if isinstance(item, StringAttr)] if isinstance(found, ArrayAttr) else []
    return [(int(dim), axis) for dim, axis in (text.split(": ", 1) for text in texts)]


def read(tables: Tables, atoms: Atoms, addresses: Addresses, mesh: Mesh) -> Wishes:
    """Collect the constraints of a program for one mesh."""
    return _Reader(tables, atoms, addresses, mesh).run()


class _Reader:
    def __init__(self, tables: Tables, atoms: Atoms, addresses: Addresses, mesh: Mesh) -> None:
        self.tables, self.atoms, self.addresses, self.mesh = tables, atoms, addresses, mesh
        self.factors: dict[RowIndex, Given] = {}
        self.open: dict[RowIndex, frozenset[LocalFactor]] = {}
        self.held: dict[RowIndex, Given] = {}
        self.actions: dict[Action, None] = {}
        self.joins: set[Join] = set()
        self.refused: list[str] = []
        self.lies: dict[ValueIndex, dict[str, tuple[int, int]]] = {}
        """By value that lies as a constraint says, the (dim, part) that has each axis."""

    def run(self) -> Wishes:
        for position, row in self.tables.each_row():
            if isinstance(row.op, ShardingConstraintOp | ManualComputationOp):
                self.strange(row.op, row)
            if isinstance(row.op, ShardingConstraintOp):
                self.constraint(position, row, row.op.sharding)
            elif self.lies:
                self.hold(position, row)
        actions = tuple(self.actions)
        return Wishes(
            factors=self.factors,
            open=self.open,
            held=self.held,
            actions=actions,
            joins=frozenset(self.joins),
            refused=tuple(self.refused),
        )

    def strange(self, op: ShardingConstraintOp | ManualComputationOp, row: OpRow) -> None:
        """Refuse what the import could not say over our axes: those of another mesh, and those that a `shard_map` leaves."""
        for dim, axis in strange_axes(op):
            name = self.addresses.names[row.results[0]]
            if isinstance(op, ShardingConstraintOp):
                why = f"no axes of the mesh {self.mesh!r} cut alike, device by device"
                self.refused.append(f"{name} dim {dim} was asked for over {axis}: {why}")
            else:
                self.refused.append(f"a constraint inside {name} asks for dim {dim} over {axis}: it stays replicated there")

    def constraint(self, position: RowIndex, row: OpRow, sharding: TensorShardingAttr) -> None:
        """Give the axes of each dim to its atoms, as far as they divide."""
        shape, (result,) = self.atoms.shapes[position], row.results
        slot = shape.slots[shape.operand_count]
        own: Given = {}
        is_open: set[LocalFactor] = set()
        for dim, (axes, said) in enumerate(zip(dim_axes(sharding), sharding.dims, strict=True)):
            pieces = slot[dim] or ()
            if not said.is_closed and not axes:
                is_open.update(pieces)
            known = self.divisible(result, dim, axes)
            parts = dealt([shape.sizes[p] for p in pieces], known, self.mesh.shape)
            if parts is None:
                source = self.tables.views.get(result) or self.tables.itself(result)
                self.joins.add((source.source, source.dims[dim], self.mesh.size_of(*known)))
            for piece, given in zip(pieces, parts or (), strict=False):
                own.update(dict.fromkeys(given, piece))
            self.actions.update((Tile(self.addresses.names[result], dim, axis), None) for axis in known)
        self.factors[position] = own
        if is_open:
            self.open[position] = frozenset(is_open)
        self.lay(row, shape, own)

    def divisible(self, value: ValueIndex, dim: int, axes: Sequence[str]) -> list[str]:
        """The axes that a dim can be cut over one after the other; the others are refused."""
        size, name = self.tables.shapes[value][dim], self.addresses.names[value]
        found: list[str] = []
        for axis in axes:
            asked = f'{name} dim {dim} ({size}) was asked for over "{axis}"'
            if axis not in self.mesh.names:
                refused = f'{name} dim {dim} was asked for over "{axis}", which is not an axis of the mesh {self.mesh!r}'
                self.refused.append(refused)
                continue
            devices = self.mesh.size_of(*found, axis)
            if size % devices:
                above = size + -size % devices
                near = f"{above - devices} or {above}" if above > devices else f"{above}"
                self.refused.append(
                    f"{asked} and stays replicated: {size} does not divide by {devices} "
                    f"({size} mod {devices} = {size % devices}); {near} would"
                )
                continue
            found.append(axis)
        return found

    def hold(self, position: RowIndex, row: OpRow) -> None:
        """A constraint holds on through an op that reads what it laid, and nothing else of as many dims."""
        is_plain = row.kind == "pass_through" or (
            row.kind == "claim" and (is_pointwise(row.op) or row.op.name == "stablehlo.reduce")
        )
        if not is_plain or row.captured:
            return
        shape = self.atoms.shapes[position]
        given: list[Given] = []
        for slot, view in enumerate(row.operands):
            if view is None:
                continue
            lies = self.lies.get(view.source)
            if lies is not None:
                given.append(self.through(shape, slot, view, lies))
            elif sum(d >= 0 for d in view.dims) == len(row.slot_shapes[slot]) > 0:
                return
        if given and all(other == given[0] for other in given) and given[0]:
            if row.kind == "claim":
                self.held[position] = given[0]
            self.lay(row, shape, given[0])

    def through(self, shape: OpShape, slot: int, view: View, lies: dict[str, tuple[int, int]]) -> Given:
        """The factors that have axes where a row reads what lies so."""
        found: Given = {}
        for axis, (dim, part) in lies.items():
            d = view.dims.index(dim) if dim in view.dims else -1
            pieces = shape.slots[slot][d] if d >= 0 else None
            if pieces is not None and part < len(pieces) and not shape.closed[pieces[part]]:
                found[axis] = pieces[part]
        return found

    def lay(self, row: OpRow, shape: OpShape, given: Given) -> None:
        """Note how results lie, if the factors of their row have these axes."""
        for result, dims in zip(row.results, shape.slots[shape.operand_count :], strict=True):
            where = {piece: (d, k) for d, pieces in enumerate(dims) for k, piece in enumerate(pieces or ())}
            lies = {axis: where[factor] for axis, factor in given.items() if factor in where}
            if lies:
                self.lies[result] = lies


def manual_layouts(op: ManualComputationOp, mesh: Mesh) -> tuple[tuple[Layout, ...], tuple[Layout, ...]]:
    """How the operands of a user's `shard_map` must lie, and its results do. Raises ProgramError for another mesh's axes."""

    def layouts(shardings: Sequence[TensorShardingAttr], values: Sequence[SSAValue]) -> tuple[Layout, ...]:
        found: list[Layout] = []
        for sharding, value in zip(shardings, values, strict=True):
            dims = dim_axes(sharding)
            for axis in (axis for axes in dims for axis in axes):
                if axis not in mesh.names:
                    raise ProgramError(
                        error_text(
                            f'a shard_map in the function is over mesh axis "{axis}"',
                            why=f"the mesh to partition over is {mesh!r}",
                            hint="partition over the mesh of the shard_map",
                        )
                    )
            found.append(tuple(((size, axes),) for size, axes in zip(shape_of(value.type), dims, strict=True)))
        return tuple(found)

    return layouts(op.in_shardings.shardings, op.operands), layouts(op.out_shardings.shardings, op.results)

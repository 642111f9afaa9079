"""How axes spread: from claims at ops to the factors of rows, from those to the atoms of values, and so to layouts.

Memoised by shape of op and axes: the layers of a model repeat, and so do these answers.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import cast

import numpy as np

from partir.sharding.assignment import Assignment
from partir.sharding.atoms import OpShape
from partir.sharding.indices import ClassId, LocalFactor, RowIndex, ValueIndex
from partir.sharding.layout import Axes, Layout, canonical_dim, replicated
from partir.sharding.tables import OpRow, View
from partir.sharding.unreduced import Sums

FactorAxes = tuple[Axes, ...]
"""The axes of each factor of a row, or of each atom of a value, major first; () for none at all."""

Taken = dict[str, LocalFactor]
"""By axis, the factor of a row that has it."""


@dataclass(frozen=True, eq=False, slots=True)
class RowLayouts:
    """What the axes of a row's factors make of it. A matmul [8, 4] x [4, 6] whose 4 is cut over "m" (of 2 devices):

    operands   [8, 4/m], [4/m, 6]        results   [8, 6]        sums   {"m": "add"}
    """

    operands: tuple[Layout, ...]
    """How the op reads each operand."""
    results: tuple[Layout, ...]
    """How it makes each result."""
    axes: tuple[FactorAxes, ...]
    """[results][atoms] the axes of each atom of a result."""
    unions: tuple[frozenset[str], ...]
    """[results] all axes of a result."""
    sums: Sums
    """Over which axes the results are still to be summed, because the op's own reduction is split."""


class Propagation:
    """What one assignment means at each row, before anything unreduced is passed on.

    The memos are shared by all plans of one program on one mesh (`Structure.memo`).
    """

    def __init__(self, assignment: Assignment) -> None:
        self.assignment = assignment
        self.tables = assignment.structure.tables
        self.atoms = assignment.structure.atoms
        self.by_axis = assignment.mesh.shape
        structure, mesh = assignment.structure, assignment.mesh
        self._own_memo: dict[tuple[int, ...], tuple[Taken, FactorAxes]] = structure.memo(mesh, "own")
        self._cut_memo: dict[object, RowLayouts] = structure.memo(mesh, "cuts")
        self._layout_memo: dict[object, Layout] = structure.memo(mesh, "layouts")
        self._source_memo: dict[object, Layout] = structure.memo(mesh, "sources")
        self._passed_through_memo: dict[object, FactorAxes] = structure.memo(mesh, "passed_through")
        self.own: dict[RowIndex, FactorAxes] = {}
        """By row that claims, the axes of each factor if nothing unreduced passes it; filled by `claimed`."""

    def claimed(self) -> dict[RowIndex, Taken]:
        """By row, the factor that has each axis; rows where nothing is cut are left out. Fills `own`.

        Rows of one shape whose factors have the same axes in the same order are looked up by one key: their shape, the factor
        that each axis has, and how the axes that share a factor come after each other, as a number in base n of n axes. Of a
        row whose factor 1 has both axes of ("data", "model"), "model" claimed first:

            factors   data 1, model 1
            order     argsort of the claims is (model, data) = (1, 0): 1 * 2**0 + 0 * 2**1 = 1
            key       (id of the shape, 1, 1, order of data: 1, order of model: 1)
        """
        names, classes = self.assignment.mesh.names, self.assignment.classes
        if not names:
            return {}
        winners = np.stack([self.assignment.winners[axis] for axis in names])  # [axes, rows] int64, -1 for none
        rows = np.flatnonzero((winners >= 0).any(axis=0))  # [cut] int64: the rows where something is cut
        winners = winners[:, rows]  # [axes, cut]
        factors = np.where(winners >= 0, winners - self.atoms.factor_starts[rows], -1)  # [axes, cut] local factors
        shared = (factors[:, None] == factors[None]).sum(axis=1) > 1  # [axes, cut] bool: another axis is at that factor, too
        orders = np.stack([self.assignment.reach.order[axis] for axis in names])  # [axes, classes + 1] when each was claimed
        orders = orders.argsort(axis=0, kind="stable").T @ len(names) ** np.arange(len(names))  # [classes + 1] in base n
        orders = np.where(shared & (winners >= 0), orders[classes.of_factor[winners]], -1)  # [axes, cut]
        keys = np.concatenate([self.atoms.shape_ids[None, rows], factors, orders]).T.tolist()  # [cut, 1 + 2 axes]
        found: dict[RowIndex, Taken] = {}
        for row, key in zip(cast("list[RowIndex]", rows.tolist()), map(tuple, keys), strict=True):
            known = self._own_memo.get(key)
            if known is None:
                taken = {axis: LocalFactor(f) for axis, f in zip(names, key[1:], strict=False) if f >= 0}
                known = self._own_memo[key] = taken, self.factor_axes(row, taken)
            found[row], self.own[row] = known
        return found

    def factor_axes(self, position: RowIndex, taken: Taken) -> FactorAxes:
        """The axes of each factor of a row, in order of claim.

        before   {"data": 1, "model": 1, "x": 0}, "model" claimed before "data", of a row with three factors
        after    (("x",), ("model", "data"), ())
        """
        axes: list[list[str]] = [[] for _ in self.atoms.shapes[position].sizes]
        for axis, factor in taken.items():
            axes[factor].append(axis)
        if len(taken) > 1:
            classes = self.assignment.classes.of_row(position)
            for factor, own in enumerate(axes):
                if len(own) > 1:
                    own.sort(key=partial(self.rank, classes[factor]))
        return tuple(map(tuple, axes))

    def rank(self, class_: ClassId, axis: str) -> int:
        """When a class claimed an axis: the earlier, the more major it is among the axes of one factor."""
        return int(self.assignment.reach.order[axis][class_])

    def own_sums(self, position: RowIndex, row: OpRow, own: FactorAxes) -> Sums:
        """The axes that a row's own cut reduction leaves unreduced, with the kind. What must happen once runs on one
        device: the others have nothing, and the sum is what it returned."""
        if position in self.tables.once:
            kind = "or" if row.results and str(self.tables.values[row.results[0]].type).endswith("xi1>") else "add"
            return dict.fromkeys(self.assignment.mesh.names, kind)
        shape = self.atoms.shapes[position]
        if shape.kind is None or not own:
            return {}
        return {axis: shape.kind for p, axes in enumerate(own) if shape.reduction[p] for axis in axes}

    def tentative(self, claimed: dict[RowIndex, Taken]) -> tuple[list[frozenset[str]], dict[RowIndex, Sums]]:
        """If every op keeps its claims: the axes each value is cut over, and the sums each row leaves unreduced."""
        none: frozenset[str] = frozenset()
        axes: list[frozenset[str]] = [none] * len(self.tables.values)  # [values]
        per_atom: list[FactorAxes] = [()] * len(self.tables.values)  # [values][atoms]
        found: dict[RowIndex, Sums] = {}
        for argument, own in enumerate(self.assignment.argument_axes):
            per_atom[argument] = own
            axes[argument] = frozenset(a for atom in own for a in atom)
        through, once, shapes = self.tables.passed_through, self.tables.once, self.atoms.shapes
        for position, row in self.tables.each_row():
            view = through[position]
            if view is not None:
                own = self.passed_through(shapes[position], view, per_atom[view.source])
            elif position in claimed:
                own = self.own[position]
            else:
                own = ()
            if not own and position not in once:
                continue
            cut = self.cut(position, row, own)
            if cut.sums:
                found[position] = cut.sums
            if own:
                for result, flat, union in zip(row.results, cut.axes, cut.unions, strict=True):
                    per_atom[result], axes[result] = flat, union
        return axes, found

    def passed_through(self, shape: OpShape, view: View, source: FactorAxes) -> FactorAxes:
        """The axes of a pass-through op's factors: those that its operand's atoms actually have; `source` are these."""
        if not source:
            return ()
        key = id(shape), view.dims, source, self.atoms.sizes_of[view.source]
        found = self._passed_through_memo.get(key)
        if found is None:
            found = self._passed_through_memo[key] = self._followed(shape, view, source)
        return found

    def _followed(self, shape: OpShape, view: View, source: FactorAxes) -> FactorAxes:
        """As `passed_through`, found without the memo."""
        own: list[Axes] = [()] * len(shape.sizes)
        for d, pieces in enumerate(shape.slots[0]):
            if pieces is not None and view.dims[d] >= 0:
                for k, piece in enumerate(pieces):
                    if not shape.closed[piece]:
                        own[piece] = source[self.atoms.place_in_value(view.source, view.dims[d], k)]
        return tuple(own) if any(own) else ()

    def layout_of(self, value: ValueIndex, axes: FactorAxes) -> Layout:
        """The layout of a value from the axes of its atoms."""
        per_dim = self.atoms.sizes_of[value]
        if not any(axes):
            return replicated(self.tables.shapes[value])
        key = (per_dim, axes)
        found = self._layout_memo.get(key)
        if found is None:
            k = 0
            dims = []
            for sizes in per_dim:
                dims.append(canonical_dim(zip(sizes, axes[k : k + len(sizes)], strict=True), self.by_axis))
                k += len(sizes)
            found = self._layout_memo[key] = tuple(dims)
        return found

    def cut(self, position: RowIndex, row: OpRow, own: FactorAxes) -> RowLayouts:
        """What a row is if its factors have these axes."""
        shape = self.atoms.shapes[position]
        key = (id(shape), own, position if position in self.tables.once else -1)
        found = self._cut_memo.get(key)
        if found is None:
            operands, results = self._slots(shape, row, own)
            axes = tuple([self._result_axes(shape, i, own, result) for i, result in enumerate(row.results)])
            unions = tuple([frozenset(a for atom in flat for a in atom) for flat in axes])
            found = self._cut_memo[key] = RowLayouts(operands, results, axes, unions, self.own_sums(position, row, own))
        return found

    def _slots(self, shape: OpShape, row: OpRow, own: FactorAxes) -> tuple[tuple[Layout, ...], tuple[Layout, ...]]:
        """The layout of every operand as the op reads it, and of every result as it makes it."""
        layouts: list[Layout] = []
        for slot, dims in zip(shape.slots, row.slot_shapes, strict=True):
            if not any(own):
                layouts.append(replicated(dims))
                continue
            layouts.append(
                tuple(
                    ((size, ()),) if pieces is None else canonical_dim([(shape.sizes[p], own[p]) for p in pieces], self.by_axis)
                    for pieces, size in zip(slot, dims, strict=True)
                )
            )
        n = shape.operand_count
        return tuple(layouts[:n]), tuple(layouts[n:])

    def source(self, view: View, slot: Layout) -> Layout:
        """How a view's source must lie for the view to lie as `slot`."""
        key = (view.dims, slot, self.tables.shapes[view.source])
        found = self._source_memo.get(key)
        if found is None:
            dims: list[tuple[tuple[int, Axes], ...]] = [((size, ()),) for size in self.tables.shapes[view.source]]
            for d, source in enumerate(view.dims):
                if source >= 0:
                    dims[source] = slot[d]
            found = self._source_memo[key] = tuple(dims)
        return found

    def _result_axes(self, shape: OpShape, index: int, own: FactorAxes, value: ValueIndex) -> FactorAxes:
        """Axes of each atom of a result; a dim its rule cannot cut is whole, however many atoms it has."""
        if not own:
            return ()
        flat: list[Axes] = []
        for d, pieces in enumerate(shape.slots[shape.operand_count + index]):
            count = len(self.atoms.sizes_of[value][d])
            flat += [own[p] for p in pieces] if pieces is not None else [()] * count
        return tuple(flat)

"""How axes spread: from claims at ops to their sub-factors, from those to the atoms of values, and so to layouts.

Memoised by shape of op and axes: the layers of a model repeat, and so do these answers.
"""

from __future__ import annotations

from partir.sharding.assignment import Assignment
from partir.sharding.atoms import OpShape
from partir.sharding.layout import Axes, Layout, canonical_dim, whole
from partir.sharding.pending import Sums
from partir.sharding.tables import OpRow, View

FactorAxes = tuple[Axes, ...]


class Spread:
    """What one assignment means at each row, before anything pending is passed on."""

    def __init__(self, assignment: Assignment) -> None:
        self.assignment = assignment
        self.tables = assignment.structure.tables
        self.atoms = assignment.structure.atoms
        self.by_axis = assignment.mesh.shape
        structure, mesh = assignment.structure, assignment.mesh
        self._slot_memo: dict[object, tuple[tuple[Layout, ...], tuple[Layout, ...]]] = structure.memo(mesh, "slots")
        self._layout_memo: dict[object, Layout] = structure.memo(mesh, "layouts")
        self._source_memo: dict[object, Layout] = structure.memo(mesh, "sources")
        self._factor_memo: dict[object, FactorAxes] = structure.memo(mesh, "factors")
        self._result_memo: dict[object, FactorAxes] = structure.memo(mesh, "results")
        self.own: dict[int, FactorAxes] = {}
        """By row that claims, the axes of each sub-factor if nothing pending passes it; filled by `tentative`."""

    def claimed(self) -> dict[int, dict[str, int]]:
        """By row, the sub-factor (of the row) that has each axis; rows where nothing is cut are left out."""
        found: dict[int, dict[str, int]] = {}
        starts = self.atoms.factor_start
        for axis in self.assignment.mesh.names:
            winners = self.assignment.winners[axis]
            for row in (winners >= 0).nonzero()[0].tolist():
                found.setdefault(row, {})[axis] = int(winners[row]) + self.atoms.atom_count - starts[row]
        return found

    def factor_axes(self, position: int, taken: dict[str, int]) -> FactorAxes:
        """Axes of each sub-factor, in order of claim."""
        shape = self.atoms.shapes[position]
        if len(taken) < 2 or len(set(taken.values())) == len(taken):
            key = (id(shape), *taken.items())
            found = self._factor_memo.get(key)
            if found is None:
                found = self._factor_memo[key] = self._factor_axes(position, shape, taken)
            return found
        return self._factor_axes(position, shape, taken)

    def _factor_axes(self, position: int, shape: OpShape, taken: dict[str, int]) -> FactorAxes:
        axes: list[list[str]] = [[] for _ in shape.sizes]
        for axis, factor in taken.items():
            axes[factor].append(axis)
        base = self.atoms.factor_start[position] - self.atoms.atom_count
        for factor, own in enumerate(axes):
            if len(own) > 1:
                class_ = int(self.assignment.classes.of_factor[base + factor])
                own.sort(key=lambda axis: self.rank(class_, axis))
        return tuple(map(tuple, axes))

    def rank(self, class_: int, axis: str) -> int:
        return int(self.assignment.claims.order[axis][class_])

    def own_sums(self, position: int, row: OpRow, own: FactorAxes) -> Sums:
        """The axes that a row's own cut reduction leaves pending, with the kind. What must happen once runs on one
        device: the others have nothing, and the sum is what it returned."""
        if position in self.tables.once:
            kind = "or" if row.results and str(self.tables.values[row.results[0]].type).endswith("xi1>") else "add"
            return dict.fromkeys(self.assignment.mesh.names, kind)
        shape = self.atoms.shapes[position]
        if shape.kind is None or not own:
            return {}
        return {axis: shape.kind for p, axes in enumerate(own) if shape.reduction[p] for axis in axes}

    def tentative(self, claimed: dict[int, dict[str, int]]) -> tuple[list[frozenset[str]], dict[int, Sums]]:
        """If every op keeps its claims: the axes each value is cut over, and the sums each row leaves pending."""
        none: frozenset[str] = frozenset()
        axes: list[frozenset[str]] = [none] * len(self.tables.values)
        together: dict[FactorAxes, frozenset[str]] = {}
        per_atom: list[FactorAxes] = [()] * len(self.tables.values)
        found: dict[int, Sums] = {}
        for argument, own in enumerate(self.assignment.argument_axes):
            per_atom[argument] = own
            axes[argument] = frozenset(a for atom in own for a in atom)
        follows = self.tables.followed
        for position, row in enumerate(self.tables.rows):
            shape = self.atoms.shapes[position]
            view = follows[position]
            if view is not None:
                own = self.followed(shape, view, per_atom[view.source])
            elif position in claimed:
                own = self.own[position] = self.factor_axes(position, claimed[position])
            else:
                own = ()
            sums = self.own_sums(position, row, own) if own or position in self.tables.once else None
            if sums:
                found[position] = sums
            if not own:
                continue
            for i, result in enumerate(row.results):
                flat = per_atom[result] = self.result_axes(shape, i, own, result)
                union = together.get(flat)
                if union is None:
                    union = together[flat] = frozenset(a for atom in flat for a in atom)
                axes[result] = union
        return axes, found

    def followed(self, shape: OpShape, view: View, source: FactorAxes) -> FactorAxes:
        """Sub-factor axes of a follow op: those its operand's atoms actually have; () for none at all."""
        if not source or not any(source):
            return ()
        own: list[Axes] = [()] * len(shape.sizes)
        for d, pieces in enumerate(shape.slots[0]):
            if pieces is not None and view.dims[d] >= 0:
                for k, piece in enumerate(pieces):
                    if not shape.closed[piece]:
                        own[piece] = source[self.flat(view.source, view.dims[d], k)]
        return tuple(own) if any(own) else ()

    def flat(self, value: int, dim: int, part: int) -> int:
        return sum(len(sizes) for sizes in self.atoms.sizes_of[value][:dim]) + part

    def layout_of(self, value: int, axes: FactorAxes) -> Layout:
        """The layout of a value from the axes of its atoms."""
        per_dim = self.atoms.sizes_of[value]
        if not any(axes):
            return whole(self.tables.shapes[value])
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

    def slots(self, position: int, row: OpRow, own: FactorAxes) -> tuple[tuple[Layout, ...], tuple[Layout, ...]]:
        """The layout of every operand as the op reads it, and of every result as it makes it."""
        shape = self.atoms.shapes[position]
        key = (id(shape), own)
        found = self._slot_memo.get(key)
        if found is None:
            types = row.slot_shapes
            layouts: list[Layout] = []
            for slot, dims in zip(shape.slots, types, strict=True):
                if not any(own):
                    layouts.append(whole(dims))
                    continue
                layouts.append(
                    tuple(
                        ((size, ()),)
                        if pieces is None
                        else canonical_dim([(shape.sizes[p], own[p]) for p in pieces], self.by_axis)
                        for pieces, size in zip(slot, dims, strict=True)
                    )
                )
            n = shape.operand_count
            found = self._slot_memo[key] = (tuple(layouts[:n]), tuple(layouts[n:]))
        return found

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

    def result_axes(self, shape: OpShape, index: int, own: FactorAxes, value: int) -> FactorAxes:
        """Axes of each atom of a result; a dim its rule cannot cut is whole, however many atoms it has."""
        if not own:
            return ()
        key = id(shape), index, own
        found = self._result_memo.get(key)
        if found is None:
            found = self._result_memo[key] = self._result_axes(shape, index, own, value)
        return found

    def _result_axes(self, shape: OpShape, index: int, own: FactorAxes, value: int) -> FactorAxes:
        flat: list[Axes] = []
        for d, pieces in enumerate(shape.slots[shape.operand_count + index]):
            count = len(self.atoms.sizes_of[value][d])
            flat += [own[p] for p in pieces] if pieces is not None else [()] * count
        return tuple(flat)

"""Whether a sum over devices may be scattered: where every use of it wants the same atom cut over the axis, and how.

A gradient that only updates a parameter which is cut over "data" is wanted cut, too: it is reduce-scattered, and no device ever
holds all of it. What wants it: the ops that read it, and the argument that the result is handed on to.
"""

from __future__ import annotations

from collections.abc import Sequence

from partir.sharding.assignment import Assignment
from partir.sharding.indices import FactorId, LocalFactor, Reader, RowIndex, ValueIndex
from partir.sharding.layout import Axes
from partir.sharding.reshard import Place, Step


class Scattering:
    """What the uses of unreduced values want, under one assignment.

    The atoms of one value are numbered within it here, as `Atoms.place_in_value` does.
    """

    def __init__(self, assignment: Assignment) -> None:
        self.assignment = assignment
        self.tables, self.atoms = assignment.structure.tables, assignment.structure.atoms
        self.fixed = dict(assignment.outputs)

    def scatters(self, value: ValueIndex, axes: Sequence[Axes], due: dict[str, str]) -> list[tuple[str, int]]:
        """The (axis, atom) pairs for which the reduction of a value over the axes in `due` is a reduce_scatter.

        `axes` are those of each atom of the value as it lies [atoms of the value]; the new ones come after them.
        """
        now = list(axes)
        found: list[tuple[str, int]] = []
        for axis, kind in due.items():
            atom = self.wanted_atom(value, axis) if kind == "add" else None
            if atom is not None and self._fits(value, now, atom, axis):
                found.append((axis, atom))
                now[atom] = (*now[atom], axis)
        return found

    def steps(self, value: ValueIndex, axes: Sequence[Axes], scattered: Sequence[tuple[str, int]]) -> list[Step]:
        """The reduce_scatters of these (axis, atom) pairs, one after the other; those at one place made one.

        before   atoms of x: 8 (), 16 ()    scattered ("a", 0), ("b", 0)
        after    reduce_scatter over ("a", "b") at dim 0
        """
        now = list(axes)
        found: list[Step] = []
        for axis, atom in scattered:
            place = self._place(value, now, atom)
            last = found[-1] if found else None
            if last is not None and last.place == place:
                found[-1] = Step("reduce_scatter", (*last.axes, axis), place, reduction="add")
            else:
                found.append(Step("reduce_scatter", (axis,), place, reduction="add"))
            now[atom] = (*now[atom], axis)
        return found

    def _fits(self, value: ValueIndex, axes: Sequence[Axes], atom: int, axis: str) -> bool:
        """Whether an atom can be cut over one more axis: it divides, and the axis was claimed after those it has."""
        sizes = [size for dim in self.atoms.sizes_of[value] for size in dim]
        devices = self.assignment.mesh.size_of(*axes[atom], axis)
        class_ = int(self.assignment.classes.of_node[self.atoms.start[value] + atom])
        ranks = [int(self.assignment.reach.order[a][class_]) for a in (*axes[atom], axis)]
        return sizes[atom] % devices == 0 and ranks == sorted(ranks)

    def _place(self, value: ValueIndex, axes: Sequence[Axes], atom: int) -> Place:
        """Where an atom is in what each device holds: its dim, and how many blocks come before it there."""
        rest = atom
        for dim, sizes in enumerate(self.atoms.sizes_of[value]):
            if rest < len(sizes):
                first = atom - rest
                outer = 1
                for k in range(first, atom):
                    outer *= sizes[k - first] // self.assignment.mesh.size_of(*axes[k])
                return Place(dim, outer)
            rest -= len(sizes)
        raise IndexError(atom)

    def wanted_atom(self, value: ValueIndex, axis: str) -> int | None:
        """The atom of a value that every use wants cut over `axis`; None when they differ or some use wants it whole."""
        wanted: set[int | None] = set()
        for reader, slot in self.tables.uses[value]:
            if reader >= 0 and slot == 1 and self.tables.rows[reader].is_invariant:
                continue  # a loop that hands back what it was given wants nothing of its own
            wanted.add(self._wanted_by(value, axis, reader, slot))
            if None in wanted or len(wanted) > 1:
                return None
        return next(iter(wanted), None)

    def _wanted_by(self, value: ValueIndex, axis: str, reader: Reader, slot: int) -> int | None:
        """The atom of a value that one use wants cut."""
        if reader < 0:
            return self._wanted_by_result(value, axis, -1 - reader)
        return self._wanted_by_row(value, axis, RowIndex(reader), slot) if slot >= 0 else None

    def _wanted_by_result(self, value: ValueIndex, axis: str, result: int) -> int | None:
        """What a result of the program is to leave as: what its fixed spec says, or how the argument lies that it goes to."""
        view = self.tables.outputs[result]
        assert view is not None
        fixed = self.fixed.get(result)
        sizes = self.atoms.sizes_of
        if fixed is not None:
            dims = [view.dims[d] for d, own in enumerate(fixed) if axis in (own or ()) and view.dims[d] >= 0]
            return self.atoms.place_in_value(value, dims[0], 0) if dims and sizes[value][dims[0]] else None
        number = self.tables.program.signature.argument_of_result.get(result)
        if number is None:
            return None
        argument = ValueIndex(number)
        axes = self.assignment.argument_axes[argument]  # [atoms of the argument]
        for dim, source in enumerate(view.dims):
            first, count = self.atoms.place_in_value(argument, dim, 0), len(sizes[argument][dim])
            for part, own in enumerate(axes[first : first + count]):
                if axis in own and source >= 0 and sizes[argument][dim] == sizes[value][source]:
                    return self.atoms.place_in_value(value, source, part)
        return None

    def _wanted_by_row(self, value: ValueIndex, axis: str, position: RowIndex, slot: int) -> int | None:
        """The atom where the factor is that has the axis at a row; of a pass-through row, what its result is wanted as."""
        row, shape = self.tables.rows[position], self.atoms.shapes[position]
        view = row.operands[slot]
        assert view is not None
        factor: LocalFactor | None
        if row.passed_through is not None:
            atom = self.wanted_atom(row.results[0 if len(row.results) == 1 else 1], axis)
            if atom is None:
                return None
            factors = [f for dim in shape.slots[shape.operand_count] for f in (dim if dim is not None else (None,))]
            factor = factors[atom]
        else:
            winner = FactorId(int(self.assignment.winners[axis][position]))
            factor = self.atoms.local_factor(position, winner) if winner >= 0 else None
        if factor is None:
            return None
        for d, own in enumerate(shape.slots[slot]):
            if own is not None and view.dims[d] >= 0 and factor in own:
                return self.atoms.place_in_value(value, view.dims[d], own.index(factor))
        return None

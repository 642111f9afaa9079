"""What a Core module says, in terms of its program: which sub-factor each loop cuts, how each argument and result lies."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

from xdsl.dialects.func import FuncOp

from partir.dialect.core import TileAttr
from partir.errors import IRError, word
from partir.lowering import boundary
from partir.lowering.nest import Cut, nest_of
from partir.lowering.strip import Seen, Stripped, where_of
from partir.mesh import Mesh
from partir.sharding.atoms import OpShape
from partir.sharding.classes import Classes
from partir.sharding.layout import Axes
from partir.sharding.rule import shape_of
from partir.sharding.structure import Structure
from partir.sharding.tables import OpRow

Claim = tuple[int, str]
"""A class and a mesh axis."""

Place = tuple[int, int]
"""A value and a dim."""


@dataclass(frozen=True, eq=False)
class Evidence:
    """`rows[p]` are the loops around row p, outermost first; `arguments[i]` the axes of each dim of argument i as `main` says
    them (None where it says nothing), `pinned[i]` the axes it is to be whole on; `results` likewise. `once` are the arguments
    that are gathered once in a step.

    `written` says that `materialise` wrote the module, and so said every `Replicate`.
    """

    structure: Structure
    mesh: Mesh
    rows: list[tuple[Cut, ...]]
    arguments: list[list[Axes] | None]
    pinned: list[Axes]
    once: list[int]
    results: list[list[Axes] | None]
    written: bool

    @cached_property
    def atoms(self) -> list[list[list[str]]]:
        """The axes of each atom of each argument. Raises IRError where atoms do not divide by them."""
        return [
            [
                taken
                for dim, sizes in enumerate(self.structure.atoms.sizes_of[argument])
                for taken in self._of_dim(argument, dim, sizes, axes[dim] if axes is not None else ())
            ]
            for argument, axes in enumerate(self.arguments)
        ]

    def _of_dim(self, argument: int, dim: int, sizes: Sequence[int], axes: Axes) -> list[list[str]]:
        found = over_atoms(sizes, axes, self.mesh)
        if found is None:
            shape = self.structure.tables.shapes[argument]
            raise IRError(
                word(
                    f"argument {self.structure.addresses.names[argument]} cannot be sharded as it says",
                    where=f"dim {dim} of {list(shape)} over {', '.join(axes)}",
                    why=f"{shape[dim]}, which is {' x '.join(map(str, sizes)) or 1}, does not divide by them",
                )
            )
        return found

    def of_row(self, classes: Classes, position: int) -> list[int]:
        """The class of each sub-factor of a row."""
        atoms = self.structure.atoms
        first = atoms.factor_start[position] - atoms.atom_count
        return classes.of_factor[first : first + len(atoms.shapes[position].sizes)].tolist()

    def of_argument(self, classes: Classes, argument: int) -> list[int]:
        """The class of each atom of an argument."""
        first = self.structure.atoms.start[argument]
        return classes.of_node[first : first + self.structure.atoms.count_of(argument)].tolist()

    def axes_of(self, classes: Classes, class_: int) -> set[str]:
        """The axes a class is cut over at any op."""
        found: set[str] = set()
        for position, cuts in enumerate(self.rows):
            if cuts:
                own = self.of_row(classes, position)
                found.update(axis for axis, factor in cuts if own[factor] == class_)
        return found

    def is_cut_beside(self, classes: Classes, class_: int, axis: str) -> bool:
        """Whether some op that has a class is cut over an axis."""
        return any(
            axis in dict(cuts) and class_ in self.of_row(classes, position) for position, cuts in enumerate(self.rows) if cuts
        )

    def around(self, classes: Classes, claim: Claim) -> Iterator[Place]:
        """The values around all that is cut along a class over an axis."""
        class_, axis = claim
        for argument, per_atom in enumerate(self.atoms):
            for atom, axes in enumerate(per_atom, self.structure.atoms.start[argument]):
                if axis in axes and int(classes.of_node[atom]) == class_:
                    yield argument, self.structure.atoms.owner_of(atom)[1]
        for position, cuts in enumerate(self.rows):
            factor = dict(cuts).get(axis)
            if factor is not None and self.of_row(classes, position)[factor] == class_:
                yield from self.borders(position, factor, axis, cut=False)

    def borders(self, position: int, factor: int, axis: str, *, cut: bool) -> Iterator[Place]:
        """Operands and results of a row that have a sub-factor, where the op on the other side is (or is not) cut there."""
        row, shape = self.structure.tables.rows[position], self.structure.atoms.shapes[position]
        for view, dims in zip(row.operands, shape.slots[: shape.operand_count], strict=True):
            if view is not None:
                for d in _dims_with(dims, factor):
                    if view.dims[d] >= 0 and self._is_made_cut(view.source, view.dims[d], axis) == cut:
                        yield view.source, view.dims[d]
        for number, result in enumerate(row.results):
            for d in _dims_with(shape.slots[shape.operand_count + number], factor):
                if self._is_read_cut(result, d, axis) == cut:
                    yield result, d

    def _is_made_cut(self, value: int, dim: int, axis: str) -> bool:
        """Whether a value comes with its dim cut over an axis."""
        tables = self.structure.tables
        if value < tables.argument_count:
            axes = self.arguments[value]
            return axes is not None and axis in axes[dim]
        position = tables.producer[value]
        factor = dict(self.rows[position]).get(axis)
        shape = self.structure.atoms.shapes[position]
        slot = shape.operand_count + tables.rows[position].results.index(value)
        return factor is not None and dim in _dims_with(shape.slots[slot], factor)

    def _is_read_cut(self, value: int, dim: int, axis: str) -> bool:
        """Whether some op reads a value with its dim cut over an axis."""
        tables = self.structure.tables
        for position, slot in tables.uses[value]:
            if position < 0 or slot < 0:
                continue
            factor = dict(self.rows[position]).get(axis)
            view = tables.rows[position].operands[slot]
            if factor is not None and view is not None:
                dims = _dims_with(self.structure.atoms.shapes[position].slots[slot], factor)
                if any(view.dims[d] == dim for d in dims):
                    return True
        return False


def _dims_with(slot: Sequence[tuple[int, ...] | None], factor: int) -> list[int]:
    """The dims of an operand or result that a sub-factor is part of."""
    return [d for d, pieces in enumerate(slot) if pieces is not None and factor in pieces]


def over_atoms(sizes: Sequence[int], axes: Axes, mesh: Mesh) -> list[list[str]] | None:
    """Share the axes of a dim among its atoms, major first; None where they do not divide.

    >>> over_atoms((2, 64), ("model", "data"), Mesh(data=4, model=2))
    [['model'], ['data']]
    """
    taken: list[list[str]] = [[] for _ in sizes]
    left = list(sizes)
    position = 0
    for axis in axes:
        devices = mesh.size_of(axis)
        while position < len(left) and left[position] == 1:
            position += 1
        if position == len(left) or left[position] % devices:
            return None
        left[position] //= devices
        taken[position].append(axis)
    return taken


def gather(structure: Structure, stripped: Stripped, main: FuncOp, mesh: Mesh) -> Evidence:
    """Read the loops and the boundary of a module. Raises IRError for loops that no sharding rule allows."""
    rows = structure.tables.rows
    for op in set(stripped.nests).difference(row.op for row in rows):
        raise IRError(
            word(
                f"a loop stands around {op.name}",
                where=where_of(op),
                why="constants, transposes and broadcasts are made where they are used, in whatever layout the use wants",
            )
        )
    reader = _Loops(structure, mesh)
    cuts = [reader.row(position, row, stripped.nests.get(row.op, ())) for position, row in enumerate(rows)]
    signature = structure.program.signature
    given = boundary.entries(main.arg_attrs, len(signature.arguments))
    arguments = [boundary.axes_read(own, mesh, leaf.name) for own, leaf in zip(given, signature.arguments, strict=True)]
    returned = zip(boundary.entries(main.res_attrs, len(signature.results)), signature.results, strict=True)
    results = [boundary.axes_read(entry, mesh, leaf.name)[0] for entry, leaf in returned]
    return Evidence(
        structure,
        mesh,
        cuts,
        [axes for axes, _ in arguments],
        [pinned for _, pinned in arguments],
        [i for i, entry in enumerate(given) if boundary.GATHERED_ONCE in entry],
        results,
        boundary.is_written(main),
    )


class _Loops:
    """Reads the loops around ops; ops of one rule in the same loops are read once."""

    def __init__(self, structure: Structure, mesh: Mesh) -> None:
        self.shapes = structure.atoms.shapes
        self.sizes = mesh.shape
        self.memo: dict[object, tuple[Cut, ...]] = {}

    def row(self, position: int, row: OpRow, seen: tuple[Seen, ...]) -> tuple[Cut, ...]:
        if not seen:
            return ()
        shape = self.shapes[position]
        key = (id(shape), seen)
        found = self.memo.get(key)
        if found is None:
            found = self.memo[key] = self.cuts(shape, row, seen)
        return found

    def cuts(self, shape: OpShape, row: OpRow, seen: Sequence[Seen]) -> tuple[Cut, ...]:
        """The sub-factors that loops cut, checked: they slice what these sub-factors are in, and nothing else."""
        extents = list(shape.sizes)
        cuts: list[Cut] = []
        for level in seen:
            if self.sizes.get(level.axis) != level.size:
                raise refused(row, f'"{level.axis}"={level.size} is not an axis of the mesh {self.sizes}')
            factor = _factor(shape, extents, level)
            if factor is None:
                raise refused(row, f'nothing its sharding rule lets be cut is what "{level.axis}" slices')
            extents[factor] //= level.size
            cuts.append((level.axis, factor))
        operands = [shape_of(v.type) for v in row.op.operands]
        results = [shape_of(v.type) for v in row.op.results]
        nest = nest_of(shape, cuts, self.sizes, operands, results)
        for made, level in zip(nest.levels, seen, strict=True):
            if level.slices != frozenset((s.slot, s.tile) for s in made.slices) or level.parts != made.parts:
                raise refused(row, f'"{level.axis}" slices or puts together something else than its sharding rule says')
        return tuple(cuts)


def _factor(shape: OpShape, extents: Sequence[int], level: Seen) -> int | None:
    """The sub-factor that a slice (or, of what only results have, a result) is cut along."""
    places = sorted(level.slices, key=lambda place: place[0])
    places += [(shape.operand_count + i, part) for i, part in enumerate(level.parts) if isinstance(part, TileAttr)]
    if not places:
        return None
    slot, tile = places[0]
    pieces = shape.slots[slot][tile.position] if tile.position < len(shape.slots[slot]) else None
    outer = 1
    for piece in pieces or ():
        if outer == tile.outer_size and extents[piece] % level.size == 0 and not shape.closed[piece]:
            return piece
        outer *= extents[piece]
    return None


def refused(row: OpRow, why: str) -> IRError:
    """The error for an op whose loops partir would not write."""
    return IRError(
        word(
            f"the loops around {row.op.name} are not a tiling of it",
            where=where_of(row.op),
            why=why,
            hint="see its sdy.sharding_rule: one loop per axis, slicing every operand that has the factor",
        )
    )

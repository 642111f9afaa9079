"""What a Core module says, in terms of its program: which sub-factor each loop cuts, how each argument and result lies."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from xdsl.dialects.func import FuncOp

from partir.dialect.core import TileAttr
from partir.errors import IRError, word
from partir.lowering import boundary
from partir.lowering.nest import Cut, nest_of
from partir.lowering.strip import Seen, Stripped, where_of
from partir.mesh import Mesh
from partir.sharding.assignment import Structure
from partir.sharding.atoms import OpShape
from partir.sharding.layout import Axes
from partir.sharding.rule import shape_of
from partir.sharding.tables import OpRow


@dataclass(frozen=True, eq=False)
class Evidence:
    """`rows[p]` are the loops around row p, outermost first; `arguments[i]` the axes of each dim of argument i as `main` says
    them (None where it says nothing), `pinned[i]` the axes it is to be whole on; `results` likewise."""

    rows: list[tuple[Cut, ...]]
    arguments: list[list[Axes] | None]
    pinned: list[Axes]
    results: list[list[Axes] | None]


def gather(structure: Structure, stripped: Stripped, main: FuncOp, mesh: Mesh) -> Evidence:
    """Read the loops and the boundary of a module. Raises IRError for loops that no sharding rule allows."""
    reader = _Reader(structure, mesh)
    rows = structure.tables.rows
    outside = set(stripped.nests).difference(row.op for row in rows)
    for op in outside:
        raise IRError(
            word(
                f"a loop stands around {op.name}",
                where=where_of(op),
                why="constants, transposes and broadcasts are made where they are used, in whatever layout the use wants",
            )
        )
    cuts = [reader.row(position, row, stripped.nests.get(row.op, ())) for position, row in enumerate(rows)]
    signature = structure.program.signature
    given = boundary.entries(main.arg_attrs, len(signature.arguments))
    read = [
        boundary.axes_read(entry, mesh, leaf.name) for entry, leaf in zip(given, signature.arguments, strict=True)
    ]
    returned = boundary.entries(main.res_attrs, len(signature.results))
    results = [
        boundary.axes_read(entry, mesh, leaf.name)[0] for entry, leaf in zip(returned, signature.results, strict=True)
    ]
    return Evidence(cuts, [axes for axes, _ in read], [pinned for _, pinned in read], results)


class _Reader:
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
            if level.slices != {(s.slot, s.tile) for s in made.slices} or level.parts != made.parts:
                raise refused(row, f'"{level.axis}" slices or puts together something else than its sharding rule says')
        return tuple(cuts)


def _factor(shape: OpShape, extents: Sequence[int], level: Seen) -> int | None:
    """The sub-factor that a slice (or, of what only results have, a result) is cut along."""
    places = sorted(((slot, tile) for slot, tile in level.slices), key=lambda place: place[0])
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

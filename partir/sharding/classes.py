"""Dimension classes: the atoms and factors of a whole program that are sharded together (TOAST's names).

A union-find that refuses a union which would put two factors of one op, or two atoms of one value, into one class; the
refused place is where a reshard will be owed. The order of unions decides where refusals fall: pointwise ops first (results,
then operands), then layout ops and reductions, contractions and gathers last, so that they land on the operands of
attention's contractions, where a gather belongs.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from partir.dialect.kinds import CONTRACTIONS, is_pointwise
from partir.errors import NoEffectError, error_text
from partir.sharding.actions import Addresses
from partir.sharding.atoms import Atoms
from partir.sharding.indices import AtomIndex, ClassId, IntArray, NodeId, RowIndex, ValueIndex
from partir.sharding.tables import Tables


class Address(NamedTuple):
    """A dim of a value as actions name it: `Tile(*address, axis)`."""

    value: str
    dim: int


class NamedDim(NamedTuple):
    """A dim of a value with its class, as a tactic looks through those of all inputs or parameters."""

    name: str
    """The address of the value, as actions say it."""
    dim: int
    class_: ClassId
    value: ValueIndex


def one_of_each(dims: Iterable[NamedDim]) -> list[NamedDim]:
    """The first dim of each class, in order."""
    found: dict[ClassId, NamedDim] = {}
    for dim in dims:
        found.setdefault(dim.class_, dim)
    return list(found.values())


@dataclass(eq=False)
class Classes:
    """Which atoms and factors are sharded together, and what each class runs through."""

    tables: Tables
    atoms: Atoms
    addresses: Addresses
    of_node: IntArray
    """[nodes] int64: the class of each atom, then of each factor; -1 (`CLOSED`) for a factor that cannot be cut."""
    size: list[int]
    """[classes] how many elements a class has: over how many devices it can be split."""
    refused: list[tuple[AtomIndex, NodeId]]
    """The (atom, factor) pairs that name one index and yet are in two classes: there a reshard may be owed."""

    @property
    def count(self) -> int:
        return len(self.size)

    @cached_property
    def of_factor(self) -> IntArray:
        """The class of each factor [factors] int64, -1 for a closed one."""
        return self.of_node[self.atoms.atom_count :]

    @cached_property
    def row_of_factor(self) -> IntArray:
        """The row that each factor belongs to [factors] int64."""
        counts = [len(shape.sizes) for shape in self.atoms.shapes]
        return np.repeat(np.arange(len(counts), dtype=np.int64), counts)

    @cached_property
    def reduction(self) -> npt.NDArray[np.bool_]:
        """Whether each factor is summed away by its op [factors] bool."""
        return np.array([flag for shape in self.atoms.shapes for flag in shape.reduction], dtype=np.bool_)

    @cached_property
    def atoms_by_class(self) -> list[list[AtomIndex]]:
        """The atoms of each class, in program order."""
        members: list[list[AtomIndex]] = [[] for _ in self.size]
        for atom, class_ in enumerate(self.of_node[: self.atoms.atom_count].tolist()):
            members[class_].append(AtomIndex(atom))
        return members

    @cached_property
    def arguments_by_class(self) -> list[list[tuple[ValueIndex, int, int]]]:
        """(argument, dim, part) of each class, in order."""
        members: list[list[tuple[ValueIndex, int, int]]] = [[] for _ in self.size]
        for argument in self.tables.arguments:
            for dim in range(len(self.tables.shapes[argument])):
                for part, atom in enumerate(self.atoms.atoms_of(argument, dim)):
                    members[int(self.of_node[atom])].append((argument, dim, part))
        return members

    @cached_property
    def _of_factor(self) -> list[ClassId]:
        return self.of_factor.tolist()

    def of_row(self, row: RowIndex) -> list[ClassId]:
        """The class of each factor of a row, -1 (`CLOSED`) for one that cannot be cut."""
        first = self.atoms.factor_start[row]
        return self._of_factor[first : first + len(self.atoms.shapes[row].sizes)]

    def class_of(self, value: ValueIndex, dim: int, part: int = 0) -> ClassId:
        """The class of one atom of a value."""
        return ClassId(int(self.of_node[self.atoms.atoms_of(value, dim)[part]]))

    def argument_dim(self, class_: ClassId) -> tuple[ValueIndex, int] | None:
        """The first (argument, dim) whose outermost part a class is, so that a `Tile` of it means the class; None if there is
        none."""
        return next(((argument, dim) for argument, dim, part in self.arguments_by_class[class_] if part == 0), None)

    def address(self, class_: ClassId) -> Address:
        """A dim that names a class in an action: of an argument where it has one, else of the first value that has it. Raises
        NoEffectError for a class that is the outermost part of no dim."""
        found = self.argument_dim(class_)
        if found is None:
            owners = map(self.atoms.owner_of, self.atoms_by_class[class_])
            found = next(((value, dim) for value, dim, part in owners if part == 0), None)
        if found is None:
            raise NoEffectError(
                error_text(f"class {class_} is the outermost part of no dim", why="so no tile can name it"),
            )
        value, dim = found
        return Address(self.addresses.names[value], dim)


Ends = frozenset[tuple[ValueIndex, int]]
"""(value, dim) pairs at which a class ends (`Cut` actions): who reads the value does not share the class of its dim."""


def build(tables: Tables, atoms: Atoms, addresses: Addresses, cuts: Ends = frozenset()) -> Classes:
    """Put the atoms and factors of a whole program into classes; `cuts` are where classes end.

    A union is refused where an owner (a value, or a row) would come twice into one class. In `g = tanh(x @ w + x)`, w square,
    writing v:d for dim d of a value, and i, j, k for the factors of the contraction:

        pointwise ops first    {x:1, (x @ w):1, g:1}                results, then operands
        the contraction last   j joins that class by the result; k is to join it by x:1, but the row is in it by j: refused
        so                     k and w:0 are a class of their own, w:1 is in that of x:1, and `refused` is [(x:1, k)]
    """
    parent = list(range(atoms.node_count))  # [nodes] the node that stands for it, or one nearer to that
    members: list[set[int] | None] = [None] * atoms.node_count  # [nodes] the owners in a class, at the node that stands for it
    owner = _owners(tables, atoms)
    refused: list[tuple[AtomIndex, NodeId]] = []

    def find(node: int) -> int:
        while parent[node] != node:
            parent[node] = parent[parent[node]]
            node = parent[node]
        return node

    for atom, factor in _edges(tables, atoms, cuts):
        a, b = find(atom), find(factor)
        if a == b:
            continue
        of_a, of_b = members[a] or {owner[a]}, members[b] or {owner[b]}
        if len(of_a) < len(of_b):
            a, b, of_a, of_b = b, a, of_b, of_a
        if not of_b.isdisjoint(of_a):
            refused.append((AtomIndex(atom), NodeId(factor)))
            continue
        of_a |= of_b
        members[a], members[b] = of_a, None
        parent[b] = a
    roots = np.array([find(n) for n in range(atoms.node_count)], dtype=np.int64)  # [nodes] int64
    of_node, first = _numbered(roots, _closed(atoms))
    sizes = [size for value in atoms.sizes_of for dim in value for size in dim]
    sizes += [size for shape in atoms.shapes for size in shape.sizes]
    return Classes(
        tables=tables,
        atoms=atoms,
        addresses=addresses,
        of_node=of_node,
        size=[sizes[node] for node in first],
        refused=refused,
    )


def _owners(tables: Tables, atoms: Atoms) -> list[int]:
    """[nodes] whose atom or factor it is: a value by its number, a row by its number after all values."""
    value_count = len(tables.values)
    owner: list[int] = []
    for value in tables.each_value():
        owner += [value] * atoms.count_of(value)
    for row, shape in enumerate(atoms.shapes):
        owner += [value_count + row] * len(shape.sizes)
    return owner


def _closed(atoms: Atoms) -> npt.NDArray[np.bool_]:
    """[nodes] bool: which nodes are factors that must not be cut."""
    return np.array([False] * atoms.atom_count + [flag for shape in atoms.shapes for flag in shape.closed], dtype=np.bool_)


def _numbered(roots: IntArray, closed: npt.NDArray[np.bool_]) -> tuple[IntArray, list[int]]:
    """Classes in the order of their first node: the class of each node [nodes] int64, and the first node of each class.

    >>> _numbered(np.array([4, 1, 4, 3, 4]), np.array([False, False, False, True, False]))
    (array([ 0,  1,  0, -1,  0]), [0, 1])
    """
    roots = np.where(closed, -1, roots)
    kept, first, inverse = np.unique(roots, return_index=True, return_inverse=True)
    is_class = kept >= 0
    order = np.argsort(first[is_class], kind="stable")  # [classes] int64
    rank = np.full(len(kept), -1, dtype=np.int64)  # [distinct roots] the number of its class; -1 for the closed ones
    rank[np.flatnonzero(is_class)[order]] = np.arange(len(order))
    return rank[inverse.reshape(-1)], first[is_class][order].tolist()


def _edges(tables: Tables, atoms: Atoms, cuts: Ends) -> Iterator[tuple[int, int]]:
    """(atom, node of a factor) pairs that name the same index, in the order of union; the two ends of a state come last."""
    pointwise: list[RowIndex] = []
    layout: list[RowIndex] = []
    late: list[RowIndex] = []
    for position, row in tables.each_row():
        bucket = pointwise if row.kind == "carry" or is_pointwise(row.op) else late if row.op.name in CONTRACTIONS else layout
        bucket.append(position)
    for position in pointwise:
        yield from _of_slots(tables, atoms, position, results=True, cuts=cuts)
    for position in pointwise:
        yield from _of_slots(tables, atoms, position, results=False, cuts=cuts)
    for bucket in (layout, late):
        for position in bucket:
            yield from _of_slots(tables, atoms, position, results=True, cuts=cuts)
            yield from _of_slots(tables, atoms, position, results=False, cuts=cuts)
    for argument, result in tables.state:
        view = tables.outputs[result]
        for dim, source in enumerate(view.dims if view is not None else ()):
            if view is not None and source >= 0:
                ends = atoms.atoms_of(argument, dim), atoms.atoms_of(view.source, source)
                if atoms.sizes_of[argument][dim] == atoms.sizes_of[view.source][source]:
                    yield from zip(*ends, strict=True)


def _of_slots(tables: Tables, atoms: Atoms, position: RowIndex, *, results: bool, cuts: Ends) -> Iterator[tuple[int, int]]:
    """The (atom, node of a factor) pairs of a row's results, or of its operands."""
    row, shape = tables.rows[position], atoms.shapes[position]
    first = atoms.node_of_factor(atoms.factor_start[position])
    if results:
        slots = [(value, None, shape.slots[shape.operand_count + i]) for i, value in enumerate(row.results)]
    else:
        slots = [(v.source, v.dims, s) for v, s in zip(row.operands, shape.slots[: shape.operand_count], strict=True) if v]
    for value, dims, slot in slots:
        start, per_dim = int(atoms.start[value]), atoms.sizes_of[value]
        offsets: list[int] = []
        for sizes in per_dim:
            offsets.append(start)
            start += len(sizes)
        for d, pieces in enumerate(slot):
            source = d if dims is None else dims[d]
            if pieces is None or source < 0 or (not results and (value, source) in cuts):
                continue
            for k, piece in enumerate(pieces):
                if not shape.closed[piece]:
                    yield offsets[source] + k, first + piece


@dataclass(frozen=True)
class ClassInfo:
    """A dimension class as its user sees it: `size`, and the (argument, dim) pairs it touches."""

    number: int
    size: int
    arguments: tuple[tuple[str, int], ...]
    dims: int

    @property
    def name(self) -> str:
        """The first place where it shows: `params/mlp/w:1`."""
        return f"{self.arguments[0][0]}:{self.arguments[0][1]}" if self.arguments else f"class {self.number}"

    def __repr__(self) -> str:
        return f"{self.name} ({self.size}; {len(self.arguments)} argument dims, {self.dims} dims in all)"

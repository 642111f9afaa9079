"""Dimension classes: the atoms and sub-factors of a whole program that are sharded together (TOAST's names).

A union-find that refuses a union which would put two sub-factors of one op, or two atoms of one value, into one class; the
refused place is where a reshard will be owed. The order of unions decides where refusals fall: pointwise ops first (results,
then operands), then layout ops and reductions, contractions and gathers last, so that they land on the operands of
attention's contractions, where a gather belongs.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from partir.dialect.kinds import CONTRACTIONS, is_pointwise
from partir.sharding.atoms import Atoms
from partir.sharding.tables import Tables

IntArray = npt.NDArray[np.int64]


@dataclass(eq=False)
class Classes:
    """`of_node[n]` is the class of node n (atoms first, then sub-factors), -1 for a closed sub-factor.

    `size[c]` is the number of elements along class c. `refused` lists the (atom, sub-factor node) unions that were refused.
    """

    tables: Tables
    atoms: Atoms
    of_node: IntArray
    size: list[int]
    refused: list[tuple[int, int]]

    @property
    def count(self) -> int:
        return len(self.size)

    @cached_property
    def of_factor(self) -> IntArray:
        """The class of each sub-factor, rows in order."""
        return self.of_node[self.atoms.atom_count :]

    @cached_property
    def row_of_factor(self) -> IntArray:
        """The row each sub-factor belongs to."""
        counts = [len(shape.sizes) for shape in self.atoms.shapes]
        return np.repeat(np.arange(len(counts), dtype=np.int64), counts)

    @cached_property
    def reduction(self) -> npt.NDArray[np.bool_]:
        """Whether each sub-factor is summed away by its op."""
        return np.array([flag for shape in self.atoms.shapes for flag in shape.reduction], dtype=np.bool_)

    @cached_property
    def atoms_by_class(self) -> list[list[int]]:
        """The atoms of each class, in program order."""
        members: list[list[int]] = [[] for _ in self.size]
        for atom, class_ in enumerate(self.of_node[: self.atoms.atom_count].tolist()):
            members[class_].append(atom)
        return members

    @cached_property
    def arguments_by_class(self) -> list[list[tuple[int, int, int]]]:
        """(argument, dim, part) of each class, in order."""
        members: list[list[tuple[int, int, int]]] = [[] for _ in self.size]
        for argument in range(self.tables.argument_count):
            for dim in range(len(self.tables.shapes[argument])):
                for part, atom in enumerate(self.atoms.atoms_of(argument, dim)):
                    members[int(self.of_node[atom])].append((argument, dim, part))
        return members

    def class_of(self, value: int, dim: int, part: int = 0) -> int:
        """The class of one atom of a value."""
        return int(self.of_node[self.atoms.atoms_of(value, dim)[part]])


def build(tables: Tables, atoms: Atoms, cuts: frozenset[tuple[int, int]] = frozenset()) -> Classes:
    """Union the whole program. `cuts` are (value, dim) whose producer and users are not to be tied (`Cut` actions)."""
    parent = list(range(atoms.node_count))
    members: list[set[int] | None] = [None] * atoms.node_count
    value_total = len(tables.values)
    owner: list[int] = []
    for value in range(value_total):
        owner += [value] * atoms.count_of(value)
    for row, shape in enumerate(atoms.shapes):
        owner += [value_total + row] * len(shape.sizes)
    refused: list[tuple[int, int]] = []

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
            refused.append((atom, factor))
            continue
        of_a |= of_b
        members[a], members[b] = of_a, None
        parent[b] = a
    closed = np.zeros(atoms.node_count, dtype=np.bool_)
    node = atoms.atom_count
    sizes = [size for value in atoms.sizes_of for dim in value for size in dim]
    for shape in atoms.shapes:
        closed[node : node + len(shape.sizes)] = shape.closed
        sizes += shape.sizes
        node += len(shape.sizes)
    roots = np.array([find(n) for n in range(atoms.node_count)], dtype=np.int64)
    roots[closed] = -1
    kept, first, inverse = np.unique(roots, return_index=True, return_inverse=True)
    order = np.argsort(first[kept >= 0], kind="stable")
    rank = np.full(len(kept), -1, dtype=np.int64)
    rank[np.flatnonzero(kept >= 0)[order]] = np.arange(len(order))
    of_node = rank[inverse.reshape(-1)]
    size = [0] * len(order)
    for class_, index in zip(rank.tolist(), first.tolist(), strict=True):
        if class_ >= 0:
            size[class_] = sizes[index]
    return Classes(tables, atoms, of_node, size, refused)


def _edges(tables: Tables, atoms: Atoms, cuts: frozenset[tuple[int, int]]) -> Iterator[tuple[int, int]]:
    """(atom, sub-factor) pairs that name the same index, in the order of union; the two ends of a state come last."""
    pointwise, layout, late = [], [], []
    for position, row in enumerate(tables.rows):
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
    for argument, result in tables.program.signature.state:
        view = tables.outputs[result]
        for dim, source in enumerate(view.dims if view is not None else ()):
            if view is not None and source >= 0:
                ends = atoms.atoms_of(argument, dim), atoms.atoms_of(view.source, source)
                if atoms.sizes_of[argument][dim] == atoms.sizes_of[view.source][source]:
                    yield from zip(*ends, strict=True)


def _of_slots(
    tables: Tables, atoms: Atoms, position: int, *, results: bool, cuts: frozenset[tuple[int, int]]
) -> Iterator[tuple[int, int]]:
    row, shape, first = tables.rows[position], atoms.shapes[position], atoms.factor_start[position]
    if results:
        slots = [(value, None, shape.slots[shape.operand_count + i]) for i, value in enumerate(row.results)]
    else:
        slots = [(v.source, v.dims, s) for v, s in zip(row.operands, shape.slots[: shape.operand_count], strict=True) if v]
    for value, dims, slot in slots:
        start, per_dim = atoms.start[value], atoms.sizes_of[value]
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

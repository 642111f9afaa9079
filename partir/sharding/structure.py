"""What is known of a program before any decision: its tables, atoms, classes, addresses and constraints.

A structure may have dims *joined*: cut over more devices than some op has blocks of them, they are taken as one block, and
the op reads them whole. Then its atoms and classes are others; the rest is shared. `x.reshape(4, 16)` of x [64] on 8 devices:

    as it is    the dim of x has atoms 4 and 16; a cut is of the outer one, and 4 does not divide by 8
    joined      with `joins = {(x, 0, 8)}` it is one atom of 64, which does; the reshape, whose blocks differ, reads x whole
    passages    {(x, 0): [(y, 0), (y, 1)]}: at y [4, 16] the cut goes on in the first part that divides by 8, the 16
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from partir.collector import paused
from partir.mesh import Mesh
from partir.program import Program
from partir.sharding import atoms as atoms_
from partir.sharding import classes as classes_
from partir.sharding import constraints, groups, table_builder
from partir.sharding.actions import Addresses
from partir.sharding.atoms import Atoms, Join
from partir.sharding.classes import Classes, Ends
from partir.sharding.constraints import Wishes
from partir.sharding.groups import Group
from partir.sharding.indices import ClassId, ValueIndex
from partir.sharding.tables import Tables


@dataclass(eq=False)
class Structure:
    """What is known of a program before any decision. Built once, shared by all assignments."""

    program: Program
    tables: Tables
    atoms: Atoms
    addresses: Addresses
    joins: frozenset[Join] = frozenset()
    """The dims that keep no blocks, since they are cut over more devices than some op has blocks of them."""
    can_join: bool = True
    """False of a program with its repeated parts taken once: it has the atoms of the whole."""
    _joined: dict[frozenset[Join], Structure] = field(default_factory=dict[frozenset[Join], "Structure"])
    _classes: dict[Ends, Classes] = field(default_factory=dict[Ends, Classes])
    _wishes: dict[Mesh, Wishes] = field(default_factory=dict[Mesh, Wishes])
    _memos: dict[tuple[Mesh, str], dict[Any, Any]] = field(default_factory=dict[tuple[Mesh, str], dict[Any, Any]])

    @classmethod
    @paused()
    def of(cls, program: Program) -> Structure:
        """Read a program, and find its atoms, classes and addresses."""
        tables = table_builder.build(program)
        structure = cls(program, tables, atoms_.build(tables), Addresses(tables))
        structure.classes()
        return structure

    def classes(self, cuts: Ends = frozenset()) -> Classes:
        """The classes of the program, with those ended that `Cut` actions end; made once for each set of them."""
        if cuts not in self._classes:
            self._classes[cuts] = classes_.build(self.tables, self.atoms, self.addresses, cuts)
        return self._classes[cuts]

    def joined(self, joins: Iterable[Join]) -> Structure:
        """The same program with further dims joined; made once for each set of them."""
        wanted = self.joins.union(joins)
        self._joined.setdefault(self.joins, self)
        if wanted not in self._joined:
            atoms = atoms_.build(self.tables, wanted)
            self._joined[wanted] = replace(self, atoms=atoms, joins=wanted, _classes={}, _wishes={}, _memos={})
        return self._joined[wanted]

    @cached_property
    def passages(self) -> dict[tuple[ValueIndex, int], list[tuple[ValueIndex, int]]]:
        """By joined (value, dim), where its cut may go on at an op that splits it (or puts it together): the (value, dim) of
        its parts, outer ones first. Not in what two activations are contracted over: their product would have to be summed."""
        found: dict[tuple[ValueIndex, int], list[tuple[ValueIndex, int]]] = {}
        before = self.unjoined.atoms.shapes
        for row, shape, whole in zip(self.tables.rows, self.atoms.shapes, before, strict=True):
            if shape is whole or shape.slots == whole.slots:
                continue
            views = [*row.operands, *map(self.tables.itself, row.results)]
            rules = (*row.rule.operands, *row.rule.results)
            count = len(row.operands)
            for slot, (view, dims) in enumerate(zip(views, rules, strict=True)):
                others = range(count, len(views)) if slot < count else range(count)
                if view is None:
                    continue
                for d, factors in enumerate(dims):
                    if shape.slots[slot][d] is not None or whole.slots[slot][d] is None or view.dims[d] < 0:
                        continue
                    places = found.setdefault((view.source, view.dims[d]), [])
                    for factor in factors:
                        for other, own in ((views[k], rules[k]) for k in others):
                            if other is not None:
                                parts = [e for e, of in zip(other.dims, own, strict=True) if factor in of and e >= 0]
                                places += [(other.source, e) for e in parts]
        return {joined: kept for joined, places in found.items() if (kept := [p for p in places if not self._is_summed(*p)])}

    def _is_summed(self, value: ValueIndex, dim: int) -> bool:
        """Whether a contraction of the forward pass sums over the class of a dim, and neither side is made of parameters."""
        return not self.atoms.atoms_of(value, dim) or self.classes().class_of(value, dim) in self._summed

    @cached_property
    def _summed(self) -> frozenset[ClassId]:
        """The classes that a contraction of two activations sums over in the forward pass."""
        found: set[ClassId] = set()
        classes = self.classes()
        for position, row in self.tables.each_row():
            if row.op.name != "stablehlo.dot_general" or self.tables.phase(row) != "forward":
                continue
            if any(view is None or self.tables.of_state_alone[view.source] for view in row.operands):
                continue
            factors = zip(classes.of_row(position), self.atoms.shapes[position].reduction, strict=True)
            found.update(class_ for class_, is_summed in factors if is_summed)
        return frozenset(found)

    @property
    def unjoined(self) -> Structure:
        """The same program with no dims joined."""
        return self._joined.get(frozenset(), self)

    def memo(self, mesh: Mesh, name: str) -> dict[Any, Any]:
        """Answers that planning found for this program on this mesh, whatever was decided; the next plan starts with them."""
        return self._memos.setdefault((mesh, name), {})

    @cached_property
    def groups(self) -> list[Group]:
        """The classes that are one decision in repeated layers."""
        return groups.find(self.classes())

    def wishes(self, mesh: Mesh) -> Wishes:
        """The user's sharding constraints, read for one mesh."""
        if mesh not in self._wishes:
            self._wishes[mesh] = constraints.read(self.tables, self.atoms, self.addresses, mesh)
        return self._wishes[mesh]

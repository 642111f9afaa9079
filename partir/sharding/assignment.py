"""An assignment: ordered actions on a mesh, and the arrays they imply - who gets each axis at each op and argument.

Immutable: `apply` gives a new assignment, `undo` an older one; equality and hash are those of the ordered actions. What an
assignment owes (reshards, reductions) is computed in `plan.py` and nowhere else.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from partir.errors import TilingError, error_text
from partir.mesh import Mesh
from partir.sharding import groups
from partir.sharding import winners as winners_
from partir.sharding.actions import Action, Cut, GatherOnce, Pin, Prefer, ReduceIn, Replicate, Tile
from partir.sharding.atoms import Join, dealt
from partir.sharding.claims import NEVER, Claims, Conflict, Undivided
from partir.sharding.classes import Classes, NamedDim
from partir.sharding.groups import Group
from partir.sharding.indices import AtomIndex, ClassId, FactorId, IntArray, RowIndex, ValueIndex
from partir.sharding.roles import Roles, Sum, roles_of, sums_of
from partir.sharding.scopes import in_scope
from partir.sharding.structure import Structure

Fixed = tuple[tuple[str, ...] | None, ...]
"""The axes of each dim of a result whose layout is fixed; None for a dim that is left open."""


@dataclass(frozen=True, eq=False)
class Assignment:
    """What was decided of one program on one mesh: ordered actions, and what they imply. What a tactic is given.

    Immutable: `apply` makes another one. A tactic looks through the dims of inputs, parameters and results (`input_dims`,
    `parameter_dims`, `result_dims`) and what the forward pass sums over (`forward_sums`); asks of a class whether it can be
    split (`can_tile`, or `is_claimed`, `fits`); and names it in an action (`tile`).
    """

    structure: Structure
    """What is known of the program before any decision, with the dims joined that the actions need (`Structure.joined`)."""
    mesh: Mesh
    actions: tuple[Action, ...] = ()
    """In order: of two that want one axis at one place, the earlier has it."""
    outputs: tuple[tuple[int, Fixed], ...] = ()
    """(result, axes of each dim) of the results whose layout is fixed, by `out_shardings`."""

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Assignment):
            return NotImplemented
        if self.structure is not other.structure:
            return False
        return (self.mesh, self.actions, self.outputs) == (other.mesh, other.actions, other.outputs)

    def __hash__(self) -> int:
        return hash((id(self.structure), self.mesh, self.actions, self.outputs))

    def apply(self, *actions: Action) -> Assignment:
        """This assignment with further actions. Raises for an address, dim or axis that is not there."""
        for action in actions:
            self._check(action)
        after = replace(self, actions=self.actions + actions)
        if any(isinstance(action, Tile | Pin) and self._has_parts(action) for action in actions):
            while joins := after.unfit:
                after = replace(after, structure=after.structure.joined(joins))
        return after

    def restarted(self, actions: Iterable[Action]) -> Assignment:
        """These actions in place of all that were taken."""
        return replace(self, structure=self.structure.unjoined, actions=()).apply(*actions)

    def undo(self, count: int = 1) -> Assignment:
        """This assignment without its last `count` actions."""
        return self.restarted(self.actions[: max(0, len(self.actions) - count)])

    def _has_parts(self, action: Tile | Pin) -> bool:
        """Whether a dim is made of several atoms."""
        value = self.structure.addresses.find(action.value)
        return len(self._atoms(value, action.dim)) > 1

    @cached_property
    def unfit(self) -> frozenset[Join]:
        """Dims that the actions cut over more devices than they have blocks, though as a whole they divide."""
        if not self.structure.can_join:
            return frozenset()
        found = {*self.claims.joins, *self.structure.wishes(self.mesh).joins}
        for argument, dims in self.pinned.items():
            for dim, axes in dims.items():
                devices = self.mesh.size_of(*axes) if axes else 1
                sizes = self.structure.atoms.sizes_of[argument][dim]
                size = self.structure.tables.shapes[argument][dim]
                if size and size % devices == 0 and dealt(sizes, axes, self.mesh.shape) is None:
                    found.add((argument, dim, devices))
        return frozenset(found)

    def _check(self, action: Action) -> None:
        """Raise for an address, a dim or an axis that is not there."""
        if isinstance(action, ReduceIn):
            self.mesh.check(action.axis)
            return
        value = self.structure.addresses.find(action.value)
        if isinstance(action, Pin):
            for axis in action.names:
                self.mesh.check(axis)
        elif not isinstance(action, Cut | GatherOnce):
            self.mesh.check(action.axis)
        if not isinstance(action, Replicate | GatherOnce):
            self.dim_of(value, action.dim)

    def dim_of(self, value: ValueIndex, dim: int) -> int:
        """`dim` counted from the front. Raises TilingError when the value has no such dim."""
        shape = self.structure.tables.shapes[value]
        if not -len(shape) <= dim < len(shape):
            name = self.structure.addresses.names[value]
            raise TilingError(
                error_text(
                    f"cannot tile {name} along dim {dim}",
                    where=f"{name} has shape {list(shape)}",
                    why=f"dim {dim} is out of range for {len(shape)} dims",
                    hint=f"a dim from 0 to {len(shape) - 1}" if shape else "another value: this one is a scalar",
                )
            )
        return dim % len(shape)

    @cached_property
    def classes(self) -> Classes:
        """The dimension classes, ended where `Cut` actions say."""
        find = self.structure.addresses.find
        cuts = {(find(a.value), self.dim_of(find(a.value), a.dim)) for a in self.actions if isinstance(a, Cut)}
        return self.structure.classes(frozenset(cuts))

    @cached_property
    def group_of(self) -> dict[ClassId, Group]:
        """The group of each class: those that are the same decision in repeated layers."""
        cut = any(isinstance(action, Cut) for action in self.actions)
        found = groups.find(self.classes) if cut else self.structure.groups
        return {class_: group for group in found for class_ in group.classes}

    def preferences(self, scope: str, class_: ClassId, axis: str) -> tuple[Prefer, ...]:
        """What lets a class, and those like it in repeated layers, have an axis at the ops of a scope; nothing for classes that
        no argument has."""
        group = self.group_of.get(class_)
        alike = (class_,) if group is None else group.classes
        return tuple(Prefer(scope, *self.classes.address(own), axis) for own in alike if self.classes.argument_dim(own))

    def class_of(self, value: ValueIndex, dim: int) -> ClassId | None:
        """The class a `Tile` of this dim means: that of its outermost atom; None for a dim of one element."""
        found = self._atoms(value, dim)
        return ClassId(int(self.classes.of_node[found[0]])) if found else None

    def _atoms(self, value: ValueIndex, dim: int) -> Sequence[AtomIndex]:
        """The atoms of a dim, major first, of what the value is a view of."""
        view = self.structure.tables.views.get(value)
        if view is not None:
            value, dim = view.source, view.dims[dim]
            if dim < 0:
                return ()
        return self.structure.atoms.atoms_of(value, dim)

    @cached_property
    def scanned(self) -> frozenset[ClassId]:
        """Classes that the program walks along, one slice at a time (layers of a scanned stack, time): tactics leave them."""
        found = (self.class_of(value, dim) for value, dim in self.structure.tables.scanned)
        return frozenset(class_ for class_ in found if class_ is not None)

    # ---- what tactics ask: classes by what they are in the program, and whether they can be split

    @property
    def roles(self) -> Roles:
        """Which rows are the forward pass, and which arguments are parameters."""
        return roles_of(self.structure)

    def dims_of(self, values: Iterable[ValueIndex]) -> list[NamedDim]:
        """The dims of some values, each with the class that a `Tile` of it means; those of one element are left out."""
        found: list[NamedDim] = []
        for value in values:
            for dim in range(len(self.structure.tables.shapes[value])):
                class_ = self.class_of(value, dim)
                if class_ is not None:
                    found.append(NamedDim(self.structure.addresses.names[value], dim, class_, value))
        return found

    @property
    def input_dims(self) -> list[NamedDim]:
        """The dims of all inputs: the arguments that are not state."""
        leaves = self.structure.program.signature.arguments
        return self.dims_of(i for i in self.structure.tables.arguments if leaves[i].role == "input")

    @property
    def parameter_dims(self) -> list[NamedDim]:
        """The dims of all parameters: the state that the forward pass reads."""
        return self.dims_of(self.roles.parameters)

    @property
    def result_dims(self) -> list[NamedDim]:
        """The dims of all results, each as a dim of the value that is returned."""
        tables = self.structure.tables
        views = [(view.source, dim) for view in tables.outputs if view is not None for dim in view.dims if dim >= 0]
        return [found for value, dim in views for found in self.dims_of([value]) if found.dim == dim]

    @cached_property
    def forward_sums(self) -> list[Sum]:
        """Every class that an op of the forward pass sums over, with the op: contractions, means, softmax."""
        return sums_of(self.structure, self.classes)

    def is_claimed(self, class_: ClassId, axis: str) -> bool:
        """Whether an action has asked for this axis for a class already (perhaps in vain: see `is_split`)."""
        return bool(self.claims.order[axis][class_] != NEVER)

    def is_split(self, class_: ClassId, axis: str) -> bool:
        """Whether a class is split over an axis: some action asked for it, and it divides."""
        return bool(self.claims.divides[axis][class_])

    def fits(self, class_: ClassId, axis: str) -> bool:
        """Whether a class divides over an axis, beside the axes that it is split over already."""
        return self.classes.size[class_] % self.mesh.size_of(axis, *self.axes_of_class(class_)) == 0

    def can_tile(self, class_: ClassId, axis: str) -> bool:
        """Whether a class is free on an axis and divides, and is nothing that the program walks along one slice at a time."""
        return class_ not in self.scanned and not self.is_claimed(class_, axis) and self.fits(class_, axis)

    def has_axis(self, argument: ValueIndex, axis: str) -> bool:
        """Whether some dim of an argument is split over an axis."""
        return any(axis in axes for axes in self.argument_axes[argument])

    def tile(self, class_: ClassId, axis: str) -> Tile:
        """The action that splits a class over an axis. Raises NoEffectError for a class that no action can name."""
        return Tile(*self.classes.address(class_), axis)

    # ---- what the actions claim

    @cached_property
    def claims(self) -> Claims:
        """What the `Tile` actions ask for, in their order: which class has which axis, and what does not divide."""
        classes, find = self.classes, self.structure.addresses.find
        order = {axis: np.full(classes.count + 1, NEVER, dtype=np.int64) for axis in self.mesh.names}
        divides = {axis: np.zeros(classes.count + 1, dtype=np.int64) for axis in self.mesh.names}
        cut: dict[ClassId, int] = {}
        undivided: list[Undivided] = []
        joins: list[Join] = []
        for position, action in enumerate(self.actions):
            if isinstance(action, Pin) and (misfit := self._misfit(action)) is not None:
                undivided.append(misfit)
            if not isinstance(action, Tile):
                continue
            value = find(action.value)
            dim = self.dim_of(value, action.dim)
            devices = self.mesh.size_of(action.axis)
            class_, outer = self._open_class(value, dim, order[action.axis], cut)
            if class_ is None:
                continue
            order[action.axis][class_] = position
            devices *= cut.get(class_, 1)
            size = self.structure.tables.shapes[value][dim]
            if classes.size[class_] % devices == 0:
                divides[action.axis][class_] = 1
                cut[class_] = devices
            elif size % (outer * devices) == 0 and self.structure.can_join:
                view = self.structure.tables.views.get(value)
                joins.append((value, dim, outer * devices) if view is None else (view.source, view.dims[dim], outer * devices))
            else:
                undivided.append(Undivided(action.value, dim, classes.size[class_], action.axis, devices))
        return Claims(order=order, divides=divides, undivided=tuple(undivided), joins=tuple(joins))

    def _misfit(self, pin: Pin) -> Undivided | None:
        """Why a `Pin`, of a strategy for other sizes, cannot hold."""
        value = self.structure.addresses.find(pin.value)
        dim = self.dim_of(value, pin.dim)
        size, devices = self.structure.tables.shapes[value][dim], self.mesh.size_of(*pin.names) if pin.names else 1
        return Undivided(pin.value, dim, size, pin.axes, devices) if size % devices else None

    def _open_class(self, value: ValueIndex, dim: int, order: IntArray, cut: dict[ClassId, int]) -> tuple[ClassId | None, int]:
        """The class that a `Tile` of this dim is to claim, where `order` says who has its axis: that of the outermost atom that
        is not cut to single elements; and the devices that the atoms outside it are cut over. None where it has the axis."""
        atoms = self._atoms(value, dim)
        outer = 1
        for atom in atoms:
            class_ = ClassId(int(self.classes.of_node[atom]))
            size = self.classes.size[class_]
            if not size or order[class_] != NEVER:
                return None, outer
            if cut.get(class_, 1) < size or atom == atoms[-1]:
                return class_, outer
            outer *= size
        return None, outer

    @cached_property
    def reach(self) -> Claims:
        """The claims of the actions, and after all of them two kinds that follow:

        - where an op splits a joined dim, its axes go on to a part: with `x.reshape(4, 16)` of 64 rows over 8 devices, the 64
          cannot be cut as 4 x 16 over 8, so the 16 is;
        - what only a result reaches whose layout is fixed (`outputs`) is made as it will leave.
        """
        if not self.outputs and not self.structure.joins:
            return self.claims
        claims = self.claims
        order = {axis: own.copy() for axis, own in claims.order.items()}
        divides = {axis: own.copy() for axis, own in claims.divides.items()}
        later = replace(claims, order=order, divides=divides)
        cut: dict[ClassId, int] = {}
        for axis, own in divides.items():
            for class_ in map(ClassId, np.flatnonzero(own).tolist()):
                cut[class_] = cut.get(class_, 1) * self.mesh.size_of(axis)
        for (value, dim), places in self.structure.passages.items():
            source = self.class_of(value, dim)
            axes = self.axes_of_class(source) if source is not None else ()
            devices = self.mesh.size_of(*axes) if axes else 1
            fit = [p for p in places if (c := self.class_of(*p)) is not None and self.classes.size[c] % devices == 0]
            for axis in axes if fit else ():
                self._claim_late(later, cut, *fit[0], axis)
        for result, dims in self.outputs:
            view = self.structure.tables.outputs[result]
            for axes, source in zip(dims, view.dims, strict=False) if view is not None else ():
                for axis in axes or () if source >= 0 else ():
                    assert view is not None
                    self._claim_late(later, cut, view.source, source, axis)
        return later

    def _claim_late(self, claims: Claims, cut: dict[ClassId, int], value: ValueIndex, dim: int, axis: str) -> None:
        """Claim the class of a dim after all others, where nobody has it and it divides."""
        class_, _ = self._open_class(value, dim, claims.order[axis], cut)
        if class_ is None:
            return
        devices = self.mesh.size_of(axis) * cut.get(class_, 1)
        if self.classes.size[class_] % devices == 0:
            claims.order[axis][class_] = len(self.actions) + self.mesh.names.index(axis)
            claims.divides[axis][class_] = 1
            cut[class_] = devices

    def axes_of_class(self, class_: ClassId) -> tuple[str, ...]:
        """The axes a class is cut over, major first."""
        claims = self.claims
        taken = [axis for axis in self.mesh.names if claims.divides[axis][class_]]
        return tuple(sorted(taken, key=lambda axis: claims.order[axis][class_]))

    @cached_property
    def winners(self) -> dict[str, IntArray]:
        """By axis, [rows] int64: the factor (numbered as `classes.of_factor`) that has it at each row, or -1."""
        preferred = {axis: self._preferred(axis) for axis in self.mesh.names}
        return winners_.winners(self.classes, self.mesh, self.reach, preferred, self.structure.wishes(self.mesh))

    def _preferred(self, axis: str) -> Iterable[tuple[FactorId, int]]:
        """(factor, order) of the factors that a `Prefer` puts before all claims, first match first."""
        classes, find = self.classes, self.structure.addresses.find
        taken: set[RowIndex] = set()
        for position, action in enumerate(self.actions):
            if not isinstance(action, Prefer) or action.axis != axis:
                continue
            class_ = self.class_of(find(action.value), action.dim)
            if class_ is None or not self.reach.divides[axis][class_]:
                continue
            for factor in np.flatnonzero(classes.of_factor == class_).tolist():
                row = RowIndex(int(classes.row_of_factor[factor]))
                scope = self.structure.tables.scope(self.structure.tables.rows[row])
                if row not in taken and in_scope(action.scope, scope):
                    taken.add(row)
                    yield FactorId(factor), position - len(self.actions)

    @cached_property
    def pins(self) -> dict[tuple[ValueIndex, int], int]:
        """By (argument, dim) the position of its `Pin` among the actions; the first one counts."""
        found: dict[tuple[ValueIndex, int], int] = {}
        for position, action in enumerate(self.actions):
            if isinstance(action, Pin):
                value = self.structure.addresses.find(action.value)
                found.setdefault((value, self.dim_of(value, action.dim)), position)
        return found

    @cached_property
    def pinned(self) -> dict[ValueIndex, dict[int, tuple[str, ...]]]:
        """By argument and dim, the axes that a `Pin` says."""
        found: dict[ValueIndex, dict[int, tuple[str, ...]]] = {}
        for (value, dim), position in self.pins.items():
            action = self.actions[position]
            assert isinstance(action, Pin)
            found.setdefault(value, {})[dim] = action.names
        return found

    @cached_property
    def argument_axes(self) -> list[tuple[tuple[str, ...], ...]]:
        """[arguments][atoms] the axes that each atom is cut over at the boundary, major first.

        The atom whose class claimed an axis first has it, unless a `Replicate` came before that; a `Pin` says it outright.
        """
        atoms, classes, tables = self.structure.atoms, self.classes, self.structure.tables
        kept: dict[tuple[ValueIndex, str], int] = {}  # by argument and axis, the position of the `Replicate` that keeps it
        for position, action in enumerate(self.actions):
            if isinstance(action, Replicate):
                kept.setdefault((self.structure.addresses.find(action.value), action.axis), position)
        order = {axis: self.reach.order[axis].tolist() for axis in self.mesh.names}
        divides = {axis: self.reach.divides[axis].tolist() for axis in self.mesh.names}
        result: list[tuple[tuple[str, ...], ...]] = []
        for argument in tables.arguments:
            first, count = atoms.start[argument], atoms.count_of(argument)
            own = classes.of_node[first : first + count].tolist()
            taken: list[list[str]] = [[] for _ in own]
            fixed = self._dealt_pins(argument) if argument in self.pinned else {}
            said = {axis for axes in fixed.values() for axis in axes}
            for axis, claimed in order.items():
                orders = [claimed[class_] for class_ in own]
                if fixed:
                    orders = [NEVER if k in fixed else earlier for k, earlier in enumerate(orders)]
                earliest = min(orders, default=NEVER)
                if earliest >= kept.get((argument, axis), NEVER) or axis in said:
                    continue
                best = orders.index(earliest)
                if divides[axis][own[best]]:
                    taken[best].append(axis)
            for k, axes in fixed.items():
                taken[k] = list(axes)
            result.append(
                tuple(
                    tuple(sorted(axes, key=lambda axis: order[axis][class_]) if len(axes) > 1 and k not in fixed else axes)
                    for k, (axes, class_) in enumerate(zip(taken, own, strict=True))
                )
            )
        return result

    def lies(self, argument: ValueIndex, dim: int) -> tuple[str, ...]:
        """The axes that a dim of an argument is cut over at the boundary, major first."""
        first = self.structure.atoms.place_in_value(argument, dim, 0)
        count = len(self.structure.atoms.sizes_of[argument][dim])
        return tuple(axis for axes in self.argument_axes[argument][first : first + count] for axis in axes)

    def _dealt_pins(self, argument: ValueIndex) -> dict[int, tuple[str, ...]]:
        """The axes of each atom (numbered within the argument) of those dims of an argument that are pinned."""
        found: dict[int, tuple[str, ...]] = {}
        first = 0
        for dim, sizes in enumerate(self.structure.atoms.sizes_of[argument]):
            axes = self.pinned[argument].get(dim)
            if axes is not None:
                parts = dealt(sizes, axes, self.mesh.shape)
                found.update((first + k, own) for k, own in enumerate(parts if parts is not None else [()] * len(sizes)))
            first += len(sizes)
        return found

    @cached_property
    def conflicts(self) -> list[Conflict]:
        """Every op at which more than one class wanted the same axis."""
        classes = self.classes
        found: list[Conflict] = []
        for axis in self.mesh.names:
            wanted = np.flatnonzero(self.reach.divides[axis][classes.of_factor] == 1)
            by_row: dict[RowIndex, list[FactorId]] = {}
            for factor in map(FactorId, wanted.tolist()):
                by_row.setdefault(RowIndex(int(classes.row_of_factor[factor])), []).append(factor)
            for row, factors in by_row.items():
                if len(factors) > 1:
                    winner = FactorId(int(self.winners[axis][row]))
                    found.append(Conflict(row, axis, winner, tuple(f for f in factors if f != winner)))
        return found

    @cached_property
    def gathered_once(self) -> frozenset[ValueIndex]:
        """The parameters (and other state) that are gathered once in a step."""
        leaves, find = self.structure.program.signature.arguments, self.structure.addresses.find
        named = {find(action.value) for action in self.actions if isinstance(action, GatherOnce)}
        return frozenset(value for value in named if value < len(leaves) and leaves[value].role == "state")

    @cached_property
    def summed_in(self) -> dict[str, str]:
        """By axis, the dtype that sums over it are asked for in; the last `ReduceIn` of an axis counts."""
        return {action.axis: action.dtype for action in self.actions if isinstance(action, ReduceIn)}

    def same_effect(self, other: Assignment) -> bool:
        """Whether two assignments decide the same at every op and argument, whatever their actions say."""
        return (
            self.argument_axes == other.argument_axes
            and self.gathered_once == other.gathered_once
            and self.summed_in == other.summed_in
            and all(np.array_equal(self.winners[axis], other.winners[axis]) for axis in self.mesh.names)
        )

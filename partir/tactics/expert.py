"""Expert parallelism (Lepikhin et al. 2020, GShard): a device keeps some of the experts, and tokens travel to them and back."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from partir.dialect.kinds import CONTRACTIONS
from partir.errors import NoEffectError, error_text
from partir.sharding.actions import Action, Cut, Prefer, Tile
from partir.sharding.assignment import Assignment
from partir.sharding.classes import one_of_each
from partir.sharding.indices import AtomIndex, ClassId, FactorId, RowIndex, ValueIndex
from partir.sharding.roles import roles_of
from partir.sharding.structure import Structure
from partir.tactics.data_parallel import DataParallel
from partir.tactics.tactic import holds


@dataclass(frozen=True)
class Experts:
    """Networks side by side: `weights` are the (parameter, dim) pairs that count them, `ends` the (value, dim) pairs at which
    their class meets the class of the gates: what is sent to them, what they make, and the gradients of both."""

    weights: tuple[tuple[ValueIndex, int], ...]
    ends: tuple[tuple[ValueIndex, int], ...]


@dataclass(frozen=True)
class ExpertParallel:
    """Tile the experts over `axis`, and the batch where no tactic before has: 2 all_to_all per layer and direction.

    Wherever tokens are at home (attention, gates, and the contractions that send and fetch) the axis cuts the batch; between
    these, where the weights of experts are, it cuts the experts. What is sent, what is fetched, and the gradients of both then
    change from one to the other: an all_to_all each. Gradients of experts are summed on their own device; all other
    parameters, the gate's among them, are whole, as under data parallelism.

    Experts are a dim of a parameter that is a batching dim of its contraction with an activation, that no input has, and that
    came into the activation by a contraction or a look-up of activations (which picked the tokens). No names are looked at.

    It comes before ZeRO on the same axis, and best after the tactics that split the batch over other axes: an axis that is not
    the innermost of its dim takes two all_to_alls to move.

    Raises NoEffectError for a model without experts, where their number does not divide, and where other tactics have their
    weights.
    """

    axis: str

    def actions(self, assignment: Assignment) -> Sequence[Action]:
        assignment.mesh.check(self.axis)
        names = assignment.structure.addresses.names
        chosen, misfits = self._choose(assignment)
        cuts = [Cut(names[value], dim) for experts in chosen for value, dim in experts.ends]
        actions: list[Action] = [*self._batch(assignment), *(cut for cut in cuts if cut not in assignment.actions)]
        # A number of experts that does not divide is asked for all the same: so the report names it.
        actions += [Tile(names[value], dim, self.axis) for experts in misfits for value, dim in experts.weights[:1]]
        after = assignment.apply(*actions)
        weights = [(value, dim) for experts in chosen for value, dim in experts.weights]
        dims = [found for value, dim in weights for found in after.dims_of([value]) if found.dim == dim]
        for weight in one_of_each(dims):
            actions += [Tile(weight.name, weight.dim, self.axis), Prefer("*", weight.name, weight.dim, self.axis)]
        return actions

    def _choose(self, assignment: Assignment) -> tuple[list[Experts], list[Experts]]:
        """The experts whose class and weights are free on the axis: those whose number divides, and those it does not."""
        found = find_experts(assignment.structure)
        fits: list[Experts] = []
        misfits: list[Experts] = []
        sizes: list[str] = []
        devices = assignment.mesh.size_of(self.axis)
        for experts in found:
            value, dim = experts.weights[0]
            class_ = assignment.class_of(value, dim)
            taken = any(assignment.has_axis(weight, self.axis) for weight, _ in experts.weights)
            if class_ is None or taken or assignment.is_claimed(class_, self.axis):
                continue
            if assignment.fits(class_, self.axis):
                fits.append(experts)
            else:
                misfits.append(experts)
                name, size = assignment.structure.addresses.names[value], assignment.classes.size[class_]
                sizes.append(f"{name} dim {dim} ({size})")
        if fits:
            return fits, misfits
        if not found:
            why = "no parameter has a dim that counts networks to which tokens are sent"
            hint = "Manual with the parameters and dims you mean"
        elif misfits:
            why = f'their number does not divide by the {devices} devices of "{self.axis}": {", ".join(sizes[:4])}'
            hint = "a smaller axis, or sizes that divide"
        else:
            why = f'of {len(found)} layers with experts none has weights that are free on "{self.axis}"'
            hint = "put it before the tactic that took them; ZeRO comes after"
        names = assignment.structure.addresses.names
        held = [Tile(names[value], dim, self.axis) for experts in found for value, dim in experts.weights]
        raise NoEffectError(error_text(f"{self!r} finds no experts to split", why=why, hint=hint), held)

    def _batch(self, assignment: Assignment) -> Sequence[Action]:
        """What data parallelism would do, as far as it is not done."""
        leaves = assignment.structure.program.signature.arguments
        has_inputs = any(leaf.role == "input" and leaf.shape for leaf in leaves)
        actions = DataParallel(self.axis).actions(assignment) if has_inputs else ()
        return [action for action in actions if not holds(assignment, action)]


def find_experts(structure: Structure) -> list[Experts]:
    """The experts of each layer that has some, in program order."""
    parameters = set(roles_of(structure).parameters)
    found: list[Experts] = []
    for class_, stacked in _side_by_side(structure).items():
        inside, ends = _reach(structure, class_, stacked)
        owners = [structure.atoms.owner_of(atom) for atom in sorted(inside)]
        weights = tuple((value, dim) for value, dim, part in owners if value in parameters and part == 0)
        if ends and weights:
            owners = [structure.atoms.owner_of(atom) for atom in sorted(ends)]
            found.append(Experts(weights, tuple(dict.fromkeys((value, dim) for value, dim, _ in owners))))
    return found


def _side_by_side(structure: Structure) -> dict[ClassId, set[AtomIndex]]:
    """Classes that are a batching dim of contractions of a parameter with an activation and that no input has, each with the
    atoms of those parameters."""
    roles, classes, tables = roles_of(structure), structure.classes(), structure.tables
    inputs = {i for i, leaf in enumerate(tables.program.signature.arguments) if leaf.role == "input"}
    found: dict[ClassId, set[AtomIndex]] = {}
    for factor in np.flatnonzero(classes.of_factor >= 0).tolist():
        position, class_ = int(classes.row_of_factor[factor]), ClassId(int(classes.of_factor[factor]))
        if tables.rows[position].op.name != "stablehlo.dot_general" or not roles.forward[position]:
            continue
        place = _Place.of(structure, FactorId(factor))
        if place.is_batching and sum(map(roles.of_parameters.__getitem__, place.sources)) == 1:
            values = [(structure.atoms.owner_of(atom)[0], atom) for atom in place.atoms]
            found.setdefault(class_, set()).update(atom for value, atom in values if roles.of_parameters[value])
    return {c: atoms for c, atoms in found.items() if not any(a in inputs for a, _, _ in classes.arguments_by_class[c])}


def _reach(structure: Structure, class_: ClassId, stacked: set[AtomIndex]) -> tuple[set[AtomIndex], set[AtomIndex]]:
    """The atoms of a class that belong to the experts, given those of their weights; and those of them that others read or
    make: none where no tokens are sent to the experts.

    The experts end where activations are contracted or looked up and the class is no batching dim: there tokens are sent and
    fetched. They also end at what is joined, element by element, with the values of a gate (a class that a contraction with
    a parameter made).
    """
    classes, roles = structure.classes(), roles_of(structure)
    within: list[set[AtomIndex]] = []
    contractions: list[set[AtomIndex]] = []
    border: list[set[AtomIndex]] = []
    gates: set[AtomIndex] = set()
    sends: set[AtomIndex] = set()
    for factor in np.flatnonzero(classes.of_factor == class_).tolist():
        place = _Place.of(structure, FactorId(factor))
        if not place.is_contraction:
            within.append(place.atoms)
        elif place.is_batching:
            contractions.append(place.atoms)
        elif not any(roles.of_parameters[source] for source in place.sources):
            border.append(place.atoms)
            sends |= place.results if roles.forward[place.position] else set()
        elif roles.forward[place.position]:
            gates |= place.atoms
    gates = _flood(within, gates)
    inside = _flood([*contractions, *(atoms for atoms in within if atoms.isdisjoint(gates))], stacked)
    outside = gates.union(*border)
    return inside, inside & outside if sends & (inside | gates) else set()


def _flood(rows: Sequence[set[AtomIndex]], start: set[AtomIndex]) -> set[AtomIndex]:
    """The atoms that are reached from some, by rows that have several of them.

    >>> sorted(_flood([{1, 2}, {2, 3}, {4, 5}], {1}))
    [1, 2, 3]
    """
    rows_of: dict[AtomIndex, list[set[AtomIndex]]] = {}
    for atoms in rows:
        for atom in atoms:
            rows_of.setdefault(atom, []).append(atoms)
    reached, left = set(start), list(start)
    while left:
        for atoms in rows_of.pop(left.pop(), ()):
            left += atoms - reached
            reached |= atoms
    return reached


@dataclass(frozen=True)
class _Place:
    """A class at one op: the atoms it has there (in operands and results; in results alone), and what the op reads."""

    position: RowIndex
    atoms: set[AtomIndex]
    results: set[AtomIndex]
    sources: tuple[ValueIndex, ...]
    is_contraction: bool
    is_batching: bool
    """Whether every operand and result has the class."""

    @classmethod
    def of(cls, structure: Structure, factor: FactorId) -> _Place:
        """The class of a factor at the op that has it."""
        tables, atoms, classes = structure.tables, structure.atoms, structure.classes()
        position = RowIndex(int(classes.row_of_factor[factor]))
        row, shape = tables.rows[position], atoms.shapes[position]
        local = atoms.local_factor(position, factor)
        views = [*row.operands, *(tables.itself(result) for result in row.results)]
        own: list[set[AtomIndex]] = []
        for view, dims in zip(views, shape.slots, strict=True):
            own.append(
                {
                    atoms.atoms_of(view.source, view.dims[d])[factors.index(local)]
                    for d, factors in enumerate(dims)
                    if view is not None and factors is not None and local in factors and view.dims[d] >= 0
                }
            )
        class_ = classes.of_factor[factor]
        tied = [{atom for atom in found if classes.of_node[atom] == class_} for found in own]
        return cls(
            position=position,
            atoms=set[AtomIndex]().union(*tied),
            results=set[AtomIndex]().union(*tied[len(row.operands) :]),
            sources=tuple(view.source for view in row.operands if view is not None),
            is_contraction=row.op.name in CONTRACTIONS,
            is_batching=all(own),
        )

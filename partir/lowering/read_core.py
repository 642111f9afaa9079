"""Core IR to an assignment: the program without loops, and the actions that put the same loops back.

Each loop says that a class has an axis at an op. From that follow the tiles (a class that has an axis anywhere was tiled on
it), their order (where several classes want one axis, the one that has it came first), and whatever else it takes: `Prefer`
where orders contradict, `Replicate` for arguments kept whole, `Cut` where a class ends. What is found is checked.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from xdsl.dialects.builtin import ModuleOp

from partir.errors import IRError, word
from partir.lowering import boundary
from partir.lowering.evidence import Evidence, gather, over_atoms, refused
from partir.lowering.intricate import check_intricate
from partir.lowering.nest import Cut as RowCut
from partir.lowering.nest import Nests
from partir.lowering.precedence import Contest, in_order, preferences
from partir.lowering.strip import Stripped, strip
from partir.mesh import Mesh
from partir.sharding import plan as plan_
from partir.sharding.actions import Action, Cut, Prefer, Replicate, Tile
from partir.sharding.assignment import Assignment, Structure
from partir.sharding.classes import Classes
from partir.sharding.layout import Axes, spec_of
from partir.sharding.plan import Plan

Claim = tuple[int, str]
"""A class and a mesh axis."""

ROUNDS = 64
"""How often what is not explained yet may lead to further actions."""


def read_core(module: ModuleOp) -> Assignment:
    """The assignment a Core module is written from; materialised, it gives the same loops.

    A module without loops is a program on which nothing is decided yet but what its arguments' shardings and its sharding
    constraints say. Raises IRError where loops are no tiling, or no actions lead to them.
    """
    mesh = boundary.mesh_of(module)
    stripped = strip(module)
    structure = Structure.of(stripped.program)
    evidence = gather(structure, stripped, boundary.main_of(module), mesh)
    reader = _Reader(structure, mesh, evidence)
    if not stripped.nests:
        return reader.undecided()
    assignment, plan = reader.run()
    check_intricate(plan, stripped)
    return assignment


@dataclass(frozen=True)
class _Wrong:
    """A row whose loops differ on an axis: the sub-factor that has it in the IR, and by the actions found so far."""

    row: int
    axis: str
    read: int | None
    made: int | None


class _Reader:
    def __init__(self, structure: Structure, mesh: Mesh, evidence: Evidence) -> None:
        self.structure = structure
        self.tables = structure.tables
        self.atoms = structure.atoms
        self.names = structure.addresses.names
        self.mesh = mesh
        self.evidence = evidence
        self.of_atoms = self._argument_atoms()
        self.pinned = {(i, axis): None for i, axes in enumerate(evidence.pinned) for axis in axes}
        self.ends: dict[tuple[int, int], None] = {}
        """(value, dim) of the `Cut`s."""
        self.whole: dict[Claim, set[Claim]] = {}
        """Claims of classes that do not divide, which hold off the claims of others."""

    def undecided(self) -> Assignment:
        """The start of a module without loops."""
        fresh = all(axes is None for axes in self.evidence.arguments)
        tiles = [
            Tile(self.names[i], dim, axis)
            for i, axes in enumerate(self.evidence.arguments)
            for dim, own in enumerate(axes or ())
            for axis in own
        ]
        replicates = [Replicate(self.names[i], axis) for i, axis in self.pinned]
        assignment = Assignment(self.structure, self.mesh, (*replicates, *tiles))
        plan = plan_.make(assignment)
        if fresh or any(cuts for _, cuts in self._rows(plan)):
            assignment = assignment.apply(*self.structure.wishes(self.mesh).actions)
            plan = plan_.make(assignment)
        return self._with_outputs(assignment, plan)

    def run(self) -> tuple[Assignment, Plan]:
        """The actions that explain all loops, found by and by."""
        wrong: list[_Wrong] = []
        for _ in range(ROUNDS):
            assignment = self.solve()
            plan = plan_.make(assignment)
            wrong = self.wrong(plan)
            if not self.learn_pins(plan) and not self.learn(assignment, wrong):
                break
        if wrong:
            raise self.unexplained(wrong)
        assignment = self._with_outputs(assignment, plan)
        plan = plan_.make(assignment)
        for argument, axes in enumerate(self.evidence.arguments):
            if axes is not None and (made := _dim_axes(plan, argument)) != axes:
                raise IRError(
                    word(
                        f"argument {self.names[argument]} is not sharded as the loops say",
                        where=f"its sdy.sharding says {_said(axes)}",
                        why=f"the loops, and what is sharded like them, make it {_said(made)}",
                    )
                )
        return assignment, plan

    # ---- what is seen -------------------------------------------------------------------------------------------------

    def _argument_atoms(self) -> list[list[list[str]]]:
        """The axes of each atom of each argument, as far as the IR says."""
        found: list[list[list[str]]] = []
        for argument, axes in enumerate(self.evidence.arguments):
            per_atom: list[list[str]] = []
            for dim, sizes in enumerate(self.atoms.sizes_of[argument]):
                own = over_atoms(sizes, axes[dim], self.mesh) if axes is not None else [[] for _ in sizes]
                if own is None or (axes is not None and axes[dim] and not sizes):
                    shape = self.tables.shapes[argument]
                    raise IRError(
                        word(
                            f"argument {self.names[argument]} cannot be sharded as it says",
                            where=f"dim {dim} of {list(shape)} over {', '.join(axes[dim] if axes else ())}",
                            why=f"{shape[dim]}, in parts {list(sizes)}, does not divide by them",
                        )
                    )
                per_atom += own
            found.append(per_atom)
        return found

    def classes_of_row(self, classes: Classes, position: int) -> list[int]:
        """The class of each sub-factor of a row."""
        first = self.atoms.factor_start[position] - self.atoms.atom_count
        return classes.of_factor[first : first + len(self.atoms.shapes[position].sizes)].tolist()

    # ---- from loops to actions ----------------------------------------------------------------------------------------

    def solve(self) -> Assignment:
        """The actions that all loops seen ask for, in an order that has the right class win wherever one can."""
        classes = self.structure.classes(frozenset(self.ends))
        claims: dict[Claim, None] = {}
        hard: set[tuple[Claim, Claim]] = set()
        of_argument = [
            classes.of_node[self.atoms.start[i] : self.atoms.start[i] + len(own)].tolist()
            for i, own in enumerate(self.of_atoms)
        ]
        of_row = [self.classes_of_row(classes, p) if cuts else [] for p, cuts in enumerate(self.evidence.rows)]
        for own, axes in zip(of_argument, self.of_atoms, strict=True):
            for class_, taken in zip(own, axes, strict=True):
                chain = [(class_, axis) for axis in taken]
                claims.update(dict.fromkeys(chain))
                hard.update(zip(chain, chain[1:], strict=False))
        for position, cuts in enumerate(self.evidence.rows):
            if self.tables.rows[position].kind == "claim":
                claims.update(((of_row[position][factor], axis), None) for axis, factor in cuts)
        for claim, after in self.whole.items():
            claims[claim] = None
            hard.update((claim, other) for other in after)
            hard.update((other, claim) for other in claims if other[0] == claim[0] and other not in self.whole)
        for own, axes in zip(of_argument, self.of_atoms, strict=True):
            for class_, taken in zip(own, axes, strict=True):
                others = [other for other in own if other != class_]
                hard.update(((class_, a), (other, a)) for a in taken for other in others if (other, a) in claims)
        soft: dict[tuple[Claim, Claim], int] = {}
        contests: dict[str, list[Contest]] = {axis: [] for axis in self.mesh.names}
        for position, cuts in enumerate(self.evidence.rows):
            own, row = of_row[position], self.tables.rows[position]
            chain = [claim for axis, factor in cuts if (claim := (own[factor], axis)) in claims]
            hard.update((a, b) for a, b in zip(chain, chain[1:], strict=False) if a != b)
            for axis, factor in cuts if row.kind == "claim" else ():
                winner = own[factor]
                losers = tuple(other for other in set(own) if other != winner and (other, axis) in claims)
                for loser in losers:
                    edge = (winner, axis), (loser, axis)
                    soft[edge] = soft.get(edge, 0) + 1
                if losers:
                    contests[axis].append((self.tables.scope(row), winner, losers))
        return self._assigned(classes, list(claims), hard, soft, contests)

    def _assigned(
        self,
        classes: Classes,
        claims: Sequence[Claim],
        hard: set[tuple[Claim, Claim]],
        soft: dict[tuple[Claim, Claim], int],
        contests: dict[str, list[Contest]],
    ) -> Assignment:
        ordered = in_order(claims, hard, soft)
        if ordered is None:
            raise self.contradiction(claims)
        actions: list[Action] = [Cut(self.names[value], dim) for value, dim in self.ends]
        actions += [Replicate(self.names[i], axis) for i, axis in self.pinned]
        address = _Addresses(self.structure, classes)
        actions += [Tile(*address.of(class_), axis) for class_, axis in ordered[0]]
        for axis in self.mesh.names:
            broken = {
                scope
                for scope, winner, losers in contests[axis]
                if any(((winner, axis), (loser, axis)) in ordered[1] for loser in losers)
            }
            found = preferences(contests[axis], broken)
            if found is None:
                raise self.contradiction(claims)
            actions += [Prefer(scope, *address.of(class_), axis) for scope, class_ in found]
        return Assignment(self.structure, self.mesh, tuple(actions))

    # ---- what is not explained yet ------------------------------------------------------------------------------------

    def _rows(self, plan: Plan) -> Iterator[tuple[int, tuple[RowCut, ...]]]:
        nests = Nests(plan)
        for position, row in enumerate(self.tables.rows):
            nest = nests.of(position, row)
            yield position, nest.cuts if nest is not None else ()

    def wrong(self, plan: Plan) -> list[_Wrong]:
        """Where the loops of a plan differ from those in the IR."""
        found: list[_Wrong] = []
        for position, made in self._rows(plan):
            read = self.evidence.rows[position]
            if made == read:
                continue
            a, b = dict(read), dict(made)
            differ = [axis for axis in self.mesh.names if a.get(axis) != b.get(axis)] or [read[0][0]]
            found += [_Wrong(position, axis, a.get(axis), b.get(axis)) for axis in differ]
        return found

    def learn_pins(self, plan: Plan) -> bool:
        """Arguments that the actions shard and the IR keeps whole on an axis are kept so by `Replicate`."""
        count = len(self.pinned)
        for argument, axes in enumerate(self.evidence.arguments):
            if axes is None:
                continue
            made = {axis for own in _dim_axes(plan, argument) for axis in own}
            for axis in made.difference(axis for own in axes for axis in own):
                self.pinned[argument, axis] = None
        return len(self.pinned) > count

    def learn(self, assignment: Assignment, wrong: Sequence[_Wrong]) -> bool:
        """Ops that the actions cut and the IR does not: a class that does not divide came first there, or a class ends."""
        for item in wrong:
            if item.read is None and item.made is not None and self.tables.rows[item.row].kind == "claim":
                claim = self._held_off_by(assignment.classes, item)
                if claim is not None:
                    winner = self.classes_of_row(assignment.classes, item.row)[item.made], item.axis
                    self.whole.setdefault(claim, set()).add(winner)
                    return True
        for item in wrong:
            if item.read is None and item.made is not None:
                end = self._end(item)
                if end is not None and end not in self.ends:
                    self.ends[end] = None
                    self.whole.clear()
                    return True
        return False

    def _held_off_by(self, classes: Classes, item: _Wrong) -> Claim | None:
        """A class of a row that does not divide on an axis, if it can be what keeps the others from it."""
        own = self.classes_of_row(classes, item.row)
        assert item.made is not None
        winner = own[item.made], item.axis
        address = _Addresses(self.structure, classes)
        for class_ in own:
            claim = class_, item.axis
            if class_ < 0 or claim == winner or winner in self.whole.get(claim, ()) or not address.has(class_):
                continue
            devices = self.mesh.size_of(item.axis, *self._axes_seen(classes, class_))
            if classes.size[class_] % devices:
                return claim
        return None

    def _axes_seen(self, classes: Classes, class_: int) -> set[str]:
        """The axes a class is cut over anywhere in the IR."""
        found: set[str] = set()
        for position, cuts in enumerate(self.evidence.rows):
            if cuts:
                own = self.classes_of_row(classes, position)
                found.update(axis for axis, factor in cuts if own[factor] == class_)
        return found

    def _end(self, item: _Wrong) -> tuple[int, int] | None:
        """The value between an op that is not cut and one that is, or an argument that is: there the class ends."""
        row, shape = self.tables.rows[item.row], self.atoms.shapes[item.row]
        for view, dims in zip(row.operands, shape.slots[: shape.operand_count], strict=True):
            for d, pieces in enumerate(dims) if view is not None else ():
                assert view is not None
                if pieces is not None and item.made in pieces and view.dims[d] >= 0:
                    end = view.source, view.dims[d]
                    if self._lies(*end, item.axis) and end not in self.ends:
                        return end
        for i, result in enumerate(row.results):
            for d, pieces in enumerate(shape.slots[shape.operand_count + i]):
                if pieces is not None and item.made in pieces and self._read_cut(result, d, item.axis):
                    return result, d
        return None

    def _lies(self, value: int, dim: int, axis: str) -> bool:
        """Whether a value comes with its dim cut over an axis."""
        if value < self.tables.argument_count:
            axes = self.evidence.arguments[value]
            return axes is not None and axis in axes[dim]
        position = self.tables.producer[value]
        factor = dict(self.evidence.rows[position]).get(axis)
        shape = self.atoms.shapes[position]
        number = self.tables.rows[position].results.index(value)
        pieces = shape.slots[shape.operand_count + number][dim]
        return factor is not None and pieces is not None and factor in pieces

    def _read_cut(self, value: int, dim: int, axis: str) -> bool:
        """Whether some op reads a value with its dim cut over an axis."""
        for position, slot in self.tables.uses[value]:
            if position < 0 or slot < 0:
                continue
            factor = dict(self.evidence.rows[position]).get(axis)
            view = self.tables.rows[position].operands[slot]
            assert view is not None
            for d, pieces in enumerate(self.atoms.shapes[position].slots[slot]):
                if factor is not None and pieces is not None and factor in pieces and view.dims[d] == dim:
                    return True
        return False

    # ---- results and errors -------------------------------------------------------------------------------------------

    def _with_outputs(self, assignment: Assignment, plan: Plan) -> Assignment:
        """Results that leave otherwise than the plan would have them are fixed, as by `out_shardings`."""
        outputs: list[tuple[int, tuple[Axes, ...]]] = []
        for result, axes in enumerate(self.evidence.results):
            if axes is None:
                continue
            made = _entries(spec_of(plan.outputs[result]), len(axes))
            if made == axes:
                continue
            shape = self.structure.program.signature.results[result].shape
            for dim, own in enumerate(axes):
                if shape[dim] % self.mesh.size_of(*own):
                    raise IRError(
                        word(
                            f"result {result} cannot be sharded as it says",
                            where=f"dim {dim} of {list(shape)} over {', '.join(own)}",
                            why=f"{shape[dim]} does not divide by {self.mesh.size_of(*own)}",
                        )
                    )
            outputs.append((result, tuple(axes)))
        return Assignment(assignment.structure, assignment.mesh, assignment.actions, tuple(outputs))

    def unexplained(self, wrong: Sequence[_Wrong]) -> IRError:
        first = wrong[0]
        row, shape = self.tables.rows[first.row], self.atoms.shapes[first.row]

        def said(factor: int | None) -> str:
            return "is whole" if factor is None else f"is cut along its factor of {shape.sizes[factor]}"

        more = f" (and {len(wrong) - 1} more)" if len(wrong) > 1 else ""
        return refused(
            row,
            f'it {said(first.read)} over "{first.axis}", while by the loops of the other ops it {said(first.made)}{more}',
        )

    def contradiction(self, claims: Sequence[Claim]) -> IRError:
        names = ", ".join(f'{class_} on "{axis}"' for class_, axis in claims[:6])
        return IRError(
            word(
                "no order of actions leads to these loops",
                where=f"classes {names}",
                why="each class would have to come before another that comes before it",
            )
        )


class _Addresses:
    """A (value, dim) whose outermost part is of a class: where a `Tile` can name it."""

    def __init__(self, structure: Structure, classes: Classes) -> None:
        self.structure = structure
        self.classes = classes
        self.found: dict[int, tuple[str, int]] = {}
        tables, atoms, names = structure.tables, structure.atoms, structure.addresses.names
        made = [result for row in tables.rows for result in row.results]
        for value in (*range(tables.argument_count), *made):
            first = atoms.start[value]
            for dim, sizes in enumerate(atoms.sizes_of[value]):
                if sizes:
                    self.found.setdefault(int(classes.of_node[first]), (names[value], dim))
                first += len(sizes)

    def has(self, class_: int) -> bool:
        return class_ in self.found

    def of(self, class_: int) -> tuple[str, int]:
        """The address of a class. Raises IRError for one that is inner everywhere."""
        found = self.found.get(class_)
        if found is None:
            raise IRError(
                word(
                    f"no value has the class of size {self.classes.size[class_]} outermost in a dim",
                    why="loops cut it, and no action could say so",
                )
            )
        return found


def _dim_axes(plan: Plan, argument: int) -> list[Axes]:
    layout = plan.arguments[argument]
    return _entries(spec_of(layout), len(layout))


def _entries(spec: Sequence[str | Axes | None], rank: int) -> list[Axes]:
    """The axes of each dim of a spec."""
    entries: list[Axes] = [() if e is None else (e,) if isinstance(e, str) else e for e in spec]
    return entries + [()] * (rank - len(entries))


def _said(axes: Sequence[Axes]) -> str:
    return "[" + ", ".join("{" + ", ".join(own) + "}" for own in axes) + "]"

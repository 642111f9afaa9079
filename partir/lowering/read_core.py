"""Core IR to an assignment: the program without loops, and the actions that put the same loops back.

Each loop says that a class has an axis at an op. From that follow the tiles (a class that has an axis anywhere was tiled on
it), their order (where several classes want one axis, the one that has it came first), and whatever else it takes: `Prefer`
where orders contradict, `Replicate` for arguments kept whole, `Cut` where a class ends. What is found is checked.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

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

Order = tuple[Claim, Claim]
"""The first claim came before the second."""

ROUNDS = 64
"""How often what is not explained yet may lead to further actions."""

FIRM = 1 << 20
"""The weight of an order that no `Prefer` can mend."""


def read_core(module: ModuleOp) -> Assignment:
    """The assignment a Core module is written from; materialised, it gives the same loops.

    A module without loops is a program on which nothing is decided yet but what its arguments' shardings and its sharding
    constraints say. Raises IRError where loops are no tiling, or no actions lead to them.
    """
    mesh = boundary.mesh_of(module)
    stripped = strip(module)
    structure = Structure.of(stripped.program)
    main = boundary.main_of(module)
    evidence = gather(structure, stripped, main, mesh)
    reader = _Reader(structure, mesh, evidence, written=boundary.is_written(main))
    if not stripped.nests and not reader.written:
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
    def __init__(self, structure: Structure, mesh: Mesh, evidence: Evidence, *, written: bool) -> None:
        self.structure = structure
        self.tables = structure.tables
        self.atoms = structure.atoms
        self.names = structure.addresses.names
        self.mesh = mesh
        self.evidence = evidence
        self.written = written
        """Whether `materialise` wrote the module, and so said each `Replicate`."""
        self.of_atoms = self._argument_atoms()
        self.pinned = self._explicit()
        self.ends: dict[tuple[int, int], None] = {}
        """(value, dim) of the `Cut`s."""
        self.whole: dict[Claim, set[Claim]] = {}
        """Claims of classes that do not divide, which hold off the claims of others."""
        self.first: set[Order] = set()
        """Orders that explain why an argument is whole at the boundary."""

    def _explicit(self) -> dict[tuple[int, str], None]:
        """The arguments and axes of the `Replicate`s that the IR states."""
        return {(i, axis): None for i, axes in enumerate(self.evidence.pinned) for axis in axes}

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
        misplaced: list[int] = []
        for _ in range(ROUNDS):
            assignment, broken = self.solve()
            plan = plan_.make(assignment)
            wrong = self.wrong(plan)
            misplaced = [i for i, axes in enumerate(self.evidence.arguments) if axes not in (None, _dim_axes(plan, i))]
            if not wrong and not misplaced:
                assignment = self._with_outputs(assignment, plan)
                return assignment, plan_.make(assignment)
            if not (
                self.learn_pins(assignment, plan, misplaced)
                or self.learn(assignment, wrong)
                or self.learn_ends(assignment.classes, wrong, broken)
            ):
                break
        raise self.unexplained(wrong) if wrong else self.unplaced(plan, misplaced[0])

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

    def solve(self) -> tuple[Assignment, set[Order]]:
        """The actions that all loops seen ask for, in an order that has the right class win wherever one can.

        Also gives the orders that no `Prefer` could mend and that had to be broken.
        """
        classes = self.structure.classes(frozenset(self.ends))
        arguments = [
            classes.of_node[self.atoms.start[i] : self.atoms.start[i] + len(own)].tolist()
            for i, own in enumerate(self.of_atoms)
        ]
        rows = [self.classes_of_row(classes, p) if cuts else [] for p, cuts in enumerate(self.evidence.rows)]
        claims = self._claims(arguments, rows)
        edges: dict[Order, int] = {}

        def before(first: Claim, second: Claim, weight: int = FIRM) -> None:
            if first != second and first in claims and second in claims:
                edges[first, second] = edges.get((first, second), 0) + weight

        for first, second in self.first:
            before(first, second)
        for claim, held_off in self.whole.items():
            for other in claims:
                if other in held_off:
                    before(claim, other)
                elif other[0] == claim[0] and other not in self.whole:
                    before(other, claim)
        for own, per_atom in zip(arguments, self.of_atoms, strict=True):
            for class_, axes in zip(own, per_atom, strict=True):
                for first, second in pairwise(axes):
                    before((class_, first), (class_, second))
                for axis in axes:
                    for other in own:
                        before((class_, axis), (other, axis))
        contests: dict[str, list[Contest]] = {axis: [] for axis in self.mesh.names}
        for position, cuts in enumerate(self.evidence.rows):
            own, row = rows[position], self.tables.rows[position]
            for (a, f), (b, g) in pairwise(cuts):
                before((own[f], a), (own[g], b))
            for axis, factor in cuts if row.kind == "claim" else ():
                winner = own[factor]
                losers = tuple(other for other in dict.fromkeys(own) if other != winner and (other, axis) in claims)
                for loser in losers:
                    before((winner, axis), (loser, axis), 1)
                if losers:
                    contests[axis].append((self.tables.scope(row), winner, losers))
        return self._assigned(classes, list(claims), edges, contests)

    def _claims(self, arguments: Sequence[Sequence[int]], rows: Sequence[Sequence[int]]) -> dict[Claim, None]:
        """The classes that have an axis somewhere, in order of appearance, and those that only hold others off."""
        claims: dict[Claim, None] = {}
        for own, per_atom in zip(arguments, self.of_atoms, strict=True):
            claims.update(((c, axis), None) for c, axes in zip(own, per_atom, strict=True) for axis in axes)
        for position, cuts in enumerate(self.evidence.rows):
            if self.tables.rows[position].kind == "claim":
                claims.update(((rows[position][factor], axis), None) for axis, factor in cuts)
        claims.update(dict.fromkeys(self.whole))
        return claims

    def _assigned(
        self,
        classes: Classes,
        claims: Sequence[Claim],
        edges: dict[Order, int],
        contests: dict[str, list[Contest]],
    ) -> tuple[Assignment, set[Order]]:
        ordered, broken = in_order(claims, edges)
        actions: list[Action] = [Cut(self.names[value], dim) for value, dim in self.ends]
        actions += [Replicate(self.names[i], axis) for i, axis in self.pinned]
        address = self._addresses(classes)
        actions += [Tile(*address[class_], axis) for class_, axis in ordered if class_ in address]
        for axis in self.mesh.names:
            scopes = {
                scope
                for scope, winner, losers in contests[axis]
                if any(((winner, axis), (loser, axis)) in broken for loser in losers)
            }
            actions += [
                Prefer(scope, *address[class_], axis)
                for scope, class_ in preferences(contests[axis], scopes)
                if class_ in address
            ]
        firm = {edge for edge in broken if edges[edge] >= FIRM}
        return Assignment(self.structure, self.mesh, tuple(actions)), firm

    def _addresses(self, classes: Classes) -> dict[int, tuple[str, int]]:
        """For each class a value and a dim whose outermost part is of it, where it has one: so a `Tile` can name it."""
        found: dict[int, tuple[str, int]] = {}
        made = [result for row in self.tables.rows for result in row.results]
        for value in (*range(self.tables.argument_count), *made):
            first = self.atoms.start[value]
            for dim, sizes in enumerate(self.atoms.sizes_of[value]):
                if sizes:
                    found.setdefault(int(classes.of_node[first]), (self.names[value], dim))
                first += len(sizes)
        return found

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

    def learn_pins(self, assignment: Assignment, plan: Plan, misplaced: Sequence[int]) -> bool:
        """Arguments that the actions shard and the IR keeps whole on an axis.

        Another claim may have come first: of a class that is not outermost in its dim, which no sharding can say, or of one
        that does not divide. Else the argument is of a class of its own, or, in hand-written text, meant to be replicated.
        """
        classes = assignment.classes
        whole: dict[tuple[int, str], None] = {}
        explained = False
        for argument in misplaced:
            axes = self.evidence.arguments[argument] or []
            made = {axis for own in _dim_axes(plan, argument) for axis in own}
            first, count = self.atoms.start[argument], self.atoms.count_of(argument)
            own = classes.of_node[first : first + count].tolist()
            for axis in sorted(made.difference(axis for own in axes for axis in own)):
                winner = own[next(k for k, taken in enumerate(assignment.argument_axes[argument]) if axis in taken)], axis
                orders = {
                    ((inner, axis), winner)
                    for inner in self._inner(argument, own)
                    if assignment.claims.divides[axis][inner]
                }
                explained |= not orders <= self.first or self._hold_off(classes, own, winner, only_if_unseen=True)
                self.first |= orders
                whole[argument, axis] = None
        if whole and not explained and self.written:
            return self._end((argument, self._dim_on(plan, argument, axis)) for argument, axis in whole)
        if not explained:
            self.pinned.update(whole)
        return bool(whole)

    def _dim_on(self, plan: Plan, argument: int, axis: str) -> int:
        return next(dim for dim, own in enumerate(_dim_axes(plan, argument)) if axis in own)

    def _inner(self, argument: int, own: Sequence[int]) -> list[int]:
        """The classes of those atoms of an argument that are not outermost in their dim."""
        outermost: set[int] = set()
        count = 0
        for sizes in self.atoms.sizes_of[argument]:
            if sizes:
                outermost.add(count)
            count += len(sizes)
        return [class_ for k, class_ in enumerate(own) if k not in outermost]

    def learn(self, assignment: Assignment, wrong: Sequence[_Wrong]) -> bool:
        """Ops that the actions cut and the IR does not: a class that does not divide came first there, or a class ends."""
        classes = assignment.classes
        surplus = [item for item in wrong if item.read is None and item.made is not None]
        for item in surplus:
            if self.tables.rows[item.row].kind == "claim" and item.made is not None:
                own = self.classes_of_row(classes, item.row)
                if self._hold_off(classes, own, (own[item.made], item.axis)):
                    return True
        return self._end(end for item in surplus for end in (*self._near(item), *self._around(classes, self._claim(classes, item))))

    def learn_ends(self, classes: Classes, wrong: Sequence[_Wrong], broken: set[Order]) -> bool:
        """Orders that contradict each other speak of classes that are really two."""
        torn = [item for item in wrong if item.read is not None and item.made is not None]
        claims = dict.fromkeys(claim for order in sorted(broken) for claim in order)
        claims.update((self._claim(classes, item), None) for item in torn)
        near = (end for item in torn for end in self._near(item))
        return self._end(near) or self._end(end for claim in claims for end in self._around(classes, claim))

    def _end(self, ends: Iterable[tuple[int, int]]) -> bool:
        """End a class at the first of these values at which it does not end yet; what was learnt of classes is void then."""
        end = next((end for end in ends if end not in self.ends), None)
        if end is None:
            return False
        self.ends[end] = None
        self.whole.clear()
        self.first.clear()
        self.pinned = self._explicit()
        return True

    def _claim(self, classes: Classes, item: _Wrong) -> Claim:
        assert item.made is not None
        return self.classes_of_row(classes, item.row)[item.made], item.axis

    def _hold_off(self, classes: Classes, own: Sequence[int], winner: Claim, *, only_if_unseen: bool = False) -> bool:
        """Put the claim of a class that does not divide before that of `winner`, if one of `own` can be what keeps it off."""
        address = self._addresses(classes)
        axis = winner[1]
        for class_ in own:
            claim = class_, axis
            if class_ < 0 or claim == winner or winner in self.whole.get(claim, ()) or class_ not in address:
                continue
            if classes.size[class_] % self.mesh.size_of(axis, *self._axes_seen(classes, class_)) == 0:
                continue
            if only_if_unseen and self._seen_beside(classes, class_, axis):
                continue
            self.whole.setdefault(claim, set()).add(winner)
            return True
        return False

    def _axes_seen(self, classes: Classes, class_: int) -> set[str]:
        """The axes a class is cut over anywhere in the IR."""
        found: set[str] = set()
        for position, cuts in enumerate(self.evidence.rows):
            if cuts:
                own = self.classes_of_row(classes, position)
                found.update(axis for axis, factor in cuts if own[factor] == class_)
        return found

    def _seen_beside(self, classes: Classes, class_: int, axis: str) -> bool:
        """Whether some op that has a class is cut over an axis, as it would not be if the class held it off."""
        return any(
            axis in dict(cuts) and class_ in self.classes_of_row(classes, position)
            for position, cuts in enumerate(self.evidence.rows)
            if cuts
        )

    def _near(self, item: _Wrong) -> Iterator[tuple[int, int]]:
        """The values between an op that is not cut and others that are, or an argument that is: there the class may end."""
        assert item.made is not None
        yield from self._borders(item.row, item.made, item.axis, cut=True)

    def _around(self, classes: Classes, claim: Claim) -> Iterator[tuple[int, int]]:
        """The values around all that is cut in the IR along a class over an axis."""
        class_, axis = claim
        for argument, per_atom in enumerate(self.of_atoms):
            for atom, axes in enumerate(per_atom, self.atoms.start[argument]):
                if axis in axes and int(classes.of_node[atom]) == class_:
                    yield argument, self.atoms.owner_of(atom)[1]
        for position, cuts in enumerate(self.evidence.rows):
            factor = dict(cuts).get(axis)
            if factor is not None and self.classes_of_row(classes, position)[factor] == class_:
                yield from self._borders(position, factor, axis, cut=False)

    def _borders(self, position: int, factor: int, axis: str, *, cut: bool) -> Iterator[tuple[int, int]]:
        """Operands and results of a row that have a sub-factor, where the op on the other side is (or is not) cut there."""
        row, shape = self.tables.rows[position], self.atoms.shapes[position]
        for view, dims in zip(row.operands, shape.slots[: shape.operand_count], strict=True):
            for d, pieces in enumerate(dims if view is not None else ()):
                assert view is not None
                if pieces is not None and factor in pieces and view.dims[d] >= 0:
                    if self._lies(view.source, view.dims[d], axis) == cut:
                        yield view.source, view.dims[d]
        for i, result in enumerate(row.results):
            for d, pieces in enumerate(shape.slots[shape.operand_count + i]):
                if pieces is not None and factor in pieces and self._read_cut(result, d, axis) == cut:
                    yield result, d

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

    def unplaced(self, plan: Plan, argument: int) -> IRError:
        axes = self.evidence.arguments[argument]
        assert axes is not None
        return IRError(
            word(
                f"argument {self.names[argument]} is not sharded as the loops say",
                where=f"its sdy.sharding says {_said(axes)}",
                why=f"the loops, and what is sharded like them, make it {_said(_dim_axes(plan, argument))}",
            )
        )


def _dim_axes(plan: Plan, argument: int) -> list[Axes]:
    layout = plan.arguments[argument]
    return _entries(spec_of(layout), len(layout))


def _entries(spec: Sequence[str | Axes | None], rank: int) -> list[Axes]:
    """The axes of each dim of a spec."""
    entries: list[Axes] = [() if e is None else (e,) if isinstance(e, str) else e for e in spec]
    return entries + [()] * (rank - len(entries))


def _said(axes: Sequence[Axes]) -> str:
    return "[" + ", ".join("{" + ", ".join(own) + "}" for own in axes) + "]"

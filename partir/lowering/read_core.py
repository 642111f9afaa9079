"""Core IR to an assignment: the program without loops, and the actions that put the same loops back.

Each loop says that a class has an axis at an op. From that follow the tiles (a class that has an axis anywhere was tiled on
it), their order (where several classes want one axis, the one that has it came first), and whatever else it takes: `Prefer`
where orders contradict, `Replicate` for arguments kept whole, `Cut` where a class ends. What is found is checked. What is
gathered once the boundary says.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

from xdsl.dialects.builtin import ModuleOp

from partir.collector import paused
from partir.errors import IRError, word
from partir.lowering import boundary
from partir.lowering.evidence import Claim, Evidence, Place, gather, refused
from partir.lowering.intricate import check_intricate
from partir.lowering.nest import Cut as RowCut
from partir.lowering.nest import Nests
from partir.lowering.precedence import Contest, in_order, preferences
from partir.lowering.strip import strip
from partir.sharding import plan as plan_
from partir.sharding.actions import Action, Cut, GatherOnce, Prefer, Replicate, Tile
from partir.sharding.assignment import Assignment
from partir.sharding.classes import Classes
from partir.sharding.layout import Axes, Layout, spec_of
from partir.sharding.plan import Plan
from partir.sharding.structure import Structure

Order = tuple[Claim, Claim]
"""The first claim came before the second."""

ROUNDS = 64
"""How often what is not explained yet may lead to further actions."""

FIRM = 1 << 20
"""The weight of an order that no `Prefer` can mend."""


@paused()
def read_core(module: ModuleOp) -> Assignment:
    """The assignment a Core module is written from; materialised, it gives the same loops.

    Loops hold whatever was decided and has an effect. A module without loops is a program on which nothing is decided yet
    but what its arguments' shardings and its sharding constraints say. Raises IRError where loops are no tiling, or no actions
    lead to them.
    """
    mesh = boundary.mesh_of(module)
    stripped = strip(module)
    structure = Structure.of(stripped.program)
    evidence = gather(structure, stripped, boundary.main_of(module), mesh)
    sums = boundary.sums_of(module)
    if not stripped.nests and not evidence.written:
        return _undecided(evidence).apply(*sums)
    assignment, plan = _Reader(evidence).run()
    check_intricate(plan, stripped)
    return assignment.apply(*sums)


def _undecided(evidence: Evidence) -> Assignment:
    """The start of a module without loops: what its arguments, its constraints and its results say."""
    structure, mesh = evidence.structure, evidence.mesh
    names = structure.addresses.names
    actions: list[Action] = [Replicate(names[i], axis) for i, axes in enumerate(evidence.pinned) for axis in axes]
    for i, axes in enumerate(evidence.arguments):
        actions += [Tile(names[i], dim, axis) for dim, own in enumerate(axes or ()) for axis in own]
    actions += [GatherOnce(names[i]) for i in evidence.once]
    assignment = Assignment(structure, mesh).apply(*actions, *structure.wishes(mesh).actions)
    return _with_outputs(evidence, assignment, plan_.make(assignment))


def _with_outputs(evidence: Evidence, assignment: Assignment, plan: Plan) -> Assignment:
    """Results that leave otherwise than the plan would have them are fixed, as by `out_shardings`."""
    outputs: list[tuple[int, tuple[Axes, ...]]] = []
    for result, axes in enumerate(evidence.results):
        if axes is None or axes == _dim_axes(plan.outputs[result]):
            continue
        shape = assignment.structure.program.signature.results[result].shape
        for dim, own in enumerate(axes):
            if shape[dim] % assignment.mesh.size_of(*own):
                raise IRError(
                    word(
                        f"result {result} cannot be sharded as it says",
                        where=f"dim {dim} of {list(shape)} over {', '.join(own)}",
                        why=f"{shape[dim]} does not divide by {assignment.mesh.size_of(*own)}",
                    )
                )
        outputs.append((result, tuple(axes)))
    return Assignment(assignment.structure, assignment.mesh, assignment.actions, tuple(outputs))


@dataclass(frozen=True)
class _Wrong:
    """A row whose loops differ on an axis: the sub-factor that has it in the IR, and by the actions found so far."""

    row: int
    axis: str
    read: int | None
    made: int | None


class _Reader:
    """Finds actions by and by: `solve` puts what is known into actions, the `learn` methods look at what these get wrong."""

    def __init__(self, evidence: Evidence) -> None:
        self.evidence = evidence
        self.structure = evidence.structure
        self.tables = evidence.structure.tables
        self.names = evidence.structure.addresses.names
        self.mesh = evidence.mesh
        self.pinned = self._explicit()
        self.ends: dict[Place, None] = {}
        """Where classes end: the `Cut`s."""
        self.whole: dict[Claim, set[Claim]] = {}
        """Claims of classes that do not divide, which hold off the claims of others."""
        self.followed: dict[Claim, None] = {}
        """Claims that only ops show which lie as their operand does."""
        self.first: set[Order] = set()
        """Orders that explain why an argument is whole at the boundary."""

    def _explicit(self) -> dict[tuple[int, str], None]:
        """The arguments and axes of the `Replicate`s that the IR states."""
        return {(i, axis): None for i, axes in enumerate(self.evidence.pinned) for axis in axes}

    def run(self) -> tuple[Assignment, Plan]:
        """The actions that explain all loops, and their plan."""
        for _ in range(ROUNDS):
            assignment, broken = self.solve()
            plan = plan_.make(assignment)
            wrong = self.wrong(plan)
            misplaced = [
                argument
                for argument, axes in enumerate(self.evidence.arguments)
                if axes is not None and axes != _dim_axes(plan.arguments[argument])
            ]
            if not wrong and not misplaced:
                assignment = _with_outputs(self.evidence, assignment, plan)
                return assignment, plan_.make(assignment)
            if not (
                self.learn_pins(assignment, plan, misplaced)
                or self.learn_followed(assignment.classes, wrong)
                or self.learn(assignment.classes, wrong)
                or self.learn_ends(assignment.classes, wrong, broken)
            ):
                raise self.unexplained(wrong) if wrong else self.unplaced(plan, misplaced[0])
        raise IRError(word("these loops are too irregular to read", why=f"{len(self.ends)} ends of classes explain some"))

    # ---- from loops to actions ----------------------------------------------------------------------------------------

    def solve(self) -> tuple[Assignment, set[Order]]:
        """The actions that all loops seen ask for, in an order that has the right class win wherever one can.

        Also gives the orders that had to be broken and that no `Prefer` can mend.
        """
        evidence, classes = self.evidence, self.structure.classes(frozenset(self.ends))
        arguments = [evidence.of_argument(classes, i) for i in range(self.tables.argument_count)]
        rows = [evidence.of_row(classes, p) if cuts else [] for p, cuts in enumerate(evidence.rows)]
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
        for own, per_atom in zip(arguments, evidence.atoms, strict=True):
            for class_, axes in zip(own, per_atom, strict=True):
                for first, second in pairwise(axes):
                    before((class_, first), (class_, second))
                for axis in axes:
                    for other in own:
                        before((class_, axis), (other, axis))
        contests: dict[str, list[Contest]] = {axis: [] for axis in self.mesh.names}
        for position, cuts in enumerate(evidence.rows):
            own, row = rows[position], self.tables.rows[position]
            if row.kind == "follow":
                continue
            for (outer, f), (inner, g) in pairwise(cuts):
                before((own[f], outer), (own[g], inner))
            for axis, factor in cuts:
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
        for own, per_atom in zip(arguments, self.evidence.atoms, strict=True):
            claims.update(((c, axis), None) for c, axes in zip(own, per_atom, strict=True) for axis in axes)
        for position, cuts in enumerate(self.evidence.rows):
            if self.tables.rows[position].kind == "claim":
                claims.update(((rows[position][factor], axis), None) for axis, factor in cuts)
        claims.update(dict.fromkeys((*self.followed, *self.whole)))
        return claims

    def _assigned(
        self, classes: Classes, claims: Sequence[Claim], edges: dict[Order, int], contests: dict[str, list[Contest]]
    ) -> tuple[Assignment, set[Order]]:
        """Claims in order, and preferences where that order is not the one of an op, as actions."""
        ordered, broken = in_order(claims, edges)
        address = self._addresses(classes)
        actions: list[Action] = [Cut(self.names[value], dim) for value, dim in self.ends]
        actions += [Replicate(self.names[i], axis) for i, axis in self.pinned]
        actions += [Tile(*address[class_], axis) for class_, axis in ordered if class_ in address]
        for axis in self.mesh.names:
            scopes = {
                scope
                for scope, winner, losers in contests[axis]
                if any(((winner, axis), (loser, axis)) in broken for loser in losers)
            }
            preferred = preferences(contests[axis], scopes)
            actions += [Prefer(scope, *address[class_], axis) for scope, class_ in preferred if class_ in address]
        actions += [GatherOnce(self.names[i]) for i in self.evidence.once]
        firm = {edge for edge in broken if edges[edge] >= FIRM}
        return Assignment(self.structure, self.mesh, tuple(actions)), firm

    def _addresses(self, classes: Classes) -> dict[int, tuple[str, int]]:
        """For each class a value and a dim whose outermost part is of it, where it has one: so a `Tile` can name it."""
        atoms = self.structure.atoms
        found: dict[int, tuple[str, int]] = {}
        made = [result for row in self.tables.rows for result in row.results]
        for value in (*range(self.tables.argument_count), *made):
            first = atoms.start[value]
            for dim, sizes in enumerate(atoms.sizes_of[value]):
                if sizes:
                    found.setdefault(int(classes.of_node[first]), (self.names[value], dim))
                first += len(sizes)
        return found

    # ---- what is not explained yet ------------------------------------------------------------------------------------

    def wrong(self, plan: Plan) -> list[_Wrong]:
        """Where the loops of a plan differ from those in the IR."""
        nests = Nests(plan)
        found: list[_Wrong] = []
        for position, (row, read) in enumerate(zip(self.tables.rows, self.evidence.rows, strict=True)):
            nest = nests.of(position, row)
            made: tuple[RowCut, ...] = nest.cuts if nest is not None else ()
            if made != read:
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
        whole: dict[tuple[int, str], int] = {}
        explained = False
        for argument in misplaced:
            said = {axis for own in self.evidence.arguments[argument] or () for axis in own}
            own = self.evidence.of_argument(classes, argument)
            for dim, axes in enumerate(_dim_axes(plan.arguments[argument])):
                for axis in [axis for axis in axes if axis not in said]:
                    whole[argument, axis] = dim
                    taken = assignment.argument_axes[argument]
                    winner = own[next(k for k, axes in enumerate(taken) if axis in axes)], axis
                    inner = [c for c in self._inner(argument, own) if assignment.claims.divides[axis][c]]
                    orders = {((class_, axis), winner) for class_ in inner} - self.first
                    self.first |= orders
                    explained |= bool(orders) or self._hold_off(classes, own, winner, only_if_unseen=True)
        if whole and not explained and self.evidence.written:
            return self._end((argument, dim) for (argument, _), dim in whole.items())
        if not explained:
            self.pinned.update(dict.fromkeys(whole))
        return bool(whole)

    def _inner(self, argument: int, own: Sequence[int]) -> list[int]:
        """The classes of those atoms of an argument that are not outermost in their dim."""
        parts = [part for sizes in self.structure.atoms.sizes_of[argument] for part in range(len(sizes))]
        return [class_ for class_, part in zip(own, parts, strict=True) if part]

    def learn_followed(self, classes: Classes, wrong: Sequence[_Wrong]) -> bool:
        """Ops that the IR cuts and no action does, because they follow an argument that no sharding can say."""
        seen = [
            (self.evidence.of_row(classes, item.row)[item.read], item.axis)
            for item in wrong
            if item.made is None and item.read is not None and self.tables.rows[item.row].kind == "follow"
        ]
        new = [claim for claim in seen if claim[0] >= 0 and claim not in self.followed]
        self.followed.update(dict.fromkeys(new))
        return bool(new)

    def learn(self, classes: Classes, wrong: Sequence[_Wrong]) -> bool:
        """Ops that the actions cut and the IR does not: a class that does not divide came first there, or a class ends."""
        surplus = [item for item in wrong if item.read is None]
        for item in surplus:
            if self.tables.rows[item.row].kind == "claim":
                own = self.evidence.of_row(classes, item.row)
                if self._hold_off(classes, own, self._claim(classes, item)):
                    return True
        near = (end for item in surplus for end in self._near(item))
        around = (end for item in surplus for end in self.evidence.around(classes, self._claim(classes, item)))
        return self._end(near) or self._end(around)

    def learn_ends(self, classes: Classes, wrong: Sequence[_Wrong], broken: set[Order]) -> bool:
        """Orders that contradict each other speak of classes that are really two."""
        torn = [item for item in wrong if item.read is not None and item.made is not None]
        claims = dict.fromkeys(claim for order in sorted(broken) for claim in order)
        claims.update((self._claim(classes, item), None) for item in torn)
        near = (end for item in torn for end in self._near(item))
        return self._end(near) or self._end(end for claim in claims for end in self.evidence.around(classes, claim))

    def _claim(self, classes: Classes, item: _Wrong) -> Claim:
        assert item.made is not None
        return self.evidence.of_row(classes, item.row)[item.made], item.axis

    def _near(self, item: _Wrong) -> Iterator[Place]:
        """The values between an op that is not cut and others that are, or an argument that is."""
        assert item.made is not None
        return self.evidence.borders(item.row, item.made, item.axis, cut=True)

    def _end(self, ends: Iterable[Place]) -> bool:
        """End a class at the first of these values where it does not end yet and where each part can still be named.

        What was learnt of classes is void then.
        """
        for end in ends:
            if end not in self.ends and self._can_name({**self.ends, end: None}):
                self.ends[end] = None
                self.whole.clear()
                self.followed.clear()
                self.first.clear()
                self.pinned = self._explicit()
                return True
        return False

    def _can_name(self, ends: dict[Place, None]) -> bool:
        """Whether a `Tile` can name every class that has an axis, if classes end there."""
        classes = self.structure.classes(frozenset(ends))
        address = self._addresses(classes)
        return all(
            own[factor] in address
            for position, cuts in enumerate(self.evidence.rows)
            if cuts and self.tables.rows[position].kind == "claim"
            for own in [self.evidence.of_row(classes, position)]
            for _, factor in cuts
        )

    def _hold_off(self, classes: Classes, own: Sequence[int], winner: Claim, *, only_if_unseen: bool = False) -> bool:
        """Put the claim of a class that does not divide before that of `winner`, if one of `own` can be what keeps it off."""
        address = self._addresses(classes)
        axis = winner[1]
        for class_ in own:
            claim = class_, axis
            if class_ < 0 or claim == winner or winner in self.whole.get(claim, ()) or class_ not in address:
                continue
            if classes.size[class_] % self.mesh.size_of(axis, *self.evidence.axes_of(classes, class_)) == 0:
                continue
            if only_if_unseen and self.evidence.is_cut_beside(classes, class_, axis):
                continue
            self.whole.setdefault(claim, set()).add(winner)
            return True
        return False

    # ---- errors -------------------------------------------------------------------------------------------------------

    def unexplained(self, wrong: Sequence[_Wrong]) -> IRError:
        first = wrong[0]
        row, shape = self.tables.rows[first.row], self.structure.atoms.shapes[first.row]

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
                why=f"the loops, and what is sharded like them, make it {_said(_dim_axes(plan.arguments[argument]))}",
            )
        )


def _dim_axes(layout: Layout) -> list[Axes]:
    """The axes of each dim of a layout that a sharding can say."""
    entries: list[Axes] = [() if e is None else (e,) if isinstance(e, str) else e for e in spec_of(layout)]
    return entries + [()] * (len(layout) - len(entries))


def _said(axes: Sequence[Axes]) -> str:
    return "[" + ", ".join("{" + ", ".join(own) + "}" for own in axes) + "]"

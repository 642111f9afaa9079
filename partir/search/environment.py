"""What a search decides and how it is judged: decisions, states, and the price of a state, each computed once.

A decision is a few actions that belong together: one dimension group (the same class in every repeated layer) on one axis, that
with the parameters kept replicated (ZeRO-2), a class that gets its way at the sites where another took its axis, or that
parameters are gathered once in a step. A state is the sequence of decisions after the fixed start; what decides its price is
what it means, so states that mean the same are one.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Literal

from partir.cost.estimate import Estimate, Model, estimate, model_of
from partir.cost.target import Target
from partir.cost.unfolding import Unfolding
from partir.errors import SearchError, error_text
from partir.sharding import folded
from partir.sharding import plan as plan_
from partir.sharding.actions import Action, GatherOnce, Prefer, Replicate, Tile
from partir.sharding.assignment import Assignment
from partir.sharding.claims import Conflict
from partir.sharding.folded import Folded
from partir.sharding.indices import ClassId
from partir.sharding.scopes import in_scope, without_numbers

Kind = Literal["tile", "state", "prefer", "gather"]

STEEP = 20.0
"""How much a step time is worsened per multiple of the target's memory that it needs beyond it."""


@dataclass(frozen=True)
class Decision:
    """One move of a search: a few actions that belong together."""

    kind: Kind
    """What it does: "tile" a group, tile it for the optimizer's "state" alone, "prefer" a class somewhere, "gather" once."""
    axis: str
    """The mesh axis; "" for a move that concerns none."""
    name: str
    """The group, or what else is moved, in words; decisions of one group have one name."""
    actions: tuple[Action, ...]
    local_size: int = 0
    """The size of the dim it splits, on one device before the move."""

    def __str__(self) -> str:
        what = f"optimizer state along {self.name}" if self.kind == "state" else self.name
        return f'{what} on "{self.axis}"' if self.axis else what


State = tuple[Decision, ...]
"""The decisions taken after the start, in order: `()` is the start, `(*state, decision)` one decision more."""


@dataclass(frozen=True)
class Price:
    """What a state costs: `seconds` of a step, the peak `bytes` of a device, whether they fit, and `cost`: the seconds,
    worsened steeply where the peak does not fit."""

    seconds: float
    bytes: int
    fits: bool
    cost: float

    @property
    def rank(self) -> tuple[bool, float]:
        """What is better is less: all that fits is better than what does not."""
        return (not self.fits, self.cost)


def price_of(found: Estimate) -> Price:
    """The price of an estimate."""
    excess = max(0.0, found.peak_bytes / found.target.hbm_bytes - 1.0)
    return Price(found.step_seconds, found.peak_bytes, not excess, found.step_seconds * (1.0 + STEEP * excess))


@dataclass(eq=False)
class Environment:
    """The decisions open after `start` on `axes`, and their prices on `target`.

    With `grouped`, classes that are the same in repeated layers are decided together and priced on the program with repeated
    parts taken once; without, each class that an argument has is a decision of its own (as in Automap without its groups),
    priced on the whole.

    `scopes` limits decisions to classes that live in one of these scopes, `filter` to those for which it is true. `evaluations`
    counts the states priced.
    """

    start: Assignment
    target: Target
    axes: tuple[str, ...]
    scopes: tuple[str, ...] | None = None
    filter: Callable[[Decision], bool] | None = None
    grouped: bool = True
    evaluations: int = 0
    _prices: dict[object, Price] = field(default_factory=dict[object, Price])
    _keys: dict[State, object] = field(default_factory=dict[State, object])
    _sites: dict[State, tuple[Decision, ...]] = field(default_factory=dict[State, "tuple[Decision, ...]"])

    def __post_init__(self) -> None:
        for axis in self.axes:
            self.start.mesh.check(axis)
        if not self.decisions:
            raise SearchError(
                error_text(
                    f"nothing to decide on {', '.join(self.axes)}",
                    why="no dim of an argument is free there and divides"
                    + (f" within the scopes {', '.join(self.scopes)}" if self.scopes is not None else ""),
                    hint="other axes, sizes that divide, or other scopes: traced.scopes shows them",
                )
            )

    @cached_property
    def parts(self) -> Folded | None:
        """The program with repeated parts taken once; None where decisions may differ between them."""
        return folded.fold(self.start) if self.grouped else None

    @cached_property
    def decisions(self) -> tuple[Decision, ...]:
        """All that can be decided at the start, in the order of the arguments."""
        found: list[Decision] = []
        for name, classes in self._choices():
            for axis in self.axes:
                tiles = tuple(tile for class_ in classes if (tile := self._tile(class_, axis)) is not None)
                if not tiles:
                    continue
                local_size = min(self._local_size(class_) for class_ in classes)
                found.append(Decision("tile", axis, name, tiles, local_size))
                pins = self._pins(classes, axis)
                if pins:
                    found.append(Decision("state", axis, name, (*pins, *tiles), local_size))
        return tuple(d for d in found if self.filter is None or self.filter(d))

    def _choices(self) -> list[tuple[str, tuple[ClassId, ...]]]:
        """(name, classes) of what is decided together, for classes that arguments have and that nothing walks along."""
        classes, structure = self.start.classes, self.start.structure
        names = structure.addresses.names
        found: list[tuple[str, tuple[ClassId, ...]]] = []
        seen: set[ClassId] = set()
        for number, members in enumerate(classes.arguments_by_class):
            class_ = ClassId(number)
            if not members or class_ in seen or class_ in self.start.scanned:
                continue
            group = self.start.group_of.get(class_)
            together = group.classes if group is not None and self.grouped else (class_,)
            together = tuple(c for c in together if classes.arguments_by_class[c] and c not in self.start.scanned)
            seen.update(together)
            if self.scopes is not None and not self._is_inside(together):
                continue
            argument, dim, _ = next((member for member in members if member[2] == 0), members[0])
            repeated = f" and {len(together) - 1} like it" if len(together) > 1 else ""
            found.append((f"{names[argument]}:{dim}{repeated}", together))
        return found

    @cached_property
    def _forward_scopes(self) -> dict[ClassId, set[str]]:
        """For each class, the scopes of the model's forward ops that it runs through."""
        tables, classes = self.start.structure.tables, self.start.classes
        found: dict[ClassId, set[str]] = {}
        # An optimizer's decay of its moments comes after no gradient, but after the forward pass.
        is_forward = self.start.roles.forward
        end = next((row for row, forward in enumerate(is_forward) if not forward), len(is_forward))
        for position, row in itertools.islice(tables.each_row(), end):
            for class_ in classes.of_row(position):
                if class_ >= 0:
                    found.setdefault(class_, set()).add(tables.scope(row))
        return found

    def _is_inside(self, classes: Sequence[ClassId]) -> bool:
        """Whether the model's forward pass has these classes in the chosen scopes and nowhere else."""
        scopes = {scope for class_ in classes for scope in self._forward_scopes.get(class_, ())}
        patterns = self.scopes or ()
        return bool(scopes) and all(any(in_scope(pattern, scope) for pattern in patterns) for scope in scopes)

    def _local_size(self, class_: ClassId) -> int:
        """How many elements of a class one device has at the start."""
        start = self.start
        return start.classes.size[class_] // start.mesh.size_of(*start.axes_of_class(class_))

    def _tile(self, class_: ClassId, axis: str) -> Tile | None:
        """The action that splits a class over an axis; None where it is not free, does not divide, or no argument names it."""
        start = self.start
        if start.is_claimed(class_, axis) or not start.fits(class_, axis) or start.classes.argument_dim(class_) is None:
            return None
        return start.tile(class_, axis)

    def _pins(self, classes: Sequence[ClassId], axis: str) -> tuple[Action, ...]:
        """Parameters of these classes kept replicated, where they have other state (moments) that would then be cut alone."""
        members = {a for c in classes for a, _, _ in self.start.classes.arguments_by_class[c]}
        leaves = self.start.structure.program.signature.arguments
        parameters = members.intersection(self.start.roles.parameters)
        if not parameters or not any(leaves[a].role == "state" for a in members - parameters):
            return ()
        names = self.start.structure.addresses.names
        return tuple(Replicate(names[a], axis) for a in sorted(parameters))

    def assignment(self, state: State) -> Assignment:
        """The whole program's assignment after the start and a state."""
        return replace(self.start, actions=self.start.actions + _actions(state))

    def _decided(self, state: State) -> Assignment:
        """The assignment that is planned: on the parts where they stand for the whole."""
        whole = self.assignment(state)
        return whole if self.parts is None else self.parts.assigned(whole)

    def legal(self, state: State) -> tuple[Decision, ...]:
        """What can be decided next: groups that are not on an axis yet and still divide, sites to take back, and how often
        parameters are gathered."""
        return (*self.tiles(state), *self.prefers(state), *self.gathers(state))

    def tiles(self, state: State) -> tuple[Decision, ...]:
        """The groups that can be cut next: those that are not on an axis yet and whose local size still divides."""
        taken: dict[str, tuple[str, ...]] = {}
        for decision in state:
            if decision.kind in ("tile", "state"):
                taken[decision.name] = (*taken.get(decision.name, ()), decision.axis)
        size_of = self.start.mesh.size_of
        return tuple(
            decision
            for decision in self.decisions
            if decision.axis not in (own := taken.get(decision.name, ()))
            and decision.local_size % size_of(decision.axis, *own) == 0
        )

    def gathers(self, state: State) -> tuple[Decision, ...]:
        """Parameters gathered once in a step, where some are cut."""
        once = self._once
        is_new = once is not None and once not in state and any(decision.kind == "tile" for decision in state)
        return (once,) if once is not None and is_new else ()

    @cached_property
    def _once(self) -> Decision | None:
        """All parameters of the decisions that several phases read, gathered once; None where there are none."""
        start = self.start
        classes = {class_ for _, together in self._choices() for class_ in together}
        members = {argument for class_ in classes for argument, _, _ in start.classes.arguments_by_class[class_]}
        members &= start.structure.tables.read_in_phases
        named = sorted(members.intersection(start.roles.parameters) - start.gathered_once)
        actions = tuple(GatherOnce(start.structure.addresses.names[a]) for a in named)
        found = Decision("gather", "", "parameters gathered once in a step", actions)
        return found if actions and (self.filter is None or self.filter(found)) else None

    def prefers(self, state: State) -> tuple[Decision, ...]:
        """For the sites where most was lost: let the loser have the axis there."""
        found = self._sites.get(state)
        if found is None:
            found = self._sites[state] = self._prefers(state)
        return found

    def _prefers(self, state: State) -> tuple[Decision, ...]:
        decided = self._decided(state)
        sites: dict[tuple[str, str, ClassId], int] = {}
        structure = decided.structure
        for conflict in decided.conflicts:
            scope = without_numbers(structure.tables.scope(structure.tables.rows[conflict.row]))
            for loser in _losers(decided, conflict):
                key = scope, conflict.axis, loser
                sites[key] = sites.get(key, 0) + _bytes_at(decided, conflict)
        found: list[Decision] = []
        for (scope, axis, loser), _ in sorted(sites.items(), key=lambda item: -item[1])[:SITES]:
            if decided.classes.argument_dim(loser) is None or axis not in self.axes or not scope:
                continue
            name, dim = decided.classes.address(loser)
            actions = self._preferences(scope, name, dim, axis)
            if not any(action in decision.actions for decision in state for action in actions):
                found.append(Decision("prefer", axis, f"{name}:{dim} first in {scope}", actions))
        return tuple(d for d in found if self.filter is None or self.filter(d))

    def _preferences(self, scope: str, name: str, dim: int, axis: str) -> tuple[Action, ...]:
        """On the whole program: the same in all repeated layers, unless decisions may differ between them."""
        start = self.start
        class_ = start.class_of(start.structure.addresses.find(name), dim)
        if not self.grouped or class_ is None:
            return (Prefer(scope, name, dim, axis),)
        return start.preferences(scope, class_, axis)

    def price(self, state: State) -> Price:
        """What a state costs; each meaning is planned and estimated once."""
        meaning = self.meaning(state)
        found = self._prices.get(meaning)
        if found is None:
            self.evaluations += 1
            found = self._prices[meaning] = price_of(self._estimate(self._decided(state)))
        return found

    def sent(self, state: State) -> dict[str, float]:
        """The bytes that a device sends in a step, by kind of collective."""
        return self._estimate(self._decided(state)).moved.bytes_by_kind

    def meaning(self, state: State) -> object:
        """What decides the price of a state: who has each axis at each op, how arguments lie, in which order, and which are
        gathered once."""
        found = self._keys.get(state)
        if found is None:
            decided = self._decided(state)
            winners = tuple(decided.winners[axis].tobytes() for axis in decided.mesh.names)
            found = self._keys[state] = winners, tuple(decided.argument_axes), decided.gathered_once
        return found

    def _estimate(self, decided: Assignment) -> Estimate:
        made = plan_.make(decided)
        return self._model.estimate(made, self._unfolding)

    @cached_property
    def _model(self) -> Model:
        return model_of(self.start.structure, self.target)

    @cached_property
    def _unfolding(self) -> Unfolding | None:
        return Unfolding.of(self._model.kernels, self.parts) if self.parts is not None else None

    def forgotten(self) -> Environment:
        """The same decisions, with nothing priced yet."""
        fresh = replace(self, evaluations=0, _prices={}, _keys={}, _sites={})
        for name in ("parts", "decisions", "_once", "_model", "_unfolding", "_forward_scopes"):
            if name in self.__dict__:
                fresh.__dict__[name] = self.__dict__[name]
        return fresh

    def estimate(self, state: State) -> Estimate:
        """The estimate of a state, made on the whole program."""
        return estimate(plan_.make(self.assignment(state)), self.target)

    def exact(self, state: State) -> Price:
        """The price of a state on the whole program."""
        return price_of(self.estimate(state))


SITES = 4
"""How many kinds of sites are offered to be taken back at each state."""


def _actions(state: State) -> tuple[Action, ...]:
    return tuple(action for decision in state for action in decision.actions)


def _losers(decided: Assignment, conflict: Conflict) -> set[ClassId]:
    """The classes that did not get the axis at a conflict."""
    return {ClassId(int(decided.classes.of_factor[f])) for f in conflict.losers}


def _bytes_at(decided: Assignment, conflict: Conflict) -> int:
    tables = decided.structure.tables
    return sum(tables.bytes_of[result] for result in tables.rows[conflict.row].results)

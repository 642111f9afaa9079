"""The states one change away from the best, each kind of change in turn.

A search that has found something good looks here first: most of what can still be gained is one change away, and a kind of
change that helped once helps again with another group.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from partir.search.environment import Decision, Environment, State
from partir.search.priors import Priors

EXCHANGES = 4
"""How many others, of the best priors, a group or decision is exchanged for."""

MUTATIONS = 8
"""How many changes by chance are tried for one that means something new."""


@dataclass(eq=False)
class Changes:
    """Changes of one state to states that mean something new: none of the meanings in `seen`."""

    environment: Environment
    priors: Priors
    seen: Collection[object]
    """The meanings that were priced (`Environment.meaning`)."""
    added_before: Counter[Decision] = field(default_factory=Counter[Decision])
    """How often each decision was tried as one more."""
    doubled_before: Counter[Decision] = field(default_factory=Counter[Decision])
    """How often each was tried as the first of two."""
    state: State | None = None
    """The state that is changed."""
    streams: Sequence[Iterator[State]] = ()
    """By kind of change, what is left to try on it."""
    kind: int = 0
    """The kind of change that found something new last."""

    def next(self, state: State) -> State | None:
        """The next change of a state, of the kind that was changed by last before the others; None when all were tried."""
        if state is not self.state:
            self.state, ordered = state, self.priors.ordered(state)
            self.streams = (
                self.added(state, ordered),
                earlier(state),
                self.doubled(state, ordered),
                self.varied(state),
                self.exchanged(state, ordered),
            )
        for _ in self.streams:
            new = self.new(self.streams[self.kind])
            if new is not None:
                return new
            self.kind = (self.kind + 1) % len(self.streams)
        return None

    def new(self, states: Iterable[State]) -> State | None:
        """The first state that means something new."""
        return next((state for state in states if self.environment.meaning(state) not in self.seen), None)

    def added(self, state: State, ordered: Sequence[Decision]) -> Iterator[State]:
        """The state with one decision more."""
        yield from ((*state, decision) for decision in _least(self.added_before, ordered))

    def doubled(self, state: State, ordered: Sequence[Decision]) -> Iterator[State]:
        """The state with each group on two axes at once: on one alone it may cost more than it brings."""
        for first in _least(self.doubled_before, ordered):
            if first.axis and first.kind != "prefer":
                alike = [d for d in self.environment.tiles((*state, first)) if d.name == first.name and d.kind == first.kind]
                yield from ((*state, first, second) for second in alike)

    def varied(self, state: State) -> Iterator[State]:
        """The state with a decision exchanged for another of its group, or left out."""
        for where, decision in enumerate(state):
            rest = state[:where] + state[where + 1 :]
            for other in self.environment.tiles(rest):
                if other.name == decision.name and other != decision:
                    yield (*state[:where], other, *state[where + 1 :])
            yield rest

    def exchanged(self, state: State, ordered: Sequence[Decision]) -> Iterator[State]:
        """The state with each group, and then each decision, exchanged in its place for one of the others of the best priors;
        groups also for themselves with all of it, or its optimizer state alone, cut."""
        best = [*dict.fromkeys((d.name, d.kind) for d in ordered if d.kind == "tile" and d not in state)][:EXCHANGES]
        for name in dict.fromkeys(decision.name for decision in state):
            axes = [d.axis for d in state if d.name == name]
            free = self.environment.tiles(tuple(d for d in state if d.name != name))
            for other in dict.fromkeys([(name, "tile"), (name, "state"), *best]):
                new = {d.axis: d for d in free if (d.name, d.kind) == other}
                if all(axis in new for axis in axes):
                    yield tuple(new[d.axis] if d.name == name else d for d in state)
        for where, decision in enumerate(state):
            free = frozenset(self.environment.tiles(state[:where] + state[where + 1 :]))
            others = [d for d in ordered if d in free and d.axis == decision.axis and d.name != decision.name]
            yield from ((*state[:where], other, *state[where + 1 :]) for other in others[:EXCHANGES])

    def by_chance(self, state: State) -> State | None:
        """The state changed by chance to something new; None where a few changes have all been seen."""
        return self.new(self._mutated(state) for _ in range(MUTATIONS if state else 0))

    def _mutated(self, state: State) -> State:
        """A state with one decision more, less, exchanged for another, or taken at another time."""
        rng = self.priors.rng
        kind, where = int(rng.integers(4)), int(rng.integers(len(state)))
        rest = state[:where] + state[where + 1 :]
        if kind == 0:
            return rest
        if kind == 1:
            to = int(rng.integers(len(rest) + 1))
            return (*rest[:to], state[where], *rest[to:])
        base = state if kind == 2 else rest
        legal = self.environment.legal(base)
        if not legal:
            return rest
        new = legal[int(rng.integers(len(legal)))]
        to = len(base) if new.kind in ("prefer", "gather") else int(rng.integers(len(base) + 1))
        return (*base[:to], new, *base[to:])


def _least(before: Counter[Decision], ordered: Sequence[Decision]) -> Iterator[Decision]:
    """Decisions, those that were tried least first."""
    for decision in sorted(ordered, key=lambda decision: before[decision]):
        before[decision] += 1
        yield decision


def earlier(state: State) -> Iterator[State]:
    """The state with the decisions of each group taken together, at the first of them (in this order and the other one), and
    before those of each earlier group: what is decided first wins where two meet."""
    names = list(dict.fromkeys(decision.name for decision in state))
    for later, name in enumerate(names):
        own = tuple(d for d in state if d.name == name)
        rest = tuple(d for d in state if d.name != name)
        first = state.index(own[0])
        yield (*rest[:first], *own, *rest[first:])
        yield (*rest[:first], *reversed(own), *rest[first:])
        for other in names[:later]:
            at = next(k for k, d in enumerate(rest) if d.name == other)
            yield (*rest[:at], *own, *rest[at:])

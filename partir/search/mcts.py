"""Monte Carlo tree search: upper confidence bounds, progressive widening, rollouts guided by what each decision is worth alone.

Source: Kocsis and Szepesvari 2006 (UCT); Coulom 2007 (progressive widening); Schaarschmidt et al. 2021 (Automap) for the use.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain

import numpy as np

from partir.search.environment import Decision, Price, State
from partir.search.searcher import Run, Searcher


@dataclass(eq=False)
class _Node:
    """One state of the tree: how often it was passed, the sum of rewards, what was tried and what is left, best prior first."""

    state: State
    left: list[Decision] | None = None
    children: dict[Decision, _Node] = field(default_factory=dict[Decision, "_Node"])
    visits: int = 0
    total: float = 0.0

    @property
    def mean(self) -> float:
        return self.total / self.visits if self.visits else 0.0


@dataclass(eq=False)
class _Gains:
    """What a decision gained in the states it was added to."""

    count: int = 0
    total: float = 0.0
    best: float = -math.inf

    def add(self, gain: float) -> None:
        self.count += 1
        self.total += gain
        self.best = max(self.best, gain)


@dataclass(frozen=True)
class MCTS(Searcher):
    """First every decision is priced alone: its gain is its prior, corrected by what it gains in the states it is added to.

    Then the best state is changed, each time to one that was not priced: decisions are added in turn, and by chance one is
    added, dropped, swapped or moved. When all have been added in turn, of `period` episodes one goes down the tree: it is
    walked by upper confidence bounds, a node gets another child when it was passed often enough (`widening`), and what is added
    is decided on from there. The others go on changing the best state, also by the order of its groups and by each group on two
    axes at once, or drop one of its decisions or groups and decide on from there. The reward is how many times better than the start a state is, as a
    logarithm. Deterministic by `seed`. At most two states are priced in an episode.
    """

    episodes: int = 500
    seconds: float | None = None
    seed: int = 0
    exploration: float = 0.3
    widening: float = 1.0
    period: int = 6
    depth: int = 12

    @property
    def budget(self) -> tuple[int | None, float | None]:
        return self.episodes, self.seconds

    def explore(self, run: Run) -> None:
        _Search(self, run).run()


class _Search:
    def __init__(self, settings: MCTS, run: Run) -> None:
        self.settings, self.under_way = settings, run
        self.environment = run.environment
        self.rng = np.random.default_rng(settings.seed)
        self.start = run.environment.price(())
        self.gains: dict[Decision, _Gains] = {}
        self.extended: State | None = None
        self.singles: Iterator[State] | None = None
        self.pairs: Iterator[State] = iter(())
        self.in_turn = self.whole_groups = False

    def reward(self, price: Price) -> float:
        return math.log(self.start.cost / price.cost) if price.cost > 0 else 0.0

    def price(self, state: State) -> float:
        return self.reward(self.under_way.price(state))

    def run(self) -> None:
        root = _Node(())
        for decision in self.environment.tiles(()):
            if self.under_way.spent:
                return
            self.learn(decision, 0.0, self.price((decision,)))
            self.under_way.count()
        turn = 0
        while not self.under_way.spent:
            new = self.neighbour() if self.is_climbing else None
            if new is None:
                turn = (turn + 1) % self.settings.period
                if turn:
                    new = self.neighbour() if turn % 2 else self.rebuilt()
            if new is not None:
                self.price(new)
            else:
                self.descend(root)
            self.under_way.count()

    @property
    def is_climbing(self) -> bool:
        """Whether not every decision was added to the best state yet."""
        return self.under_way.best is not self.extended or self.singles is not None

    def neighbour(self) -> State | None:
        """The best state changed to one that means something new, in turn by an extension and by chance; None where a few
        changes have all been seen."""
        best = self.under_way.best
        if best is not self.extended:
            self.extended, ordered = best, self.ordered(best)
            self.singles = ((*best, decision) for decision in ordered)
            self.pairs = chain(earlier(best), self.doubled(best, ordered))
        self.in_turn = not self.in_turn
        more = None
        if self.in_turn and self.singles is not None:
            more = self.new(self.singles)
            self.singles = None if more is None else self.singles
        if self.in_turn and more is None:
            more = self.new(self.pairs)
        return more or self.new(self.changed(best) for _ in range(CHANGES if best else 0))

    def doubled(self, state: State, ordered: Sequence[Decision]) -> Iterator[State]:
        """The state with each group on two axes at once: on one alone it may cost more than it brings."""
        for first in ordered:
            if first.kind != "prefer":
                alike = [d for d in self.environment.tiles((*state, first)) if d.name == first.name and d.kind == first.kind]
                yield from ((*state, first, second) for second in alike)

    def rebuilt(self) -> State | None:
        """The best state without one of its decisions, or of its groups on all axes, decided on from there without it."""
        best = self.under_way.best
        out = [best[int(self.rng.integers(len(best)))] for _ in range(CHANGES)] if best else []
        self.whole_groups = not self.whole_groups
        if self.whole_groups:
            dropped = [tuple(d for d in best if d.name == one.name) for one in out]
        else:
            dropped = [(one,) for one in out]
        return self.new(self.rolled_out(tuple(d for d in best if d not in without), without) for without in dropped)

    def new(self, states: Iterable[State]) -> State | None:
        """The first state that means something new."""
        seen = self.under_way.seen
        return next((state for state in states if self.environment.meaning(state) not in seen), None)

    def descend(self, root: _Node) -> None:
        path = [root]
        while len(path) <= self.settings.depth:
            node = path[-1]
            if node.left is None:
                node.left = self.ordered(node.state)
            if node.left and len(node.children) < 1 + self.settings.widening * math.sqrt(node.visits):
                path.append(self.grow(node))
                break
            if not node.children:
                break
            path.append(max(node.children.values(), key=lambda child: self.bound(node, child)))
        reward = max(self.price(path[-1].state), self.price(self.rolled_out(path[-1].state)))
        for passed in path:
            passed.visits += 1
            passed.total += reward

    def grow(self, node: _Node) -> _Node:
        """Add the child of the best prior among those left."""
        assert node.left is not None
        decision = node.left.pop(0)
        child = node.children[decision] = _Node((*node.state, decision))
        self.learn(decision, self.price(node.state), self.price(child.state))
        return child

    def learn(self, decision: Decision, before: float, after: float) -> None:
        """Note what a decision gained."""
        self.gains.setdefault(decision, _Gains()).add(after - before)

    def prior(self, decision: Decision) -> float:
        """The mean of what a decision gained, halfway to its best; zero where nothing is known."""
        seen = self.gains.get(decision)
        return 0.5 * (seen.total / seen.count + seen.best) if seen is not None else 0.0

    def bound(self, parent: _Node, child: _Node) -> float:
        return child.mean + self.settings.exploration * math.sqrt(math.log(parent.visits + 1) / (child.visits + 1))

    def ordered(self, state: State) -> list[Decision]:
        """What is legal, the best prior first; ties broken by chance."""
        legal = self.environment.legal(state)
        noise = self.rng.random(len(legal)) * 1e-6
        order = sorted(range(len(legal)), key=lambda i: -(self.prior(legal[i]) + noise[i]))
        return [legal[i] for i in order]

    def rolled_out(self, state: State, without: State = ()) -> State:
        """A state after further decisions, each by a softmax over priors in which stopping takes part."""
        for _ in range(self.settings.depth - len(state)):
            legal = [decision for decision in self.environment.tiles(state) if decision not in without]
            picked = self.picked(legal)
            if picked is None:
                break
            state = (*state, picked)
        return state

    def picked(self, legal: Sequence[Decision]) -> Decision | None:
        weights = np.array([*(self.prior(d) for d in legal), 0.0])
        weights = np.exp((weights - weights.max()) / TEMPERATURE)
        pick = int(self.rng.choice(len(weights), p=weights / weights.sum()))
        return legal[pick] if pick < len(legal) else None

    def changed(self, state: State) -> State:
        """A state with one decision more, less, exchanged for another, or taken at another time."""
        kind = int(self.rng.integers(4))
        where = int(self.rng.integers(len(state)))
        rest = state[:where] + state[where + 1 :]
        if kind == 0:
            return rest
        if kind == 1:
            to = int(self.rng.integers(len(rest) + 1))
            return (*rest[:to], state[where], *rest[to:])
        base = state if kind == 2 else rest
        legal = self.environment.legal(base)
        if not legal:
            return rest
        new = legal[int(self.rng.integers(len(legal)))]
        to = len(base) if new.kind == "prefer" else int(self.rng.integers(len(base) + 1))
        return (*base[:to], new, *base[to:])


def earlier(state: State) -> Iterator[State]:
    """The state with the decisions of each group taken before those of each earlier one: what is decided first wins where two
    meet."""
    names = list(dict.fromkeys(decision.name for decision in state))
    for later, name in enumerate(names):
        own = tuple(d for d in state if d.name == name)
        rest = tuple(d for d in state if d.name != name)
        for other in names[:later]:
            at = next(k for k, d in enumerate(rest) if d.name == other)
            yield (*rest[:at], *own, *rest[at:])


CHANGES = 8
"""How many changes of the best state are tried before an episode goes down the tree instead."""

TEMPERATURE = 0.15
"""Of the softmax over priors, in natural logarithms of the step time."""

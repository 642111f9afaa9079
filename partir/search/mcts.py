"""Monte Carlo tree search: upper confidence bounds, progressive widening, rollouts guided by what each decision is worth alone.

Source: Kocsis and Szepesvari 2006 (UCT); Coulom 2007 (progressive widening); Schaarschmidt et al. 2021 (Automap) for the use;
Lourenço, Martin and Stützle 2003 (iterated local search) for the climbs around the best.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np

from partir.search.changes import Changes
from partir.search.climb import Climb
from partir.search.environment import Decision, Price, State
from partir.search.priors import Priors
from partir.search.searcher import Run, Searcher


@dataclass(eq=False)
class _Node:
    """One state of the tree."""

    state: State
    left: list[Decision] | None = None
    """What was not tried from here yet, the best prior first; None before the first visit."""
    children: dict[Decision, _Node] = field(default_factory=dict[Decision, "_Node"])
    visits: int = 0
    """How often a walk passed here."""
    total: float = 0.0
    """The sum of the rewards of these walks."""

    @property
    def mean(self) -> float:
        """The mean reward of the walks that passed here."""
        return self.total / self.visits if self.visits else 0.0


@dataclass(frozen=True)
class MCTS(Searcher):
    """First every decision is priced alone: its gain is its prior, corrected by what it gains in the states it is added to.

    Then the best state is changed, each time to one that was not priced, until no single change betters it (see
    `partir.search.changes`). From then on, of `period` episodes one goes down the tree: it is walked by upper confidence
    bounds, a node gets another child when it was passed often enough (`widening`), and what is added is decided on from there.
    The others change the best state by chance, or climb from somewhere near it: it loses one or two groups, or gets another
    decision, and is decided on from there. The reward is how many times better than the start a state is, as a logarithm.

    Ends after `episodes`, or `seconds`, or when nothing was better by a thousandth for `patience` episodes in a row ("auto":
    100, or four for each decision where that is more; None: it does not end for that). Deterministic by `seed`. At most two
    states are priced in an episode.
    """

    episodes: int = 500
    seconds: float | None = None
    seed: int = 0
    exploration: float = 0.3
    widening: float = 1.0
    period: int = 6
    depth: int = 12
    patience: int | Literal["auto"] | None = "auto"

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
        self.priors = Priors(run.environment, self.rng)
        self.changes = Changes(run.environment, self.priors, run.seen)
        self.climb: Climb | None = None
        self.leaving = 0

    def reward(self, price: Price) -> float:
        """How many times better than the start a price is, as a natural logarithm."""
        return math.log(self.start.cost / price.cost) if price.cost > 0 else 0.0

    def price(self, state: State) -> float:
        """The reward of a state, which is priced where that was not done."""
        return self.reward(self.under_way.price(state))

    def run(self) -> None:
        """Each decision alone, then changes of the best state; walks of the tree, climbs and chance where these are used up."""
        root, single = _Node(()), self.environment.tiles(())
        patience = self.settings.patience
        if patience == "auto":
            patience = max(PATIENCE, PATIENCE_PER_DECISION * len(single))
        for decision in single:
            if self.under_way.spent:
                return
            self.priors.learn(decision, self.price((decision,)))
            self.under_way.count()
        turn, mark, since = 0, math.inf, 0
        while not self.under_way.spent and since != patience:
            new = self.changes.next(self.under_way.best)
            if new is None:
                turn = (turn + 1) % self.settings.period
                if not turn:
                    self.descend(root)
                elif turn % 2:
                    self.go_on()
                else:
                    new = self.changes.by_chance(self.under_way.best)
            if new is not None:
                self.price(new)
            self.under_way.count()
            since += 1
            if self.under_way.best_price.cost < mark * (1 - MATERIAL):
                mark, since = self.under_way.best_price.cost, 0

    # ---- climbs near the best

    def go_on(self) -> None:
        """Price the next new state of a climb, or the first of another one. States priced before are passed, a few of them."""
        for _ in range(OLD):
            state = self.climb.propose() if self.climb is not None else None
            if self.climb is None or state is None:
                self.climb = Climb(self.priors, *self.left(self.under_way.best))
                continue
            is_new = self.environment.meaning(state) not in self.under_way.seen
            self.climb.tell(self.price(state))
            if is_new:
                return

    def left(self, best: State) -> tuple[State, frozenset[str]]:
        """Perturb (drop one or two groups, or insert a decision), then extend greedily: where the next climb starts, and the
        groups that it must not take back. In turn:

            drop one group    a b a' c   ->  b c          without a         (a and a' are one group on two axes)
            drop two          a b a' c   ->  c            without a and b
            insert            a b a' c   ->  d a b a' c
            replace           a b a' c   ->  a d a' c     without b         (d on the axis of b)
        """
        self.leaving = (self.leaving + 1) % 4
        if self.leaving < 2 and best:
            out = frozenset(best[int(self.rng.integers(len(best)))].name for _ in range(1 + self.leaving))
            return tuple(d for d in best if d.name not in out), out
        if self.leaving == 2 or not best:
            first = self.one_of(self.environment.tiles(()))
            return (first, *(d for d in best if (d.name, d.axis) != (first.name, first.axis))), frozenset()
        where = int(self.rng.integers(len(best)))
        gone, rest = best[where], best[:where] + best[where + 1 :]
        others = [d for d in self.environment.tiles(rest) if d.axis == gone.axis and d.name != gone.name]
        if not others:
            return rest, frozenset()
        return (*best[:where], self.one_of(others), *best[where + 1 :]), frozenset({gone.name})

    def one_of(self, decisions: Sequence[Decision]) -> Decision:
        """One of them by chance."""
        return decisions[int(self.rng.integers(len(decisions)))]

    # ---- the tree

    def descend(self, root: _Node) -> None:
        """One walk down the tree: to a new child of the first node that may have another, or to a leaf; then a rollout."""
        path = [root]
        while len(path) <= self.settings.depth:
            node = path[-1]
            if node.left is None:
                node.left = self.priors.ordered(node.state)
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
        self.priors.learn(decision, self.price(child.state) - self.price(node.state))
        return child

    def bound(self, parent: _Node, child: _Node) -> float:
        """The upper confidence bound of a child (UCT): its mean, and more the less often it was visited."""
        return child.mean + self.settings.exploration * math.sqrt(math.log(parent.visits + 1) / (child.visits + 1))

    def rolled_out(self, state: State) -> State:
        """A state after further decisions, each by a softmax over priors in which stopping takes part."""
        for _ in range(self.settings.depth - len(state)):
            picked = self.picked(self.environment.tiles(state))
            if picked is None:
                break
            state = (*state, picked)
        return state

    def picked(self, legal: Sequence[Decision]) -> Decision | None:
        """One decision by a softmax over priors; None, of prior 0, is to stop."""
        weights = np.array([*(self.priors.of(d) for d in legal), 0.0])  # [decisions + 1] float64
        weights = np.exp((weights - weights.max()) / TEMPERATURE)
        pick = int(self.rng.choice(len(weights), p=weights / weights.sum()))
        return legal[pick] if pick < len(legal) else None


MATERIAL = 1e-3
"""By how much of its cost a state has to be better to be worth waiting on for more."""

PATIENCE, PATIENCE_PER_DECISION = 100, 4
"""Episodes without gain after which a search ends by itself, at least, and for each decision that is open at the start."""

OLD = 32
"""How many states of climbs that were priced before are passed in one episode."""

TEMPERATURE = 0.15
"""Of the softmax over priors, in natural logarithms of the step time."""

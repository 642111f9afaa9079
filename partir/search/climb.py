"""A greedy climb: from one state, by the first decision that betters it, until none does."""

from __future__ import annotations

from dataclasses import dataclass, field

from partir.search.environment import Decision, State
from partir.search.priors import Priors

WIDTH = 8
"""How many decisions are tried for each step of a climb."""


@dataclass(eq=False)
class Climb:
    """A climb from `state` by the decisions of the best priors, without some groups.

    Whoever climbs asks for the next state (`propose`), prices it, and says what it is worth (`tell`):

        propose   (a,)        the start        tell 1.0
        propose   (a, b)                       tell 0.9    no better: the next decision is tried in place of b
        propose   (a, c)                       tell 1.2    better: the climb goes on from here
        propose   (a, c, b)                    tell 1.1
        propose   None        nothing that is left betters (a, c)
    """

    priors: Priors
    state: State
    without: frozenset[str] = frozenset()
    """The groups (by the name of their decisions) that are not tried."""
    is_under_way: bool = False
    """Whether the start was proposed."""
    reward: float = 0.0
    """What `state` is worth, once it was told."""
    told: float = 0.0
    """What the state that was proposed last is worth."""
    tried: Decision | None = None
    """The decision that was added to `state` last."""
    untried: list[Decision] = field(default_factory=list[Decision])

    def tell(self, reward: float) -> None:
        """Say what the state that was proposed last is worth."""
        self.told = reward

    def propose(self) -> State | None:
        """The next state to be priced; None at the top. The first is the state it starts from."""
        if not self.is_under_way:
            self.is_under_way = True
            return self.state
        if self.tried is None:
            self._go_on(self.state)
        else:
            self.priors.learn(self.tried, self.told - self.reward)
            if self.told > self.reward:
                self._go_on((*self.state, self.tried))
        if not self.untried:
            return None
        self.tried = self.untried.pop(0)
        return (*self.state, self.tried)

    def _go_on(self, state: State) -> None:
        """Climb on from a state, which is worth what was told last."""
        self.state, self.reward = state, self.told
        self.untried = [d for d in self.priors.ordered(state) if d.name not in self.without][:WIDTH]

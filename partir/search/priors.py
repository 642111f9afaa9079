"""What is known of decisions before they are tried: what each gained where it was added so far."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np

from partir.search.environment import Decision, Environment, State


@dataclass(eq=False)
class _Gains:
    """What a decision gained in the states it was added to."""

    count: int = 0
    total: float = 0.0
    best: float = -math.inf


@dataclass(eq=False)
class Priors:
    """Gains of decisions, in natural logarithms of the cost."""

    environment: Environment
    rng: np.random.Generator
    gains: dict[Decision, _Gains] = field(default_factory=dict[Decision, _Gains])

    def learn(self, decision: Decision, gain: float) -> None:
        """Note what a decision gained."""
        seen = self.gains.setdefault(decision, _Gains())
        seen.count += 1
        seen.total += gain
        seen.best = max(seen.best, gain)

    def of(self, decision: Decision) -> float:
        """The mean of what a decision gained, halfway to its best; zero where nothing is known.

        gains 0.1, 0.5 and 0.0: the mean is 0.2, the best 0.5, the prior 0.35
        """
        seen = self.gains.get(decision)
        return 0.5 * (seen.total / seen.count + seen.best) if seen is not None else 0.0

    def ordered(self, state: State) -> list[Decision]:
        """What is legal, the best prior first; ties broken by chance."""
        legal = self.environment.legal(state)
        noise = self.rng.random(len(legal)) * 1e-6  # [legal] float64
        order = sorted(range(len(legal)), key=lambda i: -(self.of(legal[i]) + noise[i]))
        return [legal[i] for i in order]

"""The baseline: decide at random, many times."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from partir.search.environment import State
from partir.search.searcher import Run, Searcher


@dataclass(frozen=True)
class Random(Searcher):
    """Each episode takes decisions at random until none is left or a coin says stop, and prices the state it ends in."""

    episodes: int = 500
    seconds: float | None = None
    seed: int = 0

    @property
    def budget(self) -> tuple[int | None, float | None]:
        return self.episodes, self.seconds

    def explore(self, run: Run) -> None:
        rng = np.random.default_rng(self.seed)
        while not run.spent:
            state: State = ()
            while (legal := run.environment.legal(state)) and rng.random() < 0.8:
                state = (*state, legal[int(rng.integers(len(legal)))])
            run.price(state)
            run.count()

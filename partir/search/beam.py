"""The best few states of each length, extended by every decision."""

from __future__ import annotations

from dataclasses import dataclass

from partir.search.environment import State
from partir.search.searcher import Run, Searcher


@dataclass(frozen=True)
class Beam(Searcher):
    """Keep the `width` best states, extend each by every decision, until `patience` lengths in a row bring nothing better.
    An episode is one extended state."""

    width: int = 4
    patience: int = 2
    episodes: int | None = None
    seconds: float | None = None

    @property
    def budget(self) -> tuple[int | None, float | None]:
        return self.episodes, self.seconds

    def explore(self, run: Run) -> None:
        beam: list[State] = [()]
        waiting = 0
        while beam and waiting < self.patience and not run.spent:
            before = run.best_price.rank
            found: dict[object, tuple[tuple[bool, float], State]] = {}
            for state in beam:
                for decision in run.environment.legal(state):
                    if run.spent:
                        return
                    longer = (*state, decision)
                    found.setdefault(frozenset(longer), (run.price(longer).rank, longer))
                    run.count()
            beam = [state for _, state in sorted(found.values(), key=lambda item: item[0])[: self.width]]
            waiting = 0 if run.best_price.rank < before else waiting + 1

"""Every state, once: the yardstick for the others on small programs."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from partir.errors import SearchError, error_text
from partir.search.environment import State
from partir.search.searcher import Run, Searcher


@dataclass(frozen=True)
class Exhaustive(Searcher):
    """Every order of every set of decisions; states that mean the same are extended once.

    Nothing is priced twice. Raises SearchError when there are more than `limit` states.
    """

    limit: int = 20_000

    def explore(self, run: Run) -> None:
        environment = run.environment
        queue: deque[State] = deque([()])
        seen = {environment.meaning(())}
        while queue:
            state = queue.popleft()
            for decision in environment.legal(state):
                if run.spent:
                    return
                longer = (*state, decision)
                meaning = environment.meaning(longer)
                if meaning in seen:
                    continue
                seen.add(meaning)
                if len(seen) > self.limit:
                    raise SearchError(
                        error_text(
                            f"more than {self.limit} states to look at",
                            why=f"{len(environment.decisions)} decisions in every order",
                            hint="MCTS or Beam, fewer axes, or a larger limit",
                        )
                    )
                run.price(longer)
                run.count()
                queue.append(longer)

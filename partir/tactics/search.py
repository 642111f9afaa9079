"""The tactic that looks for decisions itself."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from partir.cost import registry as targets
from partir.cost.target import Target
from partir.errors import TargetError, error_text
from partir.search import MCTS, Decision, Environment, Result, Searcher
from partir.search.searcher import Show
from partir.sharding.actions import Action
from partir.sharding.assignment import Assignment

logger = logging.getLogger("partir")


@dataclass(frozen=True)
class Search:
    """Decide on `axes` by search, after what the tactics before it decided: the fastest estimated step that fits `target`.

    Decisions are dimension groups on axes, the same with parameters kept replicated (ZeRO-2), conflicts taken back, and
    parameters gathered once in a step. `algorithm` is a searcher of `partir.search`, by default `MCTS()`. `scopes` limits it to
    what lives in these named scopes (a decision holds for all repeats of a scope), `filter` to the decisions for which it is
    true. `target` is by default the one of the partition.

    What was found, with the trace and the alternatives, is in `result` afterwards. Ctrl-C ends it with the best so far. Where
    nothing is better than leaving the program as it is, it does so, and logs that.
    """

    axes: str | Sequence[str]
    algorithm: Searcher | None = None
    scopes: Sequence[str] | None = None
    filter: Callable[[Decision], bool] | None = None
    target: Target | str | None = None
    show: Show | None = field(default=None, repr=False, compare=False)
    results: list[Result] = field(default_factory=list[Result], init=False, repr=False, compare=False)

    @property
    def result(self) -> Result | None:
        """What the last search with this tactic found; None before the first."""
        return self.results[-1] if self.results else None

    def environment(self, assignment: Assignment, target: Target | None = None, *, grouped: bool = True) -> Environment:
        """What is to be decided after an assignment, on the tactic's own target or else `target`.

        Raises TargetError where there is neither, SearchError where nothing can be decided.
        """
        target = targets.get(self.target) if self.target is not None else target
        if target is None:
            raise TargetError(
                error_text(
                    f"{self!r} has no target to judge by",
                    hint='partition(schedule, target="tpu_v3"), partir.jit(f, target=...), or Search(..., target=...)',
                )
            )
        axes = (self.axes,) if isinstance(self.axes, str) else tuple(self.axes)
        scopes = tuple(self.scopes) if self.scopes is not None else None
        return Environment(start=assignment, target=target, axes=axes, scopes=scopes, filter=self.filter, grouped=grouped)

    def actions(self, assignment: Assignment) -> Sequence[Action]:
        return self.actions_on(assignment, None)

    def actions_on(self, assignment: Assignment, target: Target | None) -> Sequence[Action]:
        """The actions of the best strategy found, judged on the tactic's own target or else `target`."""
        environment = self.environment(assignment, target)
        found = (self.algorithm or MCTS()).search(environment, self.show)
        self.results.append(found)
        best = next((s for s in found.candidates if environment.exact(s).fits == found.price.fits), found.state)
        if not best:
            logger.warning(
                "%s found nothing better than leaving the program as it is (%d strategies estimated on %s)",
                f"Search({self.axes!r})",
                found.evaluations,
                environment.target.name,
            )
        return [action for decision in best for action in decision.actions]

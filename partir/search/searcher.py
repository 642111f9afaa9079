"""What all searchers share: one interface, a budget, the best so far, and the report of why it is the best."""

from __future__ import annotations

import signal
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import FrameType

from partir.search.environment import Decision, Environment, Price, State


@dataclass(frozen=True)
class Progress:
    """One improvement: after how many episodes, evaluations and seconds, to what."""

    episodes: int
    evaluations: int
    seconds: float
    price: Price
    state: State


@dataclass(eq=False)
class Result:
    """What a search found."""

    environment: Environment
    state: State
    """The best sequence of decisions, without those that do nothing for it."""
    price: Price
    """What it costs."""
    trace: list[Progress]
    """Each improvement on the way."""
    priced: list[State]
    """All states that were priced, one for each meaning, the best first."""
    smallest: State
    """The state of the lowest peak of memory that was met."""
    evaluations: int
    """How many states were planned and estimated."""
    seconds: float
    finished: bool
    """False where it was interrupted."""

    @property
    def candidates(self) -> list[State]:
        """The best state, and the next few that differ from it in meaning."""
        best = self.environment.meaning(self.state)
        return [self.state, *(other for other in self.priced[:CANDIDATES] if self.environment.meaning(other) != best)]

    def alternatives(self) -> list[State]:
        """What to ask a compiler about besides the best: the best state that sends other things (a fifth of the bytes differ),
        and the best of at most a quarter of its decisions. An estimate errs alike for what is alike, so the candidates next to
        the best tell little. Only what fits, where anything does."""
        price, sent = self.environment.price, self.environment.sent
        own = sent(self.state)
        fit = [state for state in self.priced if price(state).fits == self.price.fits]
        other = next((state for state in fit[:LOOKED_AT] if _apart(own, sent(state)) > APART), None)
        few = next((state for state in fit if len(state) <= max(1, len(self.state) // 4)), None)
        found = dict.fromkeys(state for state in (other, few) if state is not None)
        return [state for state in found if self.environment.meaning(state) != self.environment.meaning(self.state)]

    def without(self) -> list[tuple[Decision, Price]]:
        """For each decision of the best state, the price of the state without it."""
        return [(d, self.environment.price(self.state[:k] + self.state[k + 1 :])) for k, d in enumerate(self.state)]

    def rejected(self, count: int = 5) -> list[tuple[Decision, Price]]:
        """The decisions that could have been added, with what each would have cost, the nearest first."""
        found = [(d, self.environment.price((*self.state, d))) for d in self.environment.legal(self.state)]
        return sorted(found, key=lambda item: item[1].rank)[:count]


Show = Callable[[int, "int | None", Price], None]
"""Told now and then how far a search is: episodes done, of how many, and the best price so far."""


@dataclass(eq=False)
class Run:
    """One search under way: prices states, keeps the best, and knows when the budget is spent.

    A searcher asks `spent` before each episode, `price`s states in it, and calls `count` after it.
    """

    environment: Environment
    episodes: int | None
    """The budget: how many episodes, None for no limit."""
    seconds: float | None
    """The budget: how many seconds, None for no limit."""
    show: Show | None = None
    done: int = 0
    """Episodes so far."""
    best: State = ()
    trace: list[Progress] = field(default_factory=list[Progress])
    interrupted: bool = False

    def __post_init__(self) -> None:
        self.started = time.monotonic()
        self.first = self.environment.evaluations
        self.best_price = self.smallest_price = self.environment.price(())
        self.smallest: State = ()
        self.seen: dict[object, tuple[Price, State]] = {}  # by meaning (`Environment.meaning`), the first state that had it
        self._note()

    @property
    def evaluations(self) -> int:
        """States priced in this run."""
        return self.environment.evaluations - self.first

    @property
    def spent(self) -> bool:
        """Whether the budget is used up, or somebody wants no more of it."""
        if self.interrupted:
            return True
        if self.episodes is not None and self.done >= self.episodes:
            return True
        return self.seconds is not None and time.monotonic() - self.started >= self.seconds

    def price(self, state: State) -> Price:
        """The price of a state, noted where it is the best so far. Among equals the one of fewer decisions is better."""
        found = self.environment.price(state)
        self.seen.setdefault(self.environment.meaning(state), (found, state))
        if found.bytes < self.smallest_price.bytes:
            self.smallest, self.smallest_price = state, found
        if (found.rank, len(state)) < (self.best_price.rank, len(self.best)):
            better = found.rank < self.best_price.rank
            self.best, self.best_price = state, found
            if better:
                self._note()
        return found

    def count(self) -> None:
        """One episode is done."""
        self.done += 1
        if self.show is not None:
            self.show(self.done, self.episodes, self.best_price)

    def _note(self) -> None:
        elapsed = time.monotonic() - self.started
        self.trace.append(Progress(self.done, self.evaluations, elapsed, self.best_price, self.best))

    def pruned(self) -> State:
        """The best state without the decisions that do nothing for it."""
        state = self.best
        for decision in reversed(state):
            shorter = tuple(d for d in state if d is not decision)
            if self.environment.price(shorter).rank <= self.environment.price(state).rank:
                state = shorter
        return state

    def result(self, *, finished: bool) -> Result:
        """What was found."""
        state = self.pruned()
        price = self.environment.price(state)
        elapsed = time.monotonic() - self.started
        priced = [other for _, other in sorted(self.seen.values(), key=lambda item: item[0].rank)]
        return Result(
            environment=self.environment,
            state=state,
            price=price,
            trace=self.trace,
            priced=priced,
            smallest=self.smallest,
            evaluations=self.evaluations,
            seconds=elapsed,
            finished=finished,
        )


def _apart(first: Mapping[str, float], second: Mapping[str, float]) -> float:
    """By how much of all that is sent two states differ: 0 where both send as many bytes by each kind of collective."""
    differ = sum(abs(first.get(kind, 0.0) - second.get(kind, 0.0)) for kind in {*first, *second})
    return differ / max(sum(first.values()), sum(second.values()), 1.0)


CANDIDATES = 8
"""How many states are candidates besides the best."""

APART, LOOKED_AT = 0.2, 64
"""From which share of its bytes on a state sends other things, and among how many of the best one is looked for."""


class Searcher(ABC):
    """Something that looks for the best state of an environment. Anytime: an interrupt ends it with the best so far, when the
    state under way is priced; a second one at once."""

    @property
    def budget(self) -> tuple[int | None, float | None]:
        """(episodes, seconds), None for no limit."""
        return None, None

    @abstractmethod
    def explore(self, run: Run) -> None:
        """Price states until the budget is spent or nothing is left."""

    def search(self, environment: Environment, show: Show | None = None) -> Result:
        """Look for the best state. The same environment and settings give the same result, unless the budget is in seconds."""
        run = Run(environment, *self.budget, show)
        try:
            with _waiting(run):
                self.explore(run)
        except KeyboardInterrupt:
            run.interrupted = True
        return run.result(finished=not run.interrupted)


@contextmanager
def _waiting(run: Run) -> Generator[None]:
    """An interrupt is noted, and no exception thrown into whatever runs (Python loses one that comes while it collects
    garbage); a second one is thrown. As it was where somebody else handles interrupts, or in another thread."""
    is_main = threading.current_thread() is threading.main_thread()
    if not is_main or signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        yield
        return

    def note(number: int, frame: FrameType | None) -> None:
        if run.interrupted:
            signal.default_int_handler(number, frame)
        run.interrupted = True

    signal.signal(signal.SIGINT, note)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)

"""Compiles the best strategy of a search and its alternatives with a real compiler, to take the one that is fastest there."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from partir.errors import CompilerError
from partir.search import Result
from partir.search.environment import State
from partir.sharding.strategy import Strategy
from partir.stages import Partitioned, Traced
from partir.viz.report import bytes_text, seconds_text
from partir.viz.table import Table


@dataclass(frozen=True, eq=False)
class Compiled:
    """One compiled strategy.

    `estimated` is the predicted step time in seconds, `seconds` that of `partir.judge` and `peak_bytes` the compiler's peak
    memory. If the compiler refused the program, `seconds` is None and `why` has the reason.
    """

    state: State
    part: Partitioned
    estimated: float
    seconds: float | None
    peak_bytes: int
    why: str = ""


def compiled(traced: Traced, result: Result, topology: str) -> list[Compiled]:
    """The best strategy of a search and its alternatives, each compiled for a topology; the fastest first.

    Raises the compiler's error (CompilerError, MemoryLimitError) for the last one if it refuses all of them.
    """
    found: list[Compiled] = []
    states = [result.state, *result.alternatives()]
    for number, state in enumerate(states, 1):
        print(f"... compiling strategy {number} of {len(states)} for {topology}", file=sys.stderr, flush=True)
        strategy = Strategy.of(result.environment.assignment(state))
        part = traced.partition([strategy] if strategy.actions else [], target=result.environment.target)
        estimated = result.environment.price(state).seconds
        try:
            judged = part.verify(topology).judgement
        except CompilerError as error:
            if number == len(states) and all(one.seconds is None for one in found):
                raise
            found.append(Compiled(state, part, estimated, None, 0, str(error).splitlines()[0]))
        else:
            found.append(Compiled(state, part, estimated, judged.step_seconds, judged.peak_bytes))
    return sorted(found, key=lambda one: (one.seconds is None, one.seconds or 0.0))


def compiled_table(found: Sequence[Compiled], topology: str) -> Table:
    """A row per strategy, the fastest first."""
    rows = [
        (
            f"{len(one.state)} decision{'s' if len(one.state) != 1 else ''}"
            + (", the best by the estimate" if one.estimated == _least(found) else ""),
            seconds_text(one.estimated),
            seconds_text(one.seconds) if one.seconds is not None else one.why,
            bytes_text(one.peak_bytes) if one.seconds is not None else "",
        )
        for one in found
    ]
    headings = ("strategy", "estimated", "by the compiler", "peak")
    return Table(f"compiled for {topology}, the fastest is taken", headings, tuple(rows), (), frozenset(headings[1:]))


def records(found: Sequence[Compiled]) -> list[dict[str, Any]]:
    """The rows of `compiled_table` as plain data."""
    return [
        {
            "decisions": [str(decision) for decision in one.state],
            "estimated_seconds": one.estimated,
            "step_seconds": one.seconds,
            "peak_bytes": one.peak_bytes,
            **({"error": one.why} if one.why else {}),
        }
        for one in found
    ]


def _least(found: Sequence[Compiled]) -> float:
    return min(one.estimated for one in found)

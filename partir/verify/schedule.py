"""Replays the schedule of a compiled program, with one clock for the device and one for its interconnect links."""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace

from partir.cost.target import Target
from partir.verify.collective_prices import CollectivePrices
from partir.verify.hlo import Computation, Instruction, Module
from partir.verify.roofline import seconds_of
from partir.verify.transfers import Event, Transfer, event_of

_CYCLES = re.compile(r'"estimated_cycles":"(\d+)"')
UNKNOWN = 2**62
"""Cycles from this number on mean "unknown": the TPU compiler writes the largest integer on fusions that it cannot estimate."""
HEAVY = frozenset({"fusion", "convolution", "dot", "custom-call", "scatter", "gather", "sort", "reduce-window"})
"""Opcodes that take time, and are priced by the roofline if the compiler gives no cycles for them."""
HINTS = ("ConcatBitcast", "AssumeGatherIndicesInBound", "AllocateBuffer")
"""Custom calls that the TPU compiler uses as internal markers; they take no time."""


@dataclass
class Ran:
    """The times (in seconds) and the collectives of one run of a computation."""

    seconds: float = 0.0
    compute: float = 0.0
    communication: float = 0.0
    transfers: list[Transfer] = field(default_factory=list[Transfer])


@dataclass
class Reader:
    """Walks the schedule of a program. `has_cycles` says whether its compiler reports the cycles of instructions (TPU does).

    An asynchronous collective occupies the interconnect from its start; the device waits for it at its end. `uncounted` is the
    number of instructions without cycles, `unknown_loops` the number of loops whose trip count is not known.
    """

    module: Module
    target: Target
    prices: CollectivePrices
    has_cycles: bool
    uncounted: int = 0
    unknown_loops: int = 0

    def run(self, computation: Computation) -> Ran:
        """One run of a computation, with all that it calls."""
        ran = Ran()
        free_at = 0.0  # when the interconnect is free again
        ends: dict[str, float] = {}  # by handle: when an asynchronous collective in flight is done
        for made in computation.instructions:
            event = event_of(made, computation, self.module, self.prices.devices)
            if event is not None and event.begins is not None:
                seconds = self.prices.seconds(event.begins)
                free_at = max(ran.seconds, free_at) + seconds
                ran.communication += seconds
                ran.transfers.append(event.begins)
                if event.handle:
                    ends[event.handle] = free_at
                else:
                    ran.seconds = free_at
            elif event is not None:
                ran.seconds = max(ran.seconds, ends.pop(event.handle, 0.0))
            inner = self._called(made, computation)
            if inner is not None:
                self._add(ran, inner)
                free_at = max(free_at, ran.seconds) if inner.transfers else free_at
            seconds = self._seconds(made, computation, event)
            ran.compute += seconds
            ran.seconds += seconds
        ran.seconds = max(ran.seconds, free_at) if ends else ran.seconds
        return ran

    @staticmethod
    def _add(ran: Ran, inner: Ran) -> None:
        ran.seconds += inner.seconds
        ran.compute += inner.compute
        ran.communication += inner.communication
        ran.transfers += inner.transfers

    def _called(self, made: Instruction, where: Computation) -> Ran | None:
        """What a loop (all iterations together), a conditional or a call runs; None for other instructions.

        Of a conditional the slowest branch counts for the time, and the collectives of all branches.
        """
        if made.opcode == "while":
            body, condition = (self.module.computations[made.called(name) or ""] for name in ("body", "condition"))
            trips = self.module.trips(made, where)
            if trips is None:
                self.unknown_loops += 1
            turn = self.run(body)
            self._add(turn, self.run(condition))
            return _times(turn, 1 if trips is None else trips)
        if made.opcode == "conditional":
            branches = [self.run(self.module.computations[name]) for name in made.branches]
            slowest = max(branches, key=lambda ran: ran.seconds)
            return replace(slowest, transfers=[transfer for ran in branches for transfer in ran.transfers])
        if made.opcode == "call":
            return self.run(self.module.computations[made.called("to_apply") or ""])
        return None

    def _seconds(self, made: Instruction, where: Computation, event: Event | None) -> float:
        """The compute time of an instruction. (On TPU a fusion may compute and also be part of a collective.)"""
        if self.has_cycles:
            cycles = _CYCLES.search(made.attributes)
            if cycles is not None and int(cycles[1]) < UNKNOWN:
                return int(cycles[1]) / self.target.clock_hertz
            if event is not None or made.opcode not in HEAVY or any(hint in made.attributes for hint in HINTS):
                return 0.0
            self.uncounted += 1
        return seconds_of(made, where, self.module, self.target) if event is None else 0.0

    def notes(self) -> list[str]:
        """Notes on what the figures cannot know."""
        found: list[str] = []
        if self.unknown_loops:
            found.append(f"{self.unknown_loops} loops have a trip count that depends on data: counted as one iteration")
        if self.uncounted:
            found.append(f"{self.uncounted} instructions without cycles from the compiler are priced by the roofline")
        return found


def _times(ran: Ran, trips: int) -> Ran:
    repeated = [transfer.repeated(trips) for transfer in ran.transfers]
    return Ran(ran.seconds * trips, ran.compute * trips, ran.communication * trips, repeated)

"""How long a compiled program takes, in the order its compiler gave it: one clock for the device, one for its wires."""

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
"""So many cycles are none: the TPU compiler writes the largest integer on fusions that it has no estimate for."""
HEAVY = frozenset({"fusion", "convolution", "dot", "custom-call", "scatter", "gather", "sort", "reduce-window"})
"""What costs something, whether the compiler says how much or not."""
HINTS = ("ConcatBitcast", "AssumeGatherIndicesInBound", "AllocateBuffer")
"""Custom calls by which the TPU compiler talks to itself."""


@dataclass
class Ran:
    """One run through a computation."""

    seconds: float = 0.0
    compute: float = 0.0
    communication: float = 0.0
    transfers: list[Transfer] = field(default_factory=list[Transfer])


@dataclass
class Reader:
    """Walks the schedule of a program. `has_cycles`: its compiler says how many cycles an instruction takes (TPU).

    An asynchronous collective holds the wires from its start; the device waits for it where it ends. `uncounted` are the
    instructions that the compiler gives no cycles, `unknown_loops` the loops whose number of turns is not known.
    """

    module: Module
    target: Target
    wires: CollectivePrices
    has_cycles: bool
    uncounted: int = 0
    unknown_loops: int = 0

    def run(self, computation: Computation) -> Ran:
        """One run through a computation, with all that it calls."""
        ran = Ran()
        free_at = 0.0  # when the wires are free again
        ends: dict[str, float] = {}
        for made in computation.instructions:
            event = event_of(made, computation, self.module, self.wires.devices)
            if event is not None and event.begins is not None:
                seconds = self.wires.seconds(event.begins)
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
        """What a loop, a branch or a call runs, all turns together. Of branches the slowest counts, and every collective."""
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
        """What an instruction computes. On TPU a fusion may compute and carry on a collective at once."""
        if self.has_cycles:
            cycles = _CYCLES.search(made.attributes)
            if cycles is not None and int(cycles[1]) < UNKNOWN:
                return int(cycles[1]) / self.target.clock_hertz
            if event is not None or made.opcode not in HEAVY or any(hint in made.attributes for hint in HINTS):
                return 0.0
            self.uncounted += 1
        return seconds_of(made, where, self.module, self.target) if event is None else 0.0

    def notes(self) -> list[str]:
        """What the figures leave out."""
        found: list[str] = []
        if self.unknown_loops:
            found.append(f"{self.unknown_loops} loops run as often as data says: counted once")
        if self.uncounted:
            found.append(f"{self.uncounted} instructions that the compiler gives no cycles are priced by the roofline")
        return found


def _times(ran: Ran, trips: int) -> Ran:
    repeated = [transfer.repeated(trips) for transfer in ran.transfers]
    return Ran(ran.seconds * trips, ran.compute * trips, ran.communication * trips, repeated)

"""When collectives run beside computation: two streams, and what has to wait for what.

A collective starts when what it moves is there and the wires are free; the first kernel that reads its result waits for it.
Kinds that the target cannot run beside computation stop it.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from partir.cost.kernels import Floats


@dataclass(eq=False)
class Transfers:
    """Collectives: each is ready once kernel `after` has run (-1: at the start) and wanted by kernel `before`, takes `seconds`
    of one step, and runs `beside` computation or not."""

    after: list[int] = field(default_factory=list[int])
    before: list[int] = field(default_factory=list[int])
    seconds: list[float] = field(default_factory=list[float])
    beside: list[bool] = field(default_factory=list[bool])

    def add(self, after: int, before: int, seconds: float, beside: bool) -> None:
        """One more."""
        self.after.append(after)
        self.before.append(before)
        self.seconds.append(seconds)
        self.beside.append(beside)


def step_seconds(kernel_seconds: Floats, transfers: Transfers) -> float:
    """The length of one step, given what each kernel takes in it, in their order."""
    done = [0.0, *kernel_seconds.cumsum().tolist()]
    total, last = done[-1], len(done) - 1
    count = len(transfers.seconds)
    ready = np.array(transfers.after, dtype=np.int64) + 1
    wanted = np.maximum(np.array(transfers.before, dtype=np.int64), ready)
    place = np.minimum(np.concatenate([ready, wanted]), last)
    wants = np.repeat([False, True], count)
    takes = np.array(transfers.seconds * 2)
    order = np.lexsort((takes, np.concatenate([wanted, wanted]), wants, place))
    seconds, beside = transfers.seconds, transfers.beside
    waited = wires = end = 0.0
    ends = [0.0] * count
    for event, kernel in zip(order.tolist(), place[order].tolist(), strict=True):
        now = done[kernel] + waited
        if event >= count:
            if ends[event - count] > now:
                waited += ends[event - count] - now
            continue
        wires = ends[event] = (now if now > wires else wires) + seconds[event]
        if not beside[event]:
            waited += wires - now
        end = wires if wires > end else end
    return max(total + waited, end)

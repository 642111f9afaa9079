"""What a collective costs: the alpha-beta model of each algorithm, and the best of them for a size and a group of devices.

An algorithm is two numbers: how many messages follow each other (each costs the latency, alpha) and how many bytes the busiest
wire carries (each costs beta, one over the bandwidth). With N devices and M bytes of the whole vector:

| all_reduce | messages | bytes on the busiest wire |
|---|---|---|
| sequential | 2 (N - 1) | 2 (N - 1) M |
| ring | 2 (N - 1) | 2 (N - 1) / N M |
| bidirectional_ring | 2 floor(N / 2) | (N - 1) / N M |
| recursive_doubling | log N | log N M |
| recursive_halving_doubling | 2 log N | 2 (N - 1) / N M |
| tree | 2 log N | 2 M |
| all_at_once | 1 | (N - 1) M |

A gather or reduce-scatter is half of those that come in two halves. Sources: Thakur, Rabenseifner, Gropp 2005 (Optimization of
Collective Communication Operations in MPICH); Patarasuk and Yuan 2009 (ring); Sanders, Speck, Träff 2009 (two trees).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache

from partir.comm.link import Link

Kind = str
"""A kind of `partir.sharding.plan.COLLECTIVES`."""


@dataclass(frozen=True)
class Traffic:
    """What one algorithm does: messages in a row, and bytes over the busiest wire in one direction."""

    messages: float
    bytes: float

    def seconds(self, link: Link) -> float:
        """How long it takes on these wires."""
        return self.messages * link.latency_seconds + self.bytes / link.bandwidth_bytes_per_second


Algorithm = Callable[[Kind, int, float], Traffic | None]
"""(kind, N devices, M bytes of the largest side of one device) to what it does; None where it does not do that kind.

M is the whole vector for all_reduce, what each has after an all_gather, before a reduce_scatter, and the part of one device for
all_to_all and collective_permute.
"""


def sequential(kind: Kind, devices: int, size: float) -> Traffic | None:
    """One device takes what the others have, one after the other, and hands out the result likewise."""
    others = devices - 1
    if kind == "all_reduce":
        return Traffic(2 * others, 2 * others * size)
    if kind in ("all_gather", "reduce_scatter"):
        return Traffic(2 * others, others * size + others * size / devices)
    return None


def ring(kind: Kind, devices: int, size: float) -> Traffic | None:
    """Each device sends a part to its neighbour, N - 1 times round.

    On a ring, a piece of an all_to_all travels N / 2 hops on average.
    """
    others = devices - 1
    if kind == "all_reduce":
        return Traffic(2 * others, 2 * others * size / devices)
    if kind in ("all_gather", "reduce_scatter"):
        return Traffic(others, others * size / devices)
    if kind == "all_to_all":
        return Traffic(others, others * size / 2)
    return Traffic(1, size) if kind == "collective_permute" else None


def bidirectional_ring(kind: Kind, devices: int, size: float) -> Traffic | None:
    """The ring in both directions at once: each carries half, and a piece comes the shorter way."""
    one = ring(kind, devices, size)
    if one is None:
        return None
    if kind == "collective_permute":
        return one
    half = devices // 2
    if kind == "all_to_all":
        return Traffic(half, size / devices * sum(min(d, devices - d) for d in range(1, devices)) / 2)
    return Traffic((2 if kind == "all_reduce" else 1) * half, one.bytes / 2)


def recursive_doubling(kind: Kind, devices: int, size: float) -> Traffic | None:
    """Pairs at doubling distances exchange all they have; an all_reduce sends the whole vector each time.

    A number of devices that is no power of two first folds the rest in, and hands them the result after.
    """
    rounds = math.floor(math.log2(devices))
    fold = devices != 2**rounds
    if kind == "all_reduce":
        return Traffic(rounds + 2 * fold, (rounds + 2 * fold) * size)
    if kind == "all_gather":
        return Traffic(rounds + 2 * fold, size * (devices - 1) / devices + fold * size * (1 + 1 / devices))
    return None


def recursive_halving_doubling(kind: Kind, devices: int, size: float) -> Traffic | None:
    """Halves of the vector are exchanged and reduced at halving distances, then gathered at doubling ones (Rabenseifner)."""
    rounds = math.floor(math.log2(devices))
    fold = devices != 2**rounds
    share = 1 - 2.0**-rounds
    if kind == "all_reduce":
        return Traffic(2 * rounds + 2 * fold, 2 * share * size + 2 * fold * size)
    if kind == "reduce_scatter":
        return Traffic(rounds + 2 * fold, share * size + fold * size * (1 + 1 / devices))
    return None


def tree(kind: Kind, devices: int, size: float) -> Traffic | None:
    """Reduced up and handed down two binary trees, each with half of the vector in a pipeline."""
    rounds = math.ceil(math.log2(devices))
    return Traffic(2 * rounds, 2 * size) if kind == "all_reduce" else None


def all_at_once(kind: Kind, devices: int, size: float) -> Traffic | None:
    """Every device sends to every other at once: one message deep, N (N - 1) in all."""
    others = devices - 1
    if kind == "all_reduce":
        return Traffic(1, others * size)
    if kind in ("all_gather", "reduce_scatter", "all_to_all"):
        return Traffic(1, others * size / devices)
    return Traffic(1, size) if kind == "collective_permute" else None


def pairwise(kind: Kind, devices: int, size: float) -> Traffic | None:
    """An all_to_all in N - 1 rounds, each device with another partner in each."""
    return Traffic(devices - 1, (devices - 1) * size / devices) if kind == "all_to_all" else None


ALGORITHMS: Mapping[str, Algorithm] = {
    "ring": ring,
    "bidirectional_ring": bidirectional_ring,
    "recursive_halving_doubling": recursive_halving_doubling,
    "recursive_doubling": recursive_doubling,
    "tree": tree,
    "all_at_once": all_at_once,
    "pairwise": pairwise,
    "sequential": sequential,
}

ON_RINGS = ("ring", "bidirectional_ring")
"""What a torus runs well: all others send to devices that are no neighbours."""


@dataclass(frozen=True)
class Choice:
    """The best algorithm for one collective, and its time."""

    algorithm: str
    seconds: float
    traffic: Traffic


@cache
def best(kind: Kind, size: float, link: Link) -> Choice:
    """The fastest algorithm for M = `size` bytes (see `Algorithm`) on these wires.

    A group of one device sends nothing. Raises KeyError for what is no collective.

    >>> [best("all_reduce", size, Link(8, 1e11, 1e-6)).algorithm for size in (1e3, 1e9)]
    ['all_at_once', 'recursive_halving_doubling']
    """
    if link.devices < 2:
        return Choice("none", 0.0, Traffic(0, 0))
    usable = [name for name in ALGORITHMS if (name in ON_RINGS or not link.is_ring)]
    if not link.both_ways:
        usable.remove("bidirectional_ring")
    found: Choice | None = None
    for name in usable:
        traffic = ALGORITHMS[name](kind, link.devices, size)
        if traffic is not None and (found is None or traffic.seconds(link) < found.seconds):
            found = Choice(name, traffic.seconds(link), traffic)
    if found is None:
        raise KeyError(kind)
    return found

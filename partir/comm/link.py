"""What a collective sees of the wires: how fast a group of devices sends, and to whom."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Link:
    """What a collective over a group of devices sees of the wires.

    `devices` in the group; `bandwidth_bytes_per_second` that one device sends in one direction of a ring over the group;
    `latency_seconds` a message; `is_ring` where devices reach only their neighbours; `both_ways` where a ring can be used in
    both directions at once.
    """

    devices: int
    bandwidth_bytes_per_second: float
    latency_seconds: float
    is_ring: bool = False
    both_ways: bool = False

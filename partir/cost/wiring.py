"""How the axes of a mesh lie on the wires of a target: the neighbours that a collective has, and their links."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from partir.comm.link import Link
from partir.cost.target import Target
from partir.mesh import Mesh


@dataclass(frozen=True)
class Wiring:
    """The axes of a mesh on the wires of a target."""

    target: Target
    mesh: Mesh

    @cached_property
    def order(self) -> tuple[str, ...]:
        """The axes, nearest neighbours first."""
        for axis in self.target.innermost:
            self.mesh.check(axis)
        rest = [axis for axis in reversed(self.mesh.names) if axis not in self.target.innermost]
        return (*self.target.innermost, *rest)

    @cached_property
    def torus(self) -> tuple[int, ...]:
        """The slice in chips, smallest dim first, unless the target says its own."""
        if self.target.torus is not None:
            return self.target.torus
        chips = max(1, math.ceil(self.mesh.size / self.target.devices_per_chip))
        return squarest(chips, self.target.near.dims)

    @cached_property
    def scatters_by_all_reduce(self) -> bool:
        """Whether a sum scattered over the whole mesh is sent as an all_reduce."""
        long = [extent for extent in self.torus if extent > 1]
        return self.target.scatters_by_all_reduce and len(set(long)) < len(long) and self.mesh.size > 4

    def split(self, axis: str) -> tuple[int, int]:
        """How many devices of an axis stand in one node, and over how many nodes it goes."""
        stride = math.prod(self.mesh.size_of(inner) for inner in self.order[: self.order.index(axis)])
        size = self.mesh.size_of(axis)
        inside = math.gcd(size, max(1, self.target.node_devices // stride))
        return inside, size // inside

    def link(self, axes: Sequence[str]) -> Link:
        """The wires that a collective over these axes together uses."""
        parts = [self.split(axis) for axis in axes]
        inside = math.prod(near for near, _ in parts)
        nodes = math.prod(far for _, far in parts)
        near, far, reach = self.target.near, self.target.far, self.target.efficiency.link
        if nodes == 1 or far is None:
            if near.kind == "switch":
                return Link(inside * nodes, near.bandwidth_bytes_per_second * reach, near.latency_seconds)
            return self._ring(axes)
        together = inside * far.bandwidth_bytes_per_second
        rate = min(near.bandwidth_bytes_per_second, together) if inside > 1 else together
        return Link(inside * nodes, rate * reach, far.latency_seconds)

    def _ring(self, axes: Sequence[str]) -> Link:
        """On a torus a group runs rings along every torus dim it spans, each way where the dim closes.

        Where a chip has several devices they share its links. Two devices are no ring: they have one link.
        """
        near, target = self.target.near, self.target
        devices = self.mesh.size_of(*axes)
        spans = [self.spans[axis] for axis in axes]
        chips = math.prod(chip for _, dims in spans for chip, _ in dims)
        closed = any(wraps for _, dims in spans for _, wraps in dims)
        dims = max(1, sum(len(dims) for _, dims in spans))
        shared = 1 if chips == 1 or any(cores > 1 for cores, _ in spans) else target.devices_per_chip
        rate = near.bandwidth_bytes_per_second * dims / shared * target.efficiency.link
        return Link(devices, rate, near.latency_seconds, is_ring=True, both_ways=closed or (dims > 1 and devices > 2))

    @cached_property
    def spans(self) -> dict[str, tuple[int, tuple[tuple[int, bool], ...]]]:
        """For each axis, the devices of one chip in it, and the torus dims it takes: (chips, whether they close to a ring)."""
        cores = self.target.devices_per_chip if self.mesh.size >= self.target.devices_per_chip else 1
        left = list(self.torus)
        found: dict[str, tuple[int, tuple[tuple[int, bool], ...]]] = {}
        for axis in self.order:
            size = self.mesh.size_of(axis)
            own = math.gcd(size, cores)
            size, cores = size // own, cores // own
            dims: list[tuple[int, bool]] = []
            for place, extent in enumerate(left):
                part = math.gcd(size, extent)
                if part > 1:
                    dims.append((part, part == self.torus[place] and part >= self.target.near.wraps_from))
                    left[place] //= part
                    size //= part
            if size > 1:
                dims.append((size, False))
            found[axis] = own, tuple(dims)
        return found


def squarest(chips: int, dims: int) -> tuple[int, ...]:
    """The factors of a number of chips along `dims` dims that are nearest to each other, smallest first.

    >>> squarest(8, 2), squarest(8, 3), squarest(6, 3)
    ((2, 4), (2, 2, 2), (1, 2, 3))
    """
    if dims == 1:
        return (chips,)
    best = max(d for d in range(1, chips + 1) if chips % d == 0 and d**dims <= chips)
    return (best, *squarest(chips // best, dims - 1))

"""The peak memory of a device: arguments, results that are not put in their place, and the most that lives at once between.

As XLA's own count: argument + output + temporary - alias. What lives when follows from the kernels and their order; how large
it is, from the plan.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass, field
from functools import cache

import numpy as np
from xdsl.ir import Attribute

from partir.cost.kernels import Floats, Ints, Kernels
from partir.program import item_bytes
from partir.sharding.layout import Layout, local_shape
from partir.sharding.rule import shape_of
from partir.sharding.tables import Tables

LANES, SUBLANES, WORD = 128, 8, 4


@cache
def tiled_bytes(shape: tuple[int, ...], itemsize: int) -> int:
    """The bytes of an array in tiles of 8 x 128 words (Google, XLA: tiled layout), in the dim order that wastes least.

    >>> tiled_bytes((512, 1024), 4), tiled_bytes((4, 512, 16, 64), 4), tiled_bytes((100, 3), 4)
    (2097152, 8388608, 4096)
    """
    count = math.prod(shape)
    if len(shape) < 2 or count == 0:
        return -(-count // LANES) * LANES * itemsize if count > 1 else WORD
    return itemsize * min(
        count // max(1, shape[i] * shape[j]) * (-(-shape[i] // SUBLANES) * SUBLANES) * (-(-shape[j] // LANES) * LANES)
        for i, j in itertools.permutations(range(len(shape)), 2)
    )


def plain_bytes(shape: tuple[int, ...], itemsize: int) -> int:
    """The bytes of an array without padding."""
    return math.prod(shape) * itemsize


@dataclass(eq=False)
class Intervals:
    """Memory that collectives take: `sizes[i]` bytes from kernel `starts[i]` to kernel `stops[i]`, both included."""

    starts: list[int] = field(default_factory=list[int])
    stops: list[int] = field(default_factory=list[int])
    sizes: list[float] = field(default_factory=list[float])

    def add(self, starts: list[int], stops: list[int], size: float) -> None:
        """Several of one size."""
        self.starts += starts
        self.stops += stops
        self.sizes += [size] * len(starts)


def live_bytes(kernels: Kernels, local_bytes: Floats, resident: Ints, extra: Intervals) -> Floats:
    """The bytes that live at each kernel, arguments and `resident` values (results of the program) left out.

    A value lives from the kernel that makes it to the last that reads it. A pointwise kernel writes over an operand of the same
    size that dies there.
    """
    born, ends, over = kernels.born, kernels.ends, kernels.over
    sizes = local_bytes.copy()
    sizes[resident] = 0
    stop = ends + 1
    taken = np.flatnonzero(over >= 0)
    taken = taken[(sizes[taken] > 0) & (sizes[taken] == sizes[over[taken]])]
    stop[over[taken]] -= 1
    alive = np.flatnonzero((born >= 0) & (sizes > 0))
    length = kernels.count + 2
    delta: Floats = np.bincount(born[alive], sizes[alive], length).astype(np.float64)
    delta -= np.bincount(np.minimum(np.maximum(stop[alive], born[alive]), length - 1), sizes[alive], length)
    if extra.sizes:
        delta += np.bincount(extra.starts, extra.sizes, length)
        delta -= np.bincount(np.minimum(np.array(extra.stops) + 1, length - 1), extra.sizes, length)
    live: Floats = np.cumsum(delta, dtype=np.float64)
    return live[: kernels.count + 1]


class Sizes:
    """The bytes of values on one device, by layout; one for each plan, as layouts are told apart by identity."""

    def __init__(self, tables: Tables, axes: tuple[tuple[str, int], ...], pads: bool) -> None:
        self.shapes, self.items, self.axes = tables.shapes, tables.item_bytes, axes
        self._in_memory = tiled_bytes if pads else plain_bytes
        self._local: dict[int, tuple[int, ...]] = {}
        self._keep: list[Layout] = []

    def local(self, layout: Layout) -> tuple[int, ...]:
        """The shape of one device's part."""
        found = self._local.get(id(layout))
        if found is None:
            found = self._local[id(layout)] = local_shape(layout, self.axes)
            self._keep.append(layout)
        return found

    def padded(self, value: int, layout: Layout) -> float:
        """Bytes in memory; a value that is replicated, and one that is no array, has an empty layout."""
        return float(self._in_memory(self.local(layout) if layout else self.shapes[value], self.items[value]))

    def plain(self, value: int, layout: Layout) -> float:
        """Bytes on the wires."""
        return float(math.prod(self.local(layout) if layout else self.shapes[value]) * self.items[value])

    def of_type(self, type_: Attribute, layout: Layout) -> float:
        """Bytes in memory of an array of this type."""
        return float(self._in_memory(self.local(layout) if layout else shape_of(type_), item_bytes(type_)))

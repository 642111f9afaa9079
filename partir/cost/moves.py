"""The collectives of a plan as cost sees them: what moves how many bytes, when it can start, and which kernel waits for it."""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass, field, replace
from functools import cached_property

from partir.comm.algorithms import Choice, best
from partir.comm.link import Link
from partir.cost.bf16_operands import NARROW, is_sent_narrow
from partir.cost.memory import Intervals, Sizes
from partir.cost.timeline import Transfers
from partir.cost.unfolding import Places, Unfolding
from partir.cost.wiring import Wiring
from partir.dialect.kinds import MATRIX
from partir.sharding.indices import RegionId
from partir.sharding.layout import Axes, Layout
from partir.sharding.plan import Key, Plan, Reduction, Reshard
from partir.sharding.reshard import Step
from partir.sharding.sums import float_name, item_bytes

ALONE_BYTES = 128 * 2**20
"""A larger value is scattered alone."""


@dataclass(frozen=True)
class Move:
    """One collective of one reduction or reshard of value `value`.

    `size` is M of `collectives.Algorithm`, in bytes of one device and one run; it runs `times` times in a step. It can start
    after kernel `after`, and kernel `before` waits for it. `owed` is what it belongs to.
    """

    kind: str
    axes: Axes
    devices: int
    size: float
    times: int
    choice: Choice
    value: int
    after: int
    before: int
    owed: Reduction | Reshard

    @property
    def seconds(self) -> float:
        """In one step."""
        return self.choice.seconds * self.times

    @property
    def bytes(self) -> float:
        """What one device sends in one step, by the fewest that the kind can do with."""
        return least_bytes(self.kind, self.devices, self.size) * self.times


def least_bytes(kind: str, devices: int, size: float) -> float:
    """What a device has to send for a collective of M = `size` bytes, whatever the algorithm."""
    share = 1 - 1 / devices
    return {"all_reduce": 2 * share, "collective_permute": 1.0}.get(kind, share) * size


@dataclass(eq=False)
class Owed:
    """The collectives of one reduction or reshard, `steps` of (step, devices, M, best algorithm), and where they happen."""

    owed: Reduction | Reshard
    steps: list[tuple[Step, int, float, Choice]]
    places: Places
    times: int

    def moves(self) -> list[Move]:
        """One record for each collective."""
        places = self.places
        return [
            Move(step.kind, step.axes, devices, size, self.times, choice, value, after, before, self.owed)
            for value, after, before in zip(places.values, places.after, places.before, strict=True)
            for step, devices, size, choice in self.steps
        ]

    @property
    def seconds(self) -> float:
        """Of one place, in one step."""
        return sum([choice.seconds for _, _, _, choice in self.steps]) * self.times

    @property
    def bytes(self) -> float:
        """What a device sends for one place in one step."""
        return sum([least_bytes(step.kind, devices, size) for step, devices, size, _ in self.steps]) * self.times


@dataclass(eq=False)
class Moves:
    """All collectives of a plan, the memory they take, by how many bytes kernels read more (or less) for reshards; what kernels
    write and read because a collective interrupts them, and which of them reduce only after it; and the bytes that are read and
    written to narrow what is sent."""

    owed: list[Owed] = field(default_factory=list[Owed])
    intervals: Intervals = field(default_factory=Intervals)
    read_more: tuple[list[int], list[float]] = field(default_factory=lambda: ([], []))
    apart: dict[int, float] = field(default_factory=dict[int, float])
    reduced: set[int] = field(default_factory=set[int])
    copied: float = 0.0

    @property
    def seconds(self) -> float:
        """All of them, one after the other."""
        return sum(owed.seconds * len(owed.places.values) for owed in self.owed)

    @property
    def bytes(self) -> float:
        """What a device sends in one step."""
        return sum(owed.bytes * len(owed.places.values) for owed in self.owed)

    @property
    def bytes_by_kind(self) -> dict[str, float]:
        """The same by kind of collective, of the kinds that are planned."""
        found: dict[str, float] = {}
        for owed in self.owed:
            runs = owed.times * len(owed.places.values)
            for step, devices, size, _ in owed.steps:
                found[step.kind] = found.get(step.kind, 0.0) + least_bytes(step.kind, devices, size) * runs
        return found

    def transfers(self, overlaps: tuple[str, ...]) -> Transfers:
        """When they happen; those of one reduction or reshard follow each other and count as one."""
        found = Transfers()
        for owed in self.owed:
            seconds, count = owed.seconds, len(owed.places.values)
            if seconds:
                found.after += owed.places.after
                found.before += owed.places.before
                found.seconds += [seconds] * count
                found.beside += [all(step.kind in overlaps for step, _, _, _ in owed.steps)] * count
        return found


def moves_of(plan: Plan, unfolding: Unfolding, wiring: Wiring, sizes: Sizes) -> Moves:
    """What a plan owes, on the wires of a target."""
    return _Mover(plan, unfolding, wiring, sizes).run()


class _Mover:
    """`sizes` and the plan speak of the planned program, places of the one it stands for."""

    def __init__(self, plan: Plan, unfolding: Unfolding, wiring: Wiring, sizes: Sizes) -> None:
        self.plan, self.wiring, self.sizes, self.unfolding = plan, wiring, sizes, unfolding
        self.planned = plan.assignment.structure.tables
        self.narrows = unfolding.kernels.fusing.narrow_operands
        self.widens = bool(plan.assignment.summed_in or wiring.target.sums_as)
        self.found = Moves()
        self.links: dict[Axes, Link] = {}
        self.brought: dict[object, set[int]] = {}

    def run(self) -> Moves:
        for reduction in self.plan.reductions.values():
            self.reduce(reduction)
        uses: dict[Key, list[tuple[int, int]]] = {}
        for use, key in self.plan.uses.items():
            uses.setdefault(key, []).append(use)
        for key, reshard in self.plan.reshards.items():
            self.reshard(key, reshard, tuple(uses.get(key, ())))
        self.send_together()
        return self.found

    def send_together(self) -> None:
        """XLA makes one sum of all that wait for no other: together they take as long as one of all their bytes. For GPUs it
        scatters them only when the last is there."""
        kinds = self.unfolding.kernels.fusing.joined
        groups: dict[tuple[object, ...], list[Owed]] = {}
        every, self.found.owed = self.found.owed, []
        for owed in every:
            step, devices, size, _ = owed.steps[0]
            kind = self.sent_as(step, devices)
            alone = kind == "reduce_scatter" and size > ALONE_BYTES
            if len(owed.steps) > 1 or kind not in kinds or alone or not isinstance(owed.owed, Reduction):
                self.found.owed.append(owed)
                continue
            free, bound = self.unfolding.apart(owed.places)
            if bound.values:
                self.found.owed.append(replace(owed, places=bound))
            if free.values:
                self.found.owed.append(replace(owed, places=free))
                groups.setdefault((kind, step.axes, step.reduction, step.dtype, owed.times), []).append(self.found.owed[-1])
        for together in groups.values():
            counts = [len(owed.places.values) for owed in together]
            each = [owed.steps[0] for owed in together]
            alone = sum([choice.seconds * count for (_, _, _, choice), count in zip(each, counts, strict=True)])
            size = sum([size * count for (_, _, size, _), count in zip(each, counts, strict=True)])
            kind = self.sent_as(each[0][0], each[0][1])
            share = best(kind, size, self.links[each[0][0].axes]).seconds / alone if alone else 1.0
            last = max(after for owed in together for after in owed.places.after)
            for owed, (step, devices, own, choice) in zip(together, each, strict=True):
                owed.steps = [(step, devices, own, replace(choice, seconds=choice.seconds * min(1.0, share)))]
                if kind == "reduce_scatter" and owed.times == 1:
                    owed.places = replace(owed.places, after=[last] * len(owed.places.after))

    def reduce(self, reduction: Reduction) -> None:
        """What a value was before is memory until it is reduced, and where it would not have been stored, what it is after."""
        value = reduction.value
        places = self.unfolding.reduced(value)
        self.found.intervals.add(places.starts, places.stops, self.sizes.padded(value, reduction.after))
        if reduction.before != reduction.after:
            self.found.intervals.add(places.after, places.after, self.sizes.padded(value, reduction.before))
        widest = max([self.widening(value, step) for step in reduction.steps], default=1.0) if self.widens else 1.0
        if widest > 1:
            self.found.intervals.add(places.after, places.after, self.sizes.padded(value, reduction.before) * widest)
            self.found.copied += self.widened(value, reduction, widest) * len(places.values)
        if places.interrupted:
            self.interrupt(places, self.sizes.padded(value, reduction.after))
        self.owe(reduction, value, reduction.before, reduction.steps, self.planned.region_of[value], places)

    def interrupt(self, places: Places, size: float) -> None:
        """Kernels that are done in two, with the bytes that they write and read for that."""
        for kernel in places.interrupted:
            self.found.apart[kernel] = self.found.apart.get(kernel, 0.0) + size
        self.found.reduced.update(places.reduced)

    def reshard(self, key: Key, reshard: Reshard, uses: tuple[tuple[int, int], ...]) -> None:
        """A value brought to another layout lives from its first use to its last. Two planned values may stand for one value of
        the program, for different readers of it: it is brought there once."""
        value = reshard.value
        places = self.unfolding.read(value, reshard.region, uses)
        brought = self.brought.setdefault(key[1:], set())
        twice = brought.intersection(places.values)
        if twice:
            places = self.unfolding.read(value, reshard.region, uses, frozenset(twice))
        if reshard.barrier:
            places = self.held(places, reshard)
        brought.update(places.values)
        gathers = any(step.kind == "all_gather" for step in reshard.steps)
        scale = NARROW if gathers and self.narrows and is_sent_narrow(self.planned, value, uses) else 1.0
        size = self.sizes.padded(value, reshard.after) * scale
        if any(step.kind != "all_slice" for step in reshard.steps):
            early = gathers and "all_gather" in self.wiring.target.overlaps
            self.found.intervals.add(places.early if early else places.starts, places.stops, size)
        whole = self.sizes.padded(value, reshard.before)
        if scale < 1:
            self.found.copied += (1 + scale) * whole * len(places.values) * self.planned.times(reshard.region)
        more = size - whole
        kernels, sizes = self.found.read_more
        kernels += places.kernels
        sizes += [more] * len(places.kernels)
        self.owe(reshard, value, reshard.before, reshard.steps, reshard.region, places, scale)

    def held(self, places: Places, reshard: Reshard) -> Places:
        """The places of gathers that are held back: each can start when the contraction before its reader that has such a
        gather can run, or else its own reader (see `lowering/to_spmd.py`)."""
        anchors = self.anchors.get((reshard.region, reshard.phase), ())
        after = [max(0, (anchors[k - 1] if (k := bisect_left(anchors, start)) else start)) - 1 for start in places.before]
        early = [min(start, at + 1) for start, at in zip(places.before, after, strict=True)] if places.early else []
        return replace(places, after=after, early=early)

    @cached_property
    def anchors(self) -> dict[tuple[int, str], list[int]]:
        """By region and phase the kernels of contractions that read something gathered anew there, in order."""
        found: dict[tuple[int, str], set[int]] = {}
        lists = self.unfolding.kernels.lists
        for reshard in self.plan.reshards.values():
            if reshard.barrier and reshard.row >= 0 and self.planned.rows[reshard.row].op.name in MATRIX:
                own = found.setdefault((reshard.region, reshard.phase), set())
                own.update(lists.first[row] for row in self.unfolding.rows[reshard.row])
        return {where: sorted(own) for where, own in found.items()}

    def widening(self, value: int, step: Step) -> float:
        """How many times as large as the value is what a step sends: a sum may be made in another dtype."""
        always = self.wiring.target.sums_as
        if step.reduction is None or (step.dtype is None and not always):
            return 1.0
        dtype = step.dtype or float_name(self.planned.values[value].type)
        return item_bytes(always.get(dtype, dtype)) / self.sizes.items[value] if dtype is not None else 1.0

    def widened(self, value: int, reduction: Reduction, scale: float) -> float:
        """The bytes that are written and read more in one step where a sum is made in a wider dtype: what makes the value
        writes it so, and what reads the sum; none of what fits into memory on the chip."""
        sizes = [self.sizes.padded(value, layout) for layout in (reduction.before, reduction.after)]
        far = sum(size for size in sizes if size * scale > (self.wiring.target.on_chip_bytes or 0))
        return (scale - 1) * far * self.planned.times(self.planned.region_of[value])

    def sent_as(self, step: Step, devices: int) -> str:
        """The kind of collective that a step is on the wires."""
        whole = devices == self.wiring.mesh.size and self.wiring.scatters_by_all_reduce
        return "all_reduce" if step.kind == "reduce_scatter" and whole else step.kind

    def owe(
        self,
        owed: Reduction | Reshard,
        value: int,
        layout: Layout,
        steps: tuple[Step, ...],
        region: RegionId,
        places: Places,
        scale: float = 1.0,
    ) -> None:
        size = self.sizes.plain(value, layout) * scale
        found: list[tuple[Step, int, float, Choice]] = []
        for step in steps:
            link = self.links.get(step.axes)
            if link is None:
                link = self.links[step.axes] = self.wiring.link(step.axes)
            devices = link.devices
            if step.kind == "all_slice":
                size /= devices
                continue
            moved = size * devices if step.kind == "all_gather" else size
            if self.widens and step.reduction is not None:
                moved = size / scale * self.widening(value, step)
            found.append((step, devices, moved, best(self.sent_as(step, devices), moved, link)))
            if step.kind == "all_gather":
                size = moved
            elif step.kind == "reduce_scatter":
                size /= devices
        if found:
            self.found.owed.append(Owed(owed, found, places, self.planned.times(region)))

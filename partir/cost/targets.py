"""Targets: machine models with a source for every number, and how the axes of a mesh lie on their wires.

A *device* is what JAX calls one: a core of TPU v2 and v3, a chip of later TPUs, a GPU.
"""

from __future__ import annotations

import difflib
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from typing import Literal

from partir.errors import TargetError, error_text
from partir.mesh import Mesh

GIB = 1024**3


@dataclass(frozen=True)
class Wires:
    """One level of a machine's interconnect.

    On a `torus`, `bandwidth_bytes_per_second` is that of one link in one direction; a device has two links for each torus dim.
    On a `switch`, it is what one device can send (and receive at the same time) to any other. `latency_seconds` is that of
    one message to a neighbour.
    """

    kind: Literal["torus", "switch"]
    bandwidth_bytes_per_second: float
    latency_seconds: float
    dims: int = 1
    wraps_from: int = 2
    """On a torus: the smallest dim, in chips, that closes to a ring."""


def is_positive(value: object) -> bool:
    """Whether a value is a number, finite and above 0; True is none."""
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 < value < math.inf


@dataclass(frozen=True)
class Efficiency:
    """What a machine reaches of its peaks: fitted, never from a datasheet. All 1 and 0 is the datasheet itself."""

    matrix: float = 1.0
    vector: float = 1.0
    memory: float = 1.0
    link: float = 1.0
    overhead_seconds: float = 0.0
    """Added for every kernel."""
    fitted_on: str = "nothing: the datasheet's peaks"

    def __post_init__(self) -> None:
        shares = {name: getattr(self, name) for name in ("matrix", "vector", "memory", "link")}
        wrong = [f"{name} is {value!r}, not a positive number" for name, value in shares.items() if not is_positive(value)]
        overhead = self.overhead_seconds
        if overhead != 0 and not is_positive(overhead):
            wrong.append(f"overhead_seconds is {overhead!r}, neither 0 nor a positive number")
        if wrong:
            raise TargetError(error_text("this efficiency is no machine's", why="; ".join(wrong)))


@dataclass(frozen=True)
class Target:
    """A machine model.

    `flops_per_second` has the dense peak of matrix products by element type; one that is missing runs at the rate of f32.
    `near` are the wires between the devices of one node or slice (at most `node_devices`), `far` those between nodes.
    `innermost` names mesh axes in the order in which they are laid on the wires, nearest neighbours first; axes that are not
    named follow, last of the mesh first. `torus` is the slice in chips; None takes the squarest that holds the mesh.
    `sources` says for each field where its number comes from.

    >>> get("tpu_v3").hbm_bytes / 2**30
    16.0
    >>> mine = Target("mine", "gpu", {"f32": 1e13}, 1e12, 8 * 10**9, 4e11, Wires("switch", 1e10, 5e-6), node_devices=4)
    >>> mine.peak_flops_per_second("bf16")
    10000000000000.0
    """

    name: str
    platform: Literal["tpu", "gpu", "cpu"]
    flops_per_second: Mapping[str, float]
    vector_flops_per_second: float
    hbm_bytes: int
    hbm_bytes_per_second: float
    near: Wires
    node_devices: int
    far: Wires | None = None
    devices_per_chip: int = 1
    clock_hertz: float = 1e9
    matrix_unit: int = 1
    """The side of the matrix unit: columns and summed dims of a product are padded to whole multiples of it."""
    on_chip_bytes: int | None = None
    """Memory on the chip in which compilers keep what is read again soon."""
    reduced_per_second: float | None = None
    """How many numbers of an array a loop reduces along its dims; None where that is no slower than other work."""
    innermost: tuple[str, ...] = ()
    torus: tuple[int, ...] | None = None
    overlaps: tuple[str, ...] = ("all_gather", "reduce_scatter", "all_reduce", "all_to_all", "collective_permute")
    """The collectives that can run while the device computes."""
    scatters_by_all_reduce: bool = False
    """Whether a sum that is scattered over all of a slice of more than four devices is sent as an all_reduce where two of its
    dims are equal (TPUs)."""
    sums_as: Mapping[str, str] = field(default_factory=dict[str, str])
    """The dtypes for which the compiler makes (and sends) sums over devices in a wider one, whatever the program says. Others
    are added up in the dtype that they are sent in, rounded at each device on the way."""
    efficiency: Efficiency = Efficiency()
    device_kinds: tuple[str, ...] = ()
    """What JAX calls such a device (`device.device_kind`), or how that begins."""
    sources: Mapping[str, str] = field(default_factory=dict[str, str])

    def __post_init__(self) -> None:
        wrong = [f"{name} is {value!r}, not a positive number" for name, value in self.numbers() if not is_positive(value)]
        if "f32" not in self.flops_per_second:
            wrong.append('flops_per_second has no "f32", which stands for types that are not listed')
        if self.platform not in ("tpu", "gpu", "cpu"):
            wrong.append(f'platform "{self.platform}" is none of tpu, gpu, cpu')
        if wrong:
            raise TargetError(error_text(f"target {self.name!r} is no machine", why="; ".join(wrong)))

    def numbers(self) -> Iterator[tuple[str, float]]:
        """Every number of the record by its name."""
        for dtype, rate in self.flops_per_second.items():
            yield f"flops_per_second[{dtype}]", rate
        yield "vector_flops_per_second", self.vector_flops_per_second
        yield "hbm_bytes", self.hbm_bytes
        yield "hbm_bytes_per_second", self.hbm_bytes_per_second
        yield "clock_hertz", self.clock_hertz
        yield "node_devices", self.node_devices
        yield "devices_per_chip", self.devices_per_chip
        if self.on_chip_bytes is not None:
            yield "on_chip_bytes", self.on_chip_bytes
        if self.reduced_per_second is not None:
            yield "reduced_per_second", self.reduced_per_second
        for level, wires in (("near", self.near), ("far", self.far)):
            if wires is not None:
                yield f"{level}.bandwidth_bytes_per_second", wires.bandwidth_bytes_per_second
                yield f"{level}.latency_seconds", wires.latency_seconds

    @property
    def pads_tiles(self) -> bool:
        """Whether arrays lie in memory in tiles of 8 x 128 words, the last of which is padded."""
        return self.platform == "tpu"

    def peak_flops_per_second(self, dtype: str, passes: int = 1) -> float:
        """The rate of a matrix product of this element type that takes `passes` products of a narrower one."""
        rate = self.flops_per_second.get(dtype, self.flops_per_second["f32"])
        return rate * self.efficiency.matrix / passes

    def with_innermost(self, *axes: str) -> Target:
        """This target with mesh axes laid on the wires in another order, nearest neighbours first."""
        return replace(self, innermost=tuple(axes))

    def lay(self, mesh: Mesh) -> Layout:
        """How the axes of a mesh lie on the wires. Raises MeshError for an axis in `innermost` that the mesh has not."""
        return Layout(self, mesh)

    def __repr__(self) -> str:
        return f"Target({self.name!r}: {self.peak_flops_per_second('bf16') / 1e12:.3g} TFLOP/s, {self.hbm_bytes / 1e9:.3g} GB)"


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


@dataclass(frozen=True)
class Layout:
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


_REGISTRY: dict[str, Target] = {}


def register(target: Target) -> Target:
    """Make a target known by its name. Raises TargetError when another one has the name."""
    if _REGISTRY.get(target.name, target) != target:
        raise TargetError(error_text(f"there is another target {target.name!r}", hint="another name"))
    _REGISTRY[target.name] = target
    return target


def names() -> tuple[str, ...]:
    """The names of all targets."""
    _shipped()
    return tuple(_REGISTRY)


def get(name: str | Target) -> Target:
    """The target of a name (a target stands for itself). Raises TargetError, with the names there are.

    >>> get("h100")
    Target('h100': 989 TFLOP/s, 80 GB)
    """
    if isinstance(name, Target):
        return name
    known = names()
    if name not in _REGISTRY:
        near = difflib.get_close_matches(str(name), known, n=1)
        hint = f"{near[0]}, or partir.targets.Target(...)" if near else "partir.targets.Target(...) for a machine of your own"
        raise TargetError(error_text(f"no target {name!r}", why=f"there are {', '.join(known)}", hint=hint))
    return _REGISTRY[name]


def of_device(kind: str) -> Target | None:
    """The target of what JAX calls a device, if there is one: the longest name that it begins with."""
    known = [(len(k), name) for name in names() for k in _REGISTRY[name].device_kinds if kind.lower().startswith(k.lower())]
    return _REGISTRY[max(known)[1]] if known else None


def _shipped() -> None:
    from partir.cost import machines

    for target in machines.ALL:
        register(target)


def fields_of(target: Target) -> list[str]:
    """The fields of a target that hold numbers, as `sources` names them."""
    own = [name.split("[")[0].split(".")[0] for name, _ in target.numbers()]
    return [f.name for f in fields(target) if f.name in own and getattr(target, f.name) is not None]

"""A target: the model of a machine, with a source for every number.

A *device* is what JAX calls one: a core of TPU v2 and v3, a chip of later TPUs, a GPU.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Literal

from partir.errors import TargetError, error_text

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

    def __repr__(self) -> str:
        return f"Target({self.name!r}: {self.peak_flops_per_second('bf16') / 1e12:.3g} TFLOP/s, {self.hbm_bytes / 1e9:.3g} GB)"


def fields_of(target: Target) -> list[str]:
    """The fields of a target that hold numbers, as `sources` names them."""
    own = [name.split("[")[0].split(".")[0] for name, _ in target.numbers()]
    return [f.name for f in fields(target) if f.name in own and getattr(target, f.name) is not None]

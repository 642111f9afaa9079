"""Judges a compiled program, partir's or any other: the memory, the time and the collectives that one step of it needs.

Memory is the compiler's own figure. Compute time is the compiler's cycles on TPU, a roofline over its instructions elsewhere.
Collectives are found in the compiled text and priced by the alpha-beta model. All constants are from datasheets: fitted ones
are for predictions only, because the judge is what predictions are checked against.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from html import escape
from typing import Any

import jax

from partir.cost import registry as targets
from partir.cost.moves import least_bytes
from partir.cost.target import Efficiency, Target
from partir.errors import CompilerError, error_text
from partir.mesh import Mesh
from partir.sharding.plan import COLLECTIVES
from partir.verify.collective_prices import CollectivePrices
from partir.verify.hlo import Module
from partir.verify.real_compilers import Compilation, Memory
from partir.verify.schedule import Reader
from partir.verify.transfers import Part, Transfer

_PARTITIONS = re.compile(r"num_partitions=(\d+)")


@dataclass(frozen=True)
class Judgement:
    """What one step of a compiled program needs on one device.

    `step_seconds` follows the compiler's schedule: of an asynchronous collective only the time counts that the computation
    between its start and its end does not hide. `compute_source` says whether `compute_seconds` is from the compiler's `cycles`
    or from a `roofline`. `collectives` counts collectives by kind, as they were before the compiler combined them, and
    `bytes_by_kind` the bytes of their full (gathered, or unscattered) tensors; those in loops count once per iteration.
    `optimal_seconds` is the compiler's own estimate, which ignores the interconnect; None where it has none (XLA adds -1 for an
    op that it cannot price, which makes the sum negative).
    """

    target: str
    devices: int
    step_seconds: float
    compute_seconds: float
    communication_seconds: float
    memory: Memory
    transfers: tuple[Transfer, ...] = field(repr=False)
    optimal_seconds: float | None = None
    compute_source: str = "cycles"
    notes: tuple[str, ...] = ()

    @property
    def peak_bytes(self) -> int:
        """The bytes that must fit on a device: arguments, temporaries, and results that reuse no argument's buffer."""
        return self.memory.peak

    @cached_property
    def collectives(self) -> dict[str, int]:
        """The number of collectives by kind, as they were before the compiler combined or rewrote them."""
        return self._parts(lambda _: 1)

    @cached_property
    def bytes_by_kind(self) -> dict[str, int]:
        """The bytes of the collectives' full tensors, by kind."""
        return self._parts(lambda part: part.bytes)

    @cached_property
    def elements_by_kind(self) -> dict[str, int]:
        """The elements of the collectives' full tensors, by kind. (A compiler may send them in a narrower type.)"""
        return self._parts(lambda part: part.elements)

    @cached_property
    def instructions(self) -> dict[str, int]:
        """The number of collective instructions that run, by kind in the compiled program (combined, and some rewritten)."""
        counts = Counter[str]()
        for transfer in self.transfers:
            counts[transfer.kind] += transfer.times
        return _by_kind(counts)

    @property
    def communicated_bytes(self) -> float:
        """The bytes that one device sends in a step, if each collective uses an algorithm that sends as little as possible."""
        sent = [(least_bytes(t.kind, t.devices or self.devices, t.bytes), t.times) for t in self.transfers]
        return sum(size * times for size, times in sent)

    def _parts(self, value: Callable[[Part], int]) -> dict[str, int]:
        counts = Counter[str]()
        for transfer in self.transfers:
            for part in transfer.parts:
                counts[part.kind] += value(part) * transfer.times
        return _by_kind(counts)

    def record(self) -> dict[str, Any]:
        """The figures as plain data."""
        return {
            "target": self.target,
            "devices": self.devices,
            "step_seconds": self.step_seconds,
            "compute_seconds": self.compute_seconds,
            "compute_source": self.compute_source,
            "communication_seconds": self.communication_seconds,
            "optimal_seconds": self.optimal_seconds,
            "peak_bytes": self.peak_bytes,
            "memory": vars(self.memory),
            "collectives": self.collectives,
            "instructions": self.instructions,
            "bytes_by_kind": self.bytes_by_kind,
            "elements_by_kind": self.elements_by_kind,
            "communicated_bytes": self.communicated_bytes,
            "notes": list(self.notes),
        }

    def __repr__(self) -> str:
        counts = ", ".join(f"{count} {kind}" for kind, count in self.collectives.items()) or "no collectives"
        return (
            f"Judgement({self.target!r}: step {self.step_seconds * 1e3:.4g} ms (compute {self.compute_seconds * 1e3:.4g}, "
            f"communication {self.communication_seconds * 1e3:.4g}), peak {self.peak_bytes / 1e9:.4g} GB, {counts})"
        )

    def _repr_html_(self) -> str:
        cells = [(name.replace("_", " "), value) for name, value in self.record().items() if value not in (None, [])]
        rows = "".join(f"<tr><td>{escape(name)}</td><td>{escape(str(value))}</td></tr>" for name, value in cells)
        return f"<table>{rows}</table>"


def judge(compiled: Any, target: str | Target | None = None) -> Judgement:
    """Judge a `jax.stages.Compiled`, of a partitioned function or of any `jax.jit` with shardings.

    `target` is a machine or its name (`"tpu_v3"`); None is the machine that it was compiled for. Raises CompilerError for a
    program whose compiler does not report its memory, and TargetError for an unknown name.
    """
    memory = compiled.memory_analysis()
    if memory is None:
        raise CompilerError(error_text("cannot judge this program", why="its compiler does not report its memory"))
    said = compiled.cost_analysis() or {}
    figures = Memory(*(int(getattr(memory, f"{name}_size_in_bytes")) for name in ("argument", "output", "alias", "temp")))
    mesh = mesh_of(compiled)
    return judge_text(Compilation(compiled.as_text(), figures, said.get("optimal_seconds")), _target(target, compiled), mesh)


def judge_text(compilation: Compilation, target: Target, mesh: Mesh | None = None) -> Judgement:
    """Judge a compilation. `mesh` has the program's devices; its axis names are those that `target.innermost` refers to."""
    target = replace(target, efficiency=Efficiency())
    module = Module.parse(compilation.text)
    partitions = _PARTITIONS.search(compilation.text[: compilation.text.index("\n")])
    devices = mesh.size if mesh is not None else int(partitions[1]) if partitions else 1
    reader = Reader(module, target, CollectivePrices(target, devices, mesh), "estimated_cycles" in compilation.text)
    ran = reader.run(module.entry)
    optimal = compilation.optimal_seconds
    return Judgement(
        target.name,
        devices,
        ran.seconds,
        ran.compute,
        ran.communication,
        compilation.memory,
        tuple(ran.transfers),
        optimal if optimal is not None and optimal > 0 else None,
        "cycles" if reader.has_cycles else "roofline",
        tuple(reader.notes()),
    )


def _target(target: str | Target | None, compiled: Any) -> Target:
    if target is not None:
        return targets.get(target)
    kind = str(next(iter(_devices(compiled))).device_kind)
    found = targets.of_device(kind)
    if found is None:
        raise CompilerError(
            error_text(
                "cannot judge this program without a target",
                why=f'no target is known for "{kind}"',
                hint='judge(compiled, "tpu_v3")',
            )
        )
    return found


def _devices(compiled: Any) -> Any:
    leaves = jax.tree.leaves((compiled.input_shardings, compiled.output_shardings))
    return leaves[0].device_set if leaves else set(jax.devices()[:1])


def mesh_of(compiled: Any) -> Mesh | None:
    """The mesh that the shardings of a compiled program name; None if none does."""
    for sharding in jax.tree.leaves((compiled.input_shardings, compiled.output_shardings)):
        if isinstance(sharding, jax.sharding.NamedSharding):
            return Mesh.of(sharding.mesh)
    return None


def _by_kind(counts: Mapping[str, int]) -> dict[str, int]:
    return {kind: counts[kind] for kind in COLLECTIVES if counts[kind]}

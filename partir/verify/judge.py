"""The judge: what a compiled program needs of a machine, read out of the program itself - anybody's, not only ours.

Memory is the compiler's own figure. Compute is its cycles on TPU, a roofline over its instructions elsewhere. Collectives are
found in the text and priced by the alpha-beta model. Every constant is a datasheet's: fitted ones serve predictions, never the
judge.
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

    `step_seconds` follows the compiler's schedule: an asynchronous collective costs what the computation between its start and
    its end does not hide. `compute_source` says whether compute is the compiler's `cycles` or a `roofline`. `collectives` are
    counts by kind as they were before combining, `bytes_by_kind` the bytes of their whole vectors; loops count as often as they
    run. `optimal_seconds` is the compiler's own figure, which knows nothing of the wires; None where it has none (XLA counts -1
    for an op that it cannot price, which makes the sum negative).
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
        """What must fit on a device: arguments, temporaries, and results that take no argument's place."""
        return self.memory.peak

    @cached_property
    def collectives(self) -> dict[str, int]:
        """Counts by kind."""
        return self._parts(lambda _: 1)

    @cached_property
    def bytes_by_kind(self) -> dict[str, int]:
        """Bytes of whole vectors by kind."""
        return self._parts(lambda part: part.bytes)

    @cached_property
    def elements_by_kind(self) -> dict[str, int]:
        """Numbers in whole vectors by kind: compilers may send them in a narrower type."""
        return self._parts(lambda part: part.elements)

    @cached_property
    def instructions(self) -> dict[str, int]:
        """How many collectives run, by what they are in the compiled program: combined, and some as another kind."""
        counts = Counter[str]()
        for transfer in self.transfers:
            counts[transfer.kind] += transfer.times
        return _by_kind(counts)

    @property
    def communicated_bytes(self) -> float:
        """What one device sends, by the fewest bytes that each kind can do with."""
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
    """Judge a `jax.stages.Compiled`: a partitioned function's, or that of any `jax.jit` with shardings.

    `target` is a machine or its name (`"tpu_v3"`); None takes the one of the devices it was compiled for. Raises CompilerError
    for a program whose compiler tells no memory, TargetError for a machine that is not known.
    """
    memory = compiled.memory_analysis()
    if memory is None:
        raise CompilerError(error_text("cannot judge this program", why="its compiler tells no memory"))
    said = compiled.cost_analysis() or {}
    figures = Memory(*(int(getattr(memory, f"{name}_size_in_bytes")) for name in ("argument", "output", "alias", "temp")))
    mesh = mesh_of(compiled)
    return judge_text(Compilation(compiled.as_text(), figures, said.get("optimal_seconds")), _target(target, compiled), mesh)


def judge_text(compilation: Compilation, target: Target, mesh: Mesh | None = None) -> Judgement:
    """Judge what a compiler said. `mesh` names the axes that `target.innermost` speaks of; its devices are the program's."""
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
    """The mesh a program was compiled over, where its shardings name one."""
    for sharding in jax.tree.leaves((compiled.input_shardings, compiled.output_shardings)):
        if isinstance(sharding, jax.sharding.NamedSharding):
            return Mesh.of(sharding.mesh)
    return None


def _by_kind(counts: Mapping[str, int]) -> dict[str, int]:
    return {kind: counts[kind] for kind in COLLECTIVES if counts[kind]}

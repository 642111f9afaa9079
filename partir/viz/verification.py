"""Compares the prediction for a partitioned function with what a real compiler made of it."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Any

from partir.cost.estimate import Estimate
from partir.cost.moves import least_bytes
from partir.sharding.plan import COLLECTIVES
from partir.verify.judge import Judgement
from partir.verify.real_compilers import Compilation
from partir.viz.report import bytes_text, counts_text, seconds_text
from partir.viz.table import Table


@dataclass(frozen=True)
class Verification:
    """A prediction and a judgement of the same program on the same machine; prints as a table of both.

    `planned` are the collectives of the plan by kind; `compilation` is the compiler's output, the compiled text included.
    """

    topology: str
    estimate: Estimate
    judgement: Judgement
    planned: dict[str, int]
    compilation: Compilation

    @property
    def errors(self) -> dict[str, float]:
        """The relative error of each predicted figure against the compiler's: 0.1 is 10 % too much."""
        pairs = {
            "step_seconds": (self.estimate.step_seconds, self.judgement.step_seconds),
            "compute_seconds": (self.estimate.compute_seconds, self.judgement.compute_seconds),
            "communication_seconds": (self.estimate.communication_seconds, self.judgement.communication_seconds),
            "peak_bytes": (self.estimate.peak_bytes, self.judgement.peak_bytes),
        }
        return {name: ours / theirs - 1 for name, (ours, theirs) in pairs.items() if theirs}

    @property
    def fits(self) -> tuple[bool, bool]:
        """Whether the program fits into a device's memory: by the prediction, and as compiled."""
        limit = self.estimate.target.hbm_bytes
        return self.estimate.fits, self.judgement.peak_bytes <= limit

    @property
    def planned_bytes(self) -> dict[str, int]:
        """The bytes of the full tensors of the planned collectives, by kind."""
        return planned_bytes(self.estimate)

    def table(self) -> Table:
        """A row per figure: the prediction, the compiler's figure, and the relative error."""
        ours, theirs, memory = self.estimate, self.judgement, self.judgement.memory
        seconds = [
            ("step", ours.step_seconds, theirs.step_seconds),
            ("compute", ours.compute_seconds, theirs.compute_seconds),
            ("communication", ours.communication_seconds, theirs.communication_seconds),
        ]
        sizes = [
            ("peak memory", ours.peak_bytes, memory.peak),
            ("arguments", ours.argument_bytes, memory.argument),
            ("temporaries", ours.temporary_bytes, memory.temp),
            ("results beside arguments", ours.result_bytes, memory.output - memory.alias),
        ]
        rows = [(name, seconds_text(a), seconds_text(b), _off(a, b)) for name, a, b in seconds]
        rows += [(name, bytes_text(a), bytes_text(b), _off(a, b)) for name, a, b in sizes]
        kinds = [kind for kind in COLLECTIVES if kind in self.planned or kind in theirs.collectives]
        counts = [(kind, self.planned.get(kind, 0), theirs.collectives.get(kind, 0)) for kind in kinds]
        moved = [(f"{kind} bytes", self.planned_bytes.get(kind, 0), theirs.bytes_by_kind.get(kind, 0)) for kind in kinds]
        rows += [(name, str(a), str(b), _off(a, b)) for name, a, b in counts]
        rows += [(name, bytes_text(a), bytes_text(b), _off(a, b)) for name, a, b in moved]
        return Table(
            f"{ours.plan.assignment.structure.program.name} compiled for {self.topology}, per device and step",
            ("figure", "predicted", "compiler", "off by"),
            tuple(rows),
            tuple(self._notes()),
            frozenset({"predicted", "compiler", "off by"}),
        )

    def _notes(self) -> list[str]:
        theirs = self.judgement
        source = "its cycles" if theirs.compute_source == "cycles" else "a roofline over its instructions"
        ran = counts_text(theirs.instructions)
        notes = [f"compiler: compute from {source}, collectives by the alpha-beta model; as they run: {ran}"]
        if theirs.optimal_seconds is not None:
            own = seconds_text(theirs.optimal_seconds)
            notes.append(f"the compiler's own optimal_seconds, which ignores the interconnect: {own}")
        ours, real = self.fits
        limit = bytes_text(self.estimate.target.hbm_bytes)
        if ours and real:
            notes.append(f"fits into {limit}")
        else:
            notes.append(f"{limit} of memory: predicted to {_fit(ours)}, compiled it would {_fit(real)}")
        return [*notes, *theirs.notes]

    def record(self) -> dict[str, Any]:
        """Prediction, judgement and errors as plain data, for `--json`."""
        ours = self.estimate
        return {
            "topology": self.topology,
            "predicted": {
                "target": ours.target.name,
                "step_seconds": ours.step_seconds,
                "compute_seconds": ours.compute_seconds,
                "communication_seconds": ours.communication_seconds,
                "peak_bytes": ours.peak_bytes,
                "memory": {
                    "argument": ours.argument_bytes,
                    "result": ours.result_bytes,
                    "temp": ours.temporary_bytes,
                },
                "flops": ours.flops,
                "collectives": self.planned,
                "bytes_by_kind": self.planned_bytes,
                "communicated_bytes": ours.communicated_bytes,
            },
            "compiler": self.judgement.record(),
            "errors": self.errors,
            "fits": dict(zip(("predicted", "compiler"), self.fits, strict=True)),
        }

    def __str__(self) -> str:
        return str(self.table())

    def __repr__(self) -> str:
        ours, theirs = self.estimate, self.judgement
        return (
            f"Verification({self.topology!r}: step {seconds_text(ours.step_seconds)} predicted, "
            f"{seconds_text(theirs.step_seconds)} compiled; peak {bytes_text(ours.peak_bytes)} predicted, "
            f"{bytes_text(theirs.peak_bytes)} compiled)"
        )

    def _repr_html_(self) -> str:
        return self.table().to_html()


def planned_bytes(estimate: Estimate) -> dict[str, int]:
    """The bytes of the full tensors of a plan's collectives, by kind, as `Judgement.bytes_by_kind` counts them.

    Computed back from the bytes that a device sends.
    """
    mesh = estimate.plan.assignment.mesh
    sums = Counter[str]()
    for collective in estimate.collectives:
        sent = least_bytes(collective.kind, mesh.size_of(*collective.axes), 1.0)
        sums[collective.kind] += round(collective.bytes / sent) if sent else 0
    return {kind: sums[kind] for kind in COLLECTIVES if sums[kind]}


def _off(ours: float, theirs: float) -> str:
    """The relative error of a prediction as text."""
    if ours == theirs:
        return "equal"
    return f"{(ours / theirs - 1) * 100:+.1f} %" if theirs else "-"


def _fit(fits: bool) -> str:
    return "fit" if fits else "not fit"

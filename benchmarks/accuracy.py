"""Compares predictions with the real compilers, for models of the zoo x schedules x machines; writes docs/accuracy.md.

    python benchmarks/accuracy.py measure [--only TEXT] [--minutes 30]    compile the programs that have no result yet
    python benchmarks/accuracy.py report                                  predict all compiled programs, compare, write the page

Each program is compiled in a process of its own with its own timeout, and the compiler's output is kept in build/accuracy, a
file per program, so that a sweep can be stopped and continued. Judgements and predictions are made anew for each report. A
machine's efficiency is fitted on every other of its programs (in order of their names), and the reported errors are those of
the others.
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from importlib.metadata import version
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).parent.parent
os.environ.setdefault("JAX_PLATFORMS", "cpu")  # the GPU plugin would look for a GPU
RESULTS = ROOT / "build" / "accuracy"
DOCUMENT = ROOT / "docs" / "accuracy.md"
TIMEOUT_SECONDS = 900.0

D, M, S = "DataParallel('data')", "Megatron('model')", "SequenceParallel('model')"
D8 = f"{D}, DataParallel('model')"
ONCE = "reshard_after_forward=False"
SCHEDULES = {
    "batch": D,
    "batch8": D8,
    "megatron": M,
    "both": f"{D}, {M}",
    "zero2": f"{D}, ZeRO('data', stage=2)",
    "zero3": f"{D}, ZeRO('data', stage=3)",
    "batch8+zero2": f"{D8}, ZeRO('data', stage=2), ZeRO('model', stage=2)",
    "batch8+zero3": f"{D8}, ZeRO('data', stage=3), ZeRO('model', stage=3)",
    "batch8+zero3+once": f"{D8}, ZeRO('data', stage=3, {ONCE}), ZeRO('model', stage=3, {ONCE})",
    "both+zero2": f"{D}, {M}, ZeRO('data', stage=2)",
    "both+zero3": f"{D}, {M}, ZeRO('data', stage=3)",
    "both+sequence": f"{D}, {M}, {S}",
    "both+sequence+zero3": f"{D}, {M}, {S}, ZeRO('data', stage=3)",
}
BATCH = tuple(name for name in SCHEDULES if "both" not in name and name != "megatron")
NO_SEQUENCE = tuple(name for name in SCHEDULES if "sequence" not in name)

WIDE = {"layers": 2, "d_model": 1024, "heads": 8, "vocab": 8192, "seq": 512, "batch": 32}
HUGE = {"layers": 2, "d_model": 6144, "heads": 48, "vocab": 32768, "seq": 1024, "batch": 32}
MODELS: dict[str, tuple[str, dict[str, Any], Sequence[str]]] = {
    "gpt": ("gpt", WIDE, tuple(SCHEDULES)),
    "llama": ("llama", {"d_model": 1024, "heads": 8, "d_ff": 2816, "vocab": 8192, "seq": 512, "batch": 32}, tuple(SCHEDULES)),
    "vit": ("vit", {"d_model": 768, "heads": 12, "d_ff": 3072, "patch": 16, "image": 224, "batch": 64}, tuple(SCHEDULES)),
    "mlp": ("mlp", {"widths": (4096, 8192, 8192, 1024), "batch": 4096}, NO_SEQUENCE),
    "unet": ("unet", {"blocks": 1, "batch": 64}, BATCH),
    "wide_resnet": ("wide_resnet", {"depth": 10, "batch": 256}, BATCH),
    "huge": ("gpt", HUGE, ("batch", "both", "zero3")),
}
"""By name: the model of the zoo, its settings, and the names of the schedules to compile it with."""

MACHINES = {
    "tpu:v3:2x2": ("gpt", "llama", "vit", "mlp", "unet"),
    "tpu:v5e:2x4": ("gpt", "mlp", "huge"),
    "tpu:v4:2x2x2": ("gpt",),
    "gpu:h100:8": ("gpt", "mlp"),
    "tpu:v5p:2x2x2": ("huge", "gpt"),
}
MESH = {"data": 4, "model": 2}


@dataclass(frozen=True)
class Case:
    """One program on one machine."""

    model: str
    schedule: str
    topology: str

    @property
    def key(self) -> str:
        return f"{self.model} {self.schedule} {self.topology}"

    @property
    def file(self) -> str:
        """The name of the file with its result."""
        return f"{self.key.replace(' ', '_').replace(':', '-')}.json.gz"

    @property
    def group(self) -> tuple[str, str]:
        return self.model, self.topology

    @classmethod
    def of(cls, key: str) -> Case:
        return cls(*key.split(" "))


def cases() -> Iterator[Case]:
    """All programs. Those of one machine alternate between models, so that a sweep that is stopped has some of each."""
    for topology, models in MACHINES.items():
        for schedule in SCHEDULES:
            yield from (Case(model, schedule, topology) for model in models if schedule in MODELS[model][2])


# ---- measuring


def result(case: Case) -> dict[str, Any] | None:
    """The compiler's output for a program: `text`, `memory` and `optimal_seconds`, or an `error`; None without a result."""
    file = RESULTS / case.file
    return json.loads(gzip.decompress(file.read_bytes())) if file.exists() else None


def measure(only: str, minutes: float) -> int:
    """Compile the programs that have no result, one after the other, until the time is up."""
    RESULTS.mkdir(parents=True, exist_ok=True)
    start = time.monotonic()
    missing = [case for case in cases() if only in case.key and not (RESULTS / case.file).exists()]
    for number, case in enumerate(missing, 1):
        if time.monotonic() - start > 60 * minutes:
            print(f"time is up; {len(missing) - number + 1} programs are left", file=sys.stderr)
            break
        before = time.monotonic()
        said = in_child(case)
        print(f"[{number}/{len(missing)}] {case.key}: {said} ({time.monotonic() - before:.0f} s)", file=sys.stderr, flush=True)
    return 0


def in_child(case: Case) -> str:
    """Compile one program in a process of its own; returns a line on the outcome."""
    command = [sys.executable, __file__, "one", case.key]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=TIMEOUT_SECONDS + 120)
    except subprocess.TimeoutExpired:
        return "took too long"
    return (done.stderr if done.returncode else done.stdout).strip().splitlines()[-1]


def one(key: str) -> int:
    """The child process: compile, and write the compiler's output. A failure before the compiler runs is not a result."""
    from partir import CompilerError, MemoryLimitError

    case = Case.of(key)
    try:
        said = partitioned(case).verify(case.topology, timeout_seconds=TIMEOUT_SECONDS).compilation
        record = {"text": said.text, "memory": vars(said.memory), "optimal_seconds": said.optimal_seconds}
    except CompilerError as error:
        record = {"error": str(error), "fits": not isinstance(error, MemoryLimitError)}
    made = RESULTS / f".{os.getpid()}"
    made.write_bytes(gzip.compress(json.dumps(record).encode()))
    made.replace(RESULTS / case.file)
    print(str(record.get("error", "compiled")).splitlines()[0])
    return 0


def partitioned(case: Case) -> Any:
    """The program of a case, for the platform of this process."""
    from partir.cli.inputs import schedule_of

    return traced(case.model).partition(schedule_of(SCHEDULES[case.schedule]))


@cache
def traced(model: str, platform: str = "") -> Any:
    """The model's step, imported for this process's platform, or for another one."""
    import partir

    if platform:
        return traced(model).imported_for(platform, partir.Mesh(MESH), None)
    name, settings, _ = MODELS[model]
    example = partir.zoo.MODELS[name](**settings)
    return partir.jit(example.fun, mesh=partir.Mesh(MESH), donate_argnums=example.donate_argnums).trace(*example.args)


# ---- predicting


@dataclass
class Prediction:
    """A partitioned program with its prediction (`part`), and the judgement of what the compiler made of it (`compiler`)."""

    case: Case
    compiler: Any
    part: Any


def on_machine(case: Case) -> Any:
    """The program of a case, partitioned for its platform and machine."""
    from partir.cli.inputs import schedule_of
    from partir.verify.real_compilers import Topology

    topology = Topology.parse(case.topology)
    return traced(case.model, topology.platform).partition(schedule_of(SCHEDULES[case.schedule]), target=topology.target)


def predict(case: Case, record: dict[str, Any]) -> Prediction:
    """Judge the compiler's output, and partition the same program for its machine."""
    from partir.verify.judge import judge_text
    from partir.verify.real_compilers import Compilation, Memory

    part = on_machine(case)
    compilation = Compilation(record["text"], Memory(**record["memory"]), record["optimal_seconds"])
    return Prediction(case, judge_text(compilation, part.target, part.assignment.mesh), part)


def fitted_to(predictions: Sequence[Prediction]) -> Any:
    """The efficiency with which predicted compute times are closest to the compiler's."""
    from partir.cost.calibrate import Sample, fit

    samples = [Sample.of(p.case.key, p.compiler.compute_seconds, p.part.estimate) for p in predictions]
    return fit(samples, fitted_on=f"the compiler's figures for {len(samples)} programs")


# ---- reporting


@dataclass(frozen=True)
class Row:
    """One program, compared; `held_out` if nothing was fitted on it. Errors are relative; `step` and `theirs` in seconds."""

    case: Case
    held_out: bool
    memory: float
    plain_compute: float
    compute: float
    step: float
    theirs: float
    exact: bool
    peak_bytes: float
    limit_bytes: float
    predicted_bytes: float


def report() -> int:
    """Compare all compiled programs, and write docs/accuracy.md."""
    by_machine: dict[str, list[Prediction]] = defaultdict(list)
    refused: list[tuple[Case, dict[str, Any]]] = []
    for case in cases():
        record = result(case)
        if record is not None and "error" in record:
            refused.append((case, record))
        elif record is not None:
            print(f"... {case.key}", file=sys.stderr, flush=True)
            by_machine[case.topology].append(predict(case, record))
    rows: list[Row] = []
    fitted: dict[str, Any] = {}
    for topology, own in by_machine.items():
        own.sort(key=lambda p: p.case.key)
        fitted[f"{topology}, one half"] = efficiency = fitted_to(own[::2])
        fitted[f"{topology}, all"] = fitted_to(own)
        rows += [compare(p, efficiency, held_out=place % 2 == 1) for place, p in enumerate(own)]
    DOCUMENT.write_text(document(rows, fitted, refused, unseen_models(by_machine)))
    print(DOCUMENT.read_text())
    return 0


def unseen_models(by_machine: dict[str, list[Prediction]]) -> list[float]:
    """The compute errors of TPU programs if nothing is fitted on their model, for machines with several models."""
    found: list[float] = []
    for topology, own in by_machine.items():
        for model in sorted({p.case.model for p in own}):
            others = [p for p in own if p.case.model != model]
            if topology.startswith("tpu") and others:
                efficiency = fitted_to(others)
                mine = [p for p in own if p.case.model == model]
                targets = [replace(p.part.target, efficiency=efficiency) for p in mine]
                found += [on(p, t).compute_seconds / p.compiler.compute_seconds - 1 for p, t in zip(mine, targets, strict=True)]
    return found


def compare(prediction: Prediction, efficiency: Any, *, held_out: bool) -> Row:
    """One program: errors relative to the compiler's figures."""
    from partir.cost.target import Efficiency
    from partir.viz.verification import planned_bytes

    theirs, target = prediction.compiler, prediction.part.target
    plain, ours = (on(prediction, replace(target, efficiency=e)) for e in (Efficiency(), efficiency))
    exact = as_planned(prediction.part.collectives, planned_bytes(plain), theirs)
    return Row(
        prediction.case,
        held_out,
        plain.peak_bytes / theirs.peak_bytes - 1,
        plain.compute_seconds / theirs.compute_seconds - 1,
        ours.compute_seconds / theirs.compute_seconds - 1,
        ours.step_seconds,
        theirs.step_seconds,
        exact,
        theirs.peak_bytes,
        plain.target.hbm_bytes,
        plain.peak_bytes,
    )


def on(prediction: Prediction, target: Any) -> Any:
    """The estimate of the same partitioned program on another target."""
    return prediction.part.traced.partition([prediction.part.strategy], target=target).estimate


def as_planned(planned: dict[str, int], sizes: dict[str, int], theirs: Any) -> bool:
    """Whether a compiler's collectives are the planned ones: the same kinds, and of each kind as many with no more bytes, or
    fewer with the same bytes (XLA hoists small sums out of loops)."""
    ours = {kind: (count, sizes.get(kind, 0)) for kind, count in planned.items() if count}
    real = {kind: (count, theirs.bytes_by_kind.get(kind, 0)) for kind, count in theirs.collectives.items() if count}
    return ours.keys() == real.keys() and all(
        (real[kind][0] == count and real[kind][1] <= size) or (real[kind][0] < count and real[kind][1] == size)
        for kind, (count, size) in ours.items()
    )


def document(rows: list[Row], fitted: dict[str, Any], refused: list[tuple[Case, dict[str, Any]]], unseen: list[float]) -> str:
    """The text of docs/accuracy.md."""
    from record import table

    tpu = [row for row in rows if row.case.topology.startswith("tpu") and row.held_out]
    gpu = [row for row in rows if row.case.topology.startswith("gpu") and row.held_out]
    ranks = rank_correlations(rows)
    memory = [abs(row.memory) for row in rows]
    right, sure = fits(rows, refused)
    summary = [
        ("peak memory, all programs", percent(memory, 50), percent(memory, 90), "10 %, 20 %", str(len(memory))),
        ("compute, TPU, held out", *spread([row.compute for row in tpu]), "15 % median", str(len(tpu))),
        ("compute, TPU, whole models held out", *spread(unseen), "", str(len(unseen))),
        ("compute, GPU, held out (no bar: a roofline)", *spread([row.compute for row in gpu]), "", str(len(gpu))),
    ]
    by_platform = {name: [rank for (_, where), rank in ranks.items() if where.startswith(name)] for name in ("tpu", "gpu")}
    lowest = ", ".join(f"{name.upper()} {min(own):.3f} of {len(own)}" for name, own in by_platform.items() if own)
    ordered, apart = ordered_pairs(rows)
    exact = sum(row.exact for row in rows)
    others = sum(record["fits"] for _, record in refused)
    counted = [
        "- Collectives as planned in kind and number, and no more bytes (or fewer that move the same: XLA takes small sums out "
        f"of loops): {exact} of {len(rows)}.",
        f"- Rank correlation of step times over the schedules of one model: lowest {lowest} (bar: 0.95).",
        f"- Pairs of schedules of one model whose step times are more than 5 % apart: in the right order {ordered} of {apart}.",
        f"- Fits or does not fit, where more than 25 % from the limit: right in {right} of {sure}.",
        f"- Programs that were not compiled for other reasons than memory: {others}.",
    ]
    efficiencies = [
        (topology, f"{e.matrix:.2f}", f"{e.vector:.2f}", f"{e.memory:.2f}", f"{e.overhead_seconds * 1e6:.2f}")
        for topology, e in fitted.items()
    ]
    each = [
        (
            f"{row.case.model}, {row.case.schedule}",
            row.case.topology,
            f"{row.peak_bytes / 1e9:.2f}",
            f"{row.memory * 100:+.0f} %",
            f"{row.plain_compute * 100:+.0f} %",
            f"{row.compute * 100:+.0f} %" + ("" if row.held_out else " (fitted)"),
            f"{row.theirs * 1e3:.2f}",
            f"{row.step * 1e3:.2f}",
            "yes" if row.exact else "NO",
        )
        for row in rows
    ]
    where = f"jax {version('jax')}, libtpu {installed('libtpu')}, jax-cuda12-plugin {installed('jax-cuda12-plugin')}"
    parts = [
        "# Accuracy of predictions",
        f"Written by `python benchmarks/accuracy.py report`; compiled with {where}. Mesh data=4, model=2. Errors are those of "
        "the prediction, relative to the compiler's own figure: peak memory from its memory analysis, compute from its cycles "
        "(TPU) or a roofline over its instructions (GPU). Efficiencies are fitted on every other program of a machine; *held "
        "out* are the others. *Whole models held out*: nothing was fitted on the model, on machines with several (for v5p that "
        "leaves two programs to predict ten from, too few). The rules of the estimate were found by looking at programs of "
        "this page, so none of them is unseen in that sense. The TPUs that partir knows come with the "
        "efficiencies fitted on all.",
        table(("", "median error", "90th percentile", "bar", "programs"), summary),
        "\n".join(counted),
        "## Fitted efficiencies",
        table(("fitted on", "matrix", "vector", "memory", "overhead per kernel (us)"), efficiencies),
        "## Rank correlation of step times over schedules",
        table(("model", "machine", "Spearman"), [(*group, f"{value:.2f}") for group, value in ranks.items()]),
        "## Every program",
        table(
            (
                "program",
                "machine",
                "peak (GB)",
                "error",
                "compute, datasheet",
                "compute, fitted",
                "step (ms)",
                "predicted",
                "exact",
            ),
            each,
        ),
    ]
    if refused:
        lines = [(case.key, " ".join(record["error"].split())[:160]) for case, record in refused]
        parts += ["## Not compiled", table(("program", "why"), lines)]
    return "\n\n".join(parts) + "\n"


def fits(rows: list[Row], refused: list[tuple[Case, dict[str, Any]]]) -> tuple[int, int]:
    """For how many programs the prediction of whether they fit is right, of how many: those whose peak memory is more than 25 %
    from the limit. The peak of a program that does not fit is that of the same program on another machine."""
    asked = [(row.predicted_bytes <= row.limit_bytes, row.peak_bytes / row.limit_bytes) for row in rows]
    needs = {(row.case.model, row.case.schedule): row.peak_bytes for row in rows}
    for case, record in refused:
        known = needs.get((case.model, case.schedule))
        if not record["fits"] and known is not None:
            estimate = on_machine(case).estimate
            asked.append((estimate.fits, known / estimate.target.hbm_bytes))
    sure = [(predicted, share) for predicted, share in asked if abs(share - 1) > 0.25]
    return sum(predicted == (share <= 1) for predicted, share in sure), len(sure)


def ordered_pairs(rows: list[Row]) -> tuple[int, int]:
    """How many pairs of schedules of one model on one machine are predicted in the compiler's order, of how many: those whose
    step times are more than 5 % apart. Smaller differences are within the error of predictions."""
    pairs = [
        (a, b)
        for a, b in combinations(rows, 2)
        if a.case.group == b.case.group and max(a.theirs, b.theirs) > 1.05 * min(a.theirs, b.theirs)
    ]
    return sum((a.step < b.step) == (a.theirs < b.theirs) for a, b in pairs), len(pairs)


def rank_correlations(rows: list[Row]) -> dict[tuple[str, str], float]:
    """Spearman's rank correlation of predicted and compiled step times, over the schedules of each model on each machine."""
    groups: dict[tuple[str, str], list[Row]] = defaultdict(list)
    for row in rows:
        groups[row.case.group].append(row)

    def ranks(values: list[float]) -> np.ndarray[Any, Any]:
        return np.array([sum(v < x for v in values) + (sum(v == x for v in values) - 1) / 2 for x in values])

    return {
        group: float(np.corrcoef(ranks([r.step for r in own]), ranks([r.theirs for r in own]))[0, 1])
        for group, own in groups.items()
        if len(own) > 2
    }


def spread(errors: list[float]) -> tuple[str, str]:
    """The median and the 90th percentile of absolute errors."""
    sizes = [abs(error) for error in errors]
    return percent(sizes, 50), percent(sizes, 90)


def percent(values: list[float], q: float) -> str:
    """A percentile of relative errors, as text."""
    return f"{np.percentile(values, q) * 100:.1f} %" if values else "-"


def installed(package: str) -> str:
    """The version of a package, or "(not installed)"."""
    try:
        return version(package)
    except ModuleNotFoundError:
        return "(not installed)"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    measuring = commands.add_parser("measure", help="compile what is missing")
    measuring.add_argument("--only", default="", help="programs whose key has this text")
    measuring.add_argument("--minutes", type=float, default=30.0)
    commands.add_parser("report", help="write docs/accuracy.md")
    commands.add_parser("one", help="(used by measure)").add_argument("key")
    options = parser.parse_args()
    if options.command == "measure":
        return measure(options.only, options.minutes)
    return one(options.key) if options.command == "one" else report()


if __name__ == "__main__":
    sys.exit(main())

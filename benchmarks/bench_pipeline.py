"""Measures each step of partir on a GPT training step, as multiples of JAX's own cold trace + lower of it.

Each figure comes from a fresh process. For each depth, several rounds of (JAX alone, partir) run in turn; medians are kept.
"""

from __future__ import annotations

import json
import resource
import statistics
import subprocess
import sys
import time
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from partir.zoo import Example

SIZES = {"d_model": 1024, "heads": 16, "vocab": 8192, "seq": 512, "batch": 32}
DEPTHS = (6, 12, 24, 48, 96)
ROUNDS = 3
BARS = {"import": 2.5, "tactic": 0.05, "lower": 4.0, "core": 6.0}


def jax_alone(example: Example) -> dict[str, float]:
    """T: seconds of JAX's cold trace and lowering."""
    import jax

    start = time.perf_counter()
    jax.jit(example.fun, keep_unused=True).trace(*example.args).lower()
    return {"T": time.perf_counter() - start}


def partir_alone(example: Example) -> dict[str, float]:
    """The seconds of each step of partir in a fresh process."""
    import partir
    from partir.coreir.materialise import materialise
    from partir.lowering.to_spmd import to_spmd
    from partir.runtime.emit import emit
    from partir.sharding import plan
    from partir.tactics import run

    step = partir.jit(example.fun, mesh=partir.Mesh(data=4, model=2), schedule=[], donate_argnums=example.donate_argnums)
    clock = time.perf_counter
    start = clock()
    traced = step.trace(*example.args)
    structure = traced.structure
    imported = clock()
    assignment = traced.decided().assignment  # nothing is planned yet
    marks: dict[str, float] = {}
    for tactic in (partir.DataParallel("data"), partir.Megatron("model"), partir.ZeRO("data", stage=3)):
        before = clock()
        assignment = run([tactic], assignment)[-1].assignment
        marks[type(tactic).__name__] = clock() - before
    before = clock()
    made = plan.make(assignment)
    planned = clock()
    spmd = to_spmd(made)
    lowered = clock()
    emit(spmd, assignment.mesh)
    emitted = clock()
    core_start = clock()
    materialise(made)
    core = clock() - core_start
    return {
        "all": imported - start,
        "tactic": max(marks.values()),
        "plan": planned - before,
        "spmd": lowered - planned,
        "emit": emitted - lowered,
        "core": core,
        "ops": float(traced.scopes.total),
        "rows": float(len(structure.tables.rows)),
        "memory": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024.0,
    }


def fresh(which: str, layers: int) -> dict[str, float]:
    """Run one measurement in a process of its own."""
    command = [sys.executable, __file__, which, str(layers)]
    out = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    return json.loads(out.splitlines()[-1])


def measure(layers: int) -> dict[str, Any]:
    """The medians over rounds; times are multiples of T."""
    rounds = [fresh("jax", layers) | fresh("partir", layers) for _ in range(ROUNDS)]
    unit = statistics.median(r["T"] for r in rounds)

    def ratio(value: Any) -> float:
        return statistics.median(value(r) for r in rounds) / unit

    return {
        "layers": layers,
        "ops": int(rounds[0]["ops"]),
        "T": unit,
        "import": ratio(lambda r: r["all"] - r["T"]),
        "tactic": ratio(lambda r: r["tactic"]),
        "lower": ratio(lambda r: r["plan"] + r["spmd"] + r["emit"]),
        "core": ratio(lambda r: r["core"]),
        "memory": statistics.median(r["memory"] for r in rounds),
    }


def slope(rows: list[dict[str, Any]], key: str) -> float:
    """The exponent p in seconds ~ ops^p, from the smallest and the largest depth (1 is linear)."""
    import math

    first, last = rows[0], rows[-1]
    growth = (last[key] * last["T"]) / (first[key] * first["T"])
    return math.log(growth) / math.log(last["ops"] / first["ops"])


def main() -> int:
    from record import table, write

    rows = [measure(layers) for layers in DEPTHS]
    shown = [
        (
            str(r["layers"]),
            f"{r['ops']:,}",
            f"{r['T']:.2f}",
            *(f"{r[key]:.2f}" if key != "tactic" else f"{r[key]:.3f}" for key in BARS),
            f"{r['memory'] / 1e9:.2f}",
        )
        for r in rows
    ]
    bars = ("bar", "", "", *(f"<= {bar}" for bar in BARS.values()), "<= 2 at 24 layers")
    slopes = ("slope", "", "", *(f"{slope(rows, key):.2f}" for key in BARS), "")
    headings = (
        "layers", "ops", "T (s)", "import beyond T (T)", "one more tactic, the slowest of three (T)",
        "plan + SPMD + emission (T)", "Core IR (T)", "process memory (GB)",
    )  # fmt: skip
    text = table(headings, [*shown, bars, slopes])
    note = (
        "GPT training step with Adam, d 1024, 16 heads, vocabulary 8192, 32 x 512 tokens; T is JAX's own cold trace + lower of "
        "the same function; schedule DataParallel, Megatron, ZeRO(stage=3) on mesh data=4, model=2. The slope is p of "
        f"seconds ~ ops^p from {DEPTHS[0]} to {DEPTHS[-1]} layers: 1 is linear."
    )
    write("bench_pipeline", "From function to device-local program", f"{note}\n\n{text}")
    at_24 = next(r for r in rows if r["layers"] == 24)
    late = [key for key, bar in BARS.items() if at_24[key] > bar]
    return 1 if late or at_24["memory"] > 2e9 else 0


if __name__ == "__main__":
    if len(sys.argv) > 1:
        from partir.zoo import gpt

        measured = {"jax": jax_alone, "partir": partir_alone}[sys.argv[1]](gpt(layers=int(sys.argv[2]), **SIZES))
        print(json.dumps(measured))
    else:
        sys.exit(main())

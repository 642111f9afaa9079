"""Measures the steps of `bench_pipeline`, and 500 episodes of search, on a program of 100,000 ops and on scanned layers.

Each figure comes from a fresh process. T is the time of JAX's own cold trace + lower of the same function.
"""

from __future__ import annotations

import json
import resource
import statistics
import subprocess
import sys
import time
from typing import TYPE_CHECKING

from bench_pipeline import BARS, SIZES, jax_alone, partir_alone

if TYPE_CHECKING:
    from partir.zoo import Example

LAYERS = 190
SCANNED = (2, 64)
LLAMA = {"d_model": 512, "heads": 8, "d_ff": 1408, "vocab": 8192, "seq": 256, "batch": 16}
ROUNDS = 3
EPISODES, SECONDS = 500, 60.0
ALIKE = 1.25
"""The allowed ratio of times of the deep and the shallow scanned model. They are the same program: this allows for noise."""


def example_of(model: str, layers: int) -> Example:
    """The training step of a model with its sizes."""
    from partir import zoo

    return zoo.MODELS[model](layers=layers, **(SIZES if model == "gpt" else LLAMA))


def search_alone(example: Example) -> dict[str, float]:
    """The seconds of import, of making the environment of a search, and of its episodes; and how many were priced."""
    import partir
    from partir.search import MCTS
    from partir.tactics import Search

    clock = time.perf_counter
    began = clock()
    step = partir.jit(example.fun, mesh=partir.Mesh(data=4, model=2), donate_argnums=example.donate_argnums)
    start = step.trace(*example.args).partition([]).assignment
    imported = clock()
    environment = Search(("data", "model"), target="tpu_v3").environment(start)
    environment.price(())
    made, before = clock(), environment.evaluations
    found = MCTS(EPISODES, patience=None).search(environment)
    done = clock()
    return {
        "import": imported - began,
        "environment": made - imported,
        "episodes": done - made,
        "evaluations": float(environment.evaluations - before),
        "decisions": float(len(environment.decisions)),
        "best": found.price.seconds,
        "memory": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024.0,
    }


KINDS = {"jax": jax_alone, "partir": partir_alone, "search": search_alone}


def fresh(which: str, model: str, layers: int) -> dict[str, float]:
    """Run one measurement in a process of its own."""
    command = [sys.executable, __file__, which, model, str(layers)]
    out = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    print(f"... {which} {model} {layers}", file=sys.stderr, flush=True)
    return json.loads(out.splitlines()[-1])


def measured(model: str, layers: int, rounds: int) -> dict[str, float]:
    """The medians over rounds of T and of the seconds of each step; `import` is the time of the import beyond T."""
    found = [fresh("jax", model, layers) | fresh("partir", model, layers) for _ in range(rounds)]
    middle = {key: statistics.median(one[key] for one in found) for key in found[0]}
    middle["import"] = middle["all"] - middle["T"]
    middle["lower"] = middle["plan"] + middle["spmd"] + middle["emit"]
    return middle


def row(name: str, one: dict[str, float]) -> tuple[str, ...]:
    """A row of the table, with times as multiples of T."""
    times = [f"{one[key] / one['T']:.3f}" if key == "tactic" else f"{one[key] / one['T']:.2f}" for key in BARS]
    return (name, f"{one['ops']:,.0f}", f"{one['T']:.2f}", *times, f"{one['memory'] / 1e9:.2f}")


def main() -> int:
    from record import table, write

    large = measured("gpt", LAYERS, 1)
    search = fresh("search", "gpt", LAYERS)
    scanned = {layers: measured("llama", layers, ROUNDS) for layers in SCANNED}
    shallow, deep = (scanned[layers] for layers in SCANNED)
    growth = {key: deep[key] / shallow[key] for key in ("T", "import", "tactic", "lower", "core")}
    headings = (
        "program", "ops", "T (s)", "import beyond T (T)", "one more tactic (T)", "plan + SPMD + emission (T)", "Core IR (T)",
        "process memory (GB)",
    )  # fmt: skip
    rows = [
        row(f"gpt, {LAYERS} layers unrolled", large),
        *(row(f"llama, {layers} layers scanned", scanned[layers]) for layers in SCANNED),
        ("bar", "", "", *(f"<= {bar}" for bar in BARS.values()), ""),
    ]
    grown = ", ".join(
        f"{name} {growth[key]:.2f}"
        for key, name in (
            ("T", "T"), ("import", "import"), ("tactic", "a tactic"), ("lower", "plan + SPMD + emission"), ("core", "Core IR"),
        )
    )  # fmt: skip
    body = (
        f"Schedule and mesh of `bench_pipeline`.\n\n{table(headings, rows)}\n\n"
        f"{SCANNED[1]} scanned layers against {SCANNED[0]}, in seconds: {grown}.\n\n"
        f"Search on the {large['ops']:,.0f} ops (target tpu_v3, both axes, {search['decisions']:.0f} decisions): import "
        f"{search['import']:.1f} s, environment {search['environment']:.1f} s, {EPISODES} episodes {search['episodes']:.1f} s "
        f"(bar {SECONDS:.0f}), {search['evaluations']:.0f} strategies priced (bar {2 * EPISODES}), "
        f"process memory {search['memory'] / 1e9:.2f} GB."
    )
    write("bench_large", "100,000 ops, and scanned layers", body)
    late = [key for key, bar in BARS.items() if large[key] > bar * large["T"]]
    slow = search["episodes"] > SECONDS or search["evaluations"] > 2 * EPISODES
    return 1 if late or slow or max(growth["import"], growth["lower"]) > ALIKE else 0


if __name__ == "__main__":
    if len(sys.argv) > 1:
        print(json.dumps(KINDS[sys.argv[1]](example_of(sys.argv[2], int(sys.argv[3])))))
    else:
        sys.exit(main())

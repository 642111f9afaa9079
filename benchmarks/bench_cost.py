"""Measures how long it takes to price a decision, as multiples of JAX's own cold trace + lower of the same function.

Search makes plans of the folded program (which has each repeated part once) and computes the price of the full program from
them; only the final strategy is planned on the full program. Each figure is a median of fresh processes.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import time

SIZES = {"d_model": 1024, "heads": 16, "vocab": 8192, "seq": 512, "batch": 32}
LAYERS = 24
ROUNDS = 3
BARS = {"full": 0.03, "incremental": 0.01}


def jax_alone() -> dict[str, float]:
    """T: seconds of JAX's cold trace and lowering."""
    import jax

    from partir.zoo import gpt

    example = gpt(layers=LAYERS, **SIZES)
    start = time.perf_counter()
    jax.jit(example.fun, keep_unused=True).trace(*example.args).lower()
    return {"T": time.perf_counter() - start}


def partir_alone() -> dict[str, float]:
    """The seconds of planning and pricing. `full` is the first plan and price of a schedule, `incremental` those after one more
    action."""
    import gc

    import partir
    from partir.cost.estimate import model_of
    from partir.cost.unfolding import Unfolding
    from partir.sharding import folded, plan
    from partir.tactics import run

    example = partir.zoo.gpt(layers=LAYERS, **SIZES)
    step = partir.jit(example.fun, mesh=partir.Mesh(data=4, model=2), schedule=[], donate_argnums=example.donate_argnums)
    traced = step.trace(*example.args)
    target = partir.targets.get("tpu_v3")
    schedule = [partir.DataParallel("data"), partir.Megatron("model"), partir.ZeRO("data", stage=3)]
    start = traced.partition([]).assignment
    gc.collect()
    gc.disable()  # as search does between steps
    clock = time.perf_counter
    marks: dict[str, float] = {}

    def timed(name, work):
        before = clock()
        found = work()
        marks[name] = min(marks.get(name, float("inf")), clock() - before)
        return found

    model = model_of(traced.structure, target)
    timed("kernels", lambda: model.kernels)
    parts = timed("parts", lambda: folded.fold(start))
    unfolding = Unfolding.of(model.kernels, parts)
    model.estimate(plan.make(parts.start), unfolding)
    final = run(schedule, parts.start)[-1].assignment
    timed("full", lambda: model.estimate(plan.make(final), unfolding))
    for _ in range(5):
        again = final.undo().apply(final.actions[-1])
        timed("incremental", lambda again=again: model.estimate(plan.make(again), unfolding))
    whole = run(schedule, start)[-1].assignment
    for _ in range(3):
        fresh = whole.undo().apply(whole.actions[-1])
        planned = timed("plan", lambda fresh=fresh: plan.make(fresh))
        timed("price", lambda planned=planned: model.estimate(planned))
    return marks


def fresh(which: str) -> dict[str, float]:
    """Run one measurement in a process of its own."""
    out = subprocess.run([sys.executable, __file__, which], check=True, capture_output=True, text=True).stdout
    return json.loads(out.splitlines()[-1])


def main() -> int:
    from record import table, write

    rounds = [fresh("jax") | fresh("partir") for _ in range(ROUNDS)]
    unit = statistics.median(r["T"] for r in rounds)
    names = {
        "kernels": "kernels and their order, once for a program",
        "parts": "repeated parts found, once for a search",
        "full": "plan and price of a schedule, on the parts",
        "incremental": "plan and price after one more action, on the parts",
        "plan": "plan of the whole",
        "price": "price of the whole, given its plan",
    }
    ratio = {name: statistics.median(r[name] for r in rounds) / unit for name in names}
    shown = [(text, f"{ratio[name]:.4f}", f"<= {BARS[name]}" if name in BARS else "") for name, text in names.items()]
    note = (
        f"GPT training step with Adam, {LAYERS} layers, d 1024, 16 heads, vocabulary 8192, 32 x 512 tokens, on mesh data=4, "
        f"model=2, schedule DataParallel, Megatron, ZeRO(stage=3); T = {unit:.2f} s is JAX's own cold trace + lower."
    )
    write("bench_cost", "What a decision costs", f"{note}\n\n{table(('step', 'T', 'bar'), shown)}")
    return 1 if any(ratio[name] > bar for name, bar in BARS.items()) else 0


if __name__ == "__main__":
    if len(sys.argv) > 1:
        print(json.dumps({"jax": jax_alone, "partir": partir_alone}[sys.argv[1]]()))
    else:
        sys.exit(main())

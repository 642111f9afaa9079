"""Compares strategies that search finds with those of experts, by the real TPU compilers; writes into docs/benchmarks.md.

    python benchmarks/against_experts.py                  all cases that have no result yet, then the table
    python benchmarks/against_experts.py --only "gpt tpu:v3"
    python benchmarks/against_experts.py --kept           only the table, of the cases that have all their results

Needs `partir[tpu]`. Each program is compiled in a process of its own; judgements are kept in build/experts. The experts are
pure data parallelism, data x Megatron, FSDP, and plain `jit` with FSDP's shardings written by hand (each array of the state
sharded along its largest dim that divides, as `NamedSharding`s; XLA's partitioner does the rest). Search prices with the
estimate. If its best strategy does not beat all experts, two more are compiled (`Result.alternatives`: the best with other
collectives, and the best with few decisions), and the fastest counts.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import partir

os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.setdefault("ALLOW_MULTIPLE_LIBTPU_LOAD", "1")  # a compiler in another process may have it
ROOT = Path(__file__).parent.parent
RESULTS = ROOT / "build" / "experts"
TIMEOUT_SECONDS = 900.0
MESH = {"data": 4, "model": 2}
D, D2, M = "DataParallel('data')", "DataParallel('model')", "Megatron('model')"
FSDP = f"{D}, {D2}, ZeRO('data', stage=3), ZeRO('model', stage=3)"
EXPERTS = {"data parallel": f"{D}, {D2}", "data x Megatron": f"{D}, {M}", "FSDP": FSDP}
FOUND = ("found 0", "found 1", "found 2")

WIDE = {"layers": 2, "d_model": 1024, "heads": 8, "vocab": 8192, "seq": 512, "batch": 32}
MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "gpt": ("gpt", WIDE),
    "llama": ("llama", {"layers": 2, "d_model": 1024, "heads": 8, "d_ff": 2816, "vocab": 8192, "seq": 512, "batch": 32}),
    "moe": ("moe", {"layers": 2, "d_model": 512, "heads": 8, "experts": 16, "vocab": 8192, "seq": 256, "batch": 32}),
    "wide_resnet": ("wide_resnet", {"depth": 10, "batch": 256}),
    "unet": ("unet", {"blocks": 1, "batch": 64}),
    "gns": ("gns", {}),
    "huge": ("gpt", {"layers": 2, "d_model": 6144, "heads": 48, "vocab": 32768, "seq": 1024, "batch": 32}),
}
TOPOLOGIES = ("tpu:v3:2x2", "tpu:v5e:2x4", "tpu:v4:2x2x2")
CASES = [(model, topology) for topology in TOPOLOGIES for model in MODELS if model != "huge" or topology != "tpu:v4:2x2x2"]
"""`huge` (1.3 billion parameters with Adam, too large for data parallelism alone) is for the machines with 16 GB per device."""


def _file(model: str, topology: str, strategy: str) -> Path:
    return RESULTS / f"{model}_{topology}_{strategy}.json".replace(":", "-").replace(" ", "_")


def judged(model: str, topology: str, strategy: str) -> dict[str, Any]:
    """The judgement of one program (or the result of "search"): from its file, or else made in a child process."""
    file = _file(model, topology, strategy)
    if not file.exists():
        RESULTS.mkdir(parents=True, exist_ok=True)
        command = [sys.executable, __file__, "--one", model, topology, strategy]
        try:
            done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=TIMEOUT_SECONDS + 300)
            record = done.stdout.splitlines()[-1] if done.returncode == 0 else json.dumps({"error": done.stderr[-400:]})
        except subprocess.TimeoutExpired:
            record = json.dumps({"error": "took too long"})
        made = file.with_suffix(f".{os.getpid()}")
        made.write_text(record)
        made.replace(file)
    found = json.loads(file.read_text())
    said = (
        found["error"].strip().splitlines()[-1]
        if "error" in found
        else found.get("decisions") or f"{_seconds(found) * 1e3:.3f} ms"
    )
    print(f"... {model} {topology} {strategy}: {said}", file=sys.stderr, flush=True)
    return found


def _seconds(record: Mapping[str, Any]) -> float:
    return float(record.get("step_seconds", float("inf")))


def compared(model: str, topology: str, *, kept: bool = False) -> tuple[dict[str, dict[str, Any]], float]:
    """The experts' records, and the step seconds of the best strategy that search found.

    Its strategies are compiled until one beats all experts; with `kept`, until one has no result yet.
    """
    experts = {name: judged(model, topology, name) for name in (*EXPERTS, "jit")}
    best = min(_seconds(record) for record in experts.values())
    own = float("inf")
    found = judged(model, topology, "search")
    if "error" not in found:
        for name in FOUND[: len(found["decisions"])]:
            if kept and not _file(model, topology, name).exists():
                break
            own = min(own, _seconds(judged(model, topology, name)))
            if own < best:
                break
    return experts, own


def searched(model: str, topology: str, traced: Any, target: Any) -> dict[str, Any]:
    """Find the best strategy by the estimate, and alternatives for the compiler; save each, and return their decisions."""
    from partir.tactics import Search

    search = Search(("data", "model"), target=target)
    start = traced.partition([]).assignment
    environment = search.environment(start)
    result = partir.search.MCTS().search(environment)
    best = [min(result.candidates, key=lambda state: environment.exact(state).rank), *result.alternatives()]
    for name, state in zip(FOUND, best, strict=False):
        part = traced.partition([action for decision in state for action in decision.actions])
        part.strategy.save(_file(model, topology, f"{name} strategy"))
    decisions = [[str(decision) for decision in state] for state in best]
    return {"decisions": decisions, "seconds": result.seconds, "evaluations": result.evaluations}


def one(model: str, topology: str, strategy: str) -> dict[str, Any]:
    """The child process: partition, compile and judge."""
    from partir.cli.inputs import schedule_of
    from partir.verify.real_compilers import Topology

    where = Topology.parse(topology)
    name, settings = MODELS[model]
    example = partir.zoo.MODELS[name](**settings)
    mesh = partir.Mesh(MESH)
    traced = partir.jit(example.fun, mesh=mesh, donate_argnums=example.donate_argnums).trace(*example.args)
    if strategy == "search":
        return searched(model, topology, traced, where.target)
    if strategy in FOUND:
        part = traced.partition([partir.load_strategy(_file(model, topology, f"{strategy} strategy"))])
    elif strategy != "jit":
        part = traced.partition(schedule_of(EXPERTS[strategy]))
    else:
        part = None
    if part is not None:
        found = part.verify(topology, timeout_seconds=TIMEOUT_SECONDS).judgement
    else:
        found = partir.judge(by_hand(example, where), where.target)
    return {"step_seconds": found.step_seconds, "peak_bytes": found.peak_bytes, "collectives": found.collectives}


def by_hand(example: partir.Example, where: Any) -> Any:
    """The `jax.stages.Compiled` that XLA's partitioner makes of FSDP's shardings."""
    import jax

    from partir.verify.compile_child import devices_of, mesh_of

    mesh = mesh_of([*MESH.items()], devices_of({"platform": "tpu", "options": where.options}))
    state, outs = example.donate_argnums, jax.eval_shape(example.fun, *example.args)
    ins = tuple(spread(arg, mesh) if k in state else by_batch(arg, mesh) for k, arg in enumerate(example.args))
    step = jax.jit(example.fun, in_shardings=ins, out_shardings=spread(outs, mesh), donate_argnums=state)
    return step.lower(*example.args).compile()


def spread(tree: Any, mesh: Any) -> Any:
    """The shardings that an FSDP user writes: each array over all devices along its largest dim that divides."""
    import jax

    def of(leaf: Any) -> Any:
        dims = [d for d, size in enumerate(leaf.shape) if size % mesh.size == 0]
        largest = max(dims, key=lambda d: leaf.shape[d], default=None)
        own = [mesh.axis_names if d == largest else None for d in range(leaf.ndim)]
        return jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec(*own))

    return jax.tree.map(of, tree)


def by_batch(tree: Any, mesh: Any) -> Any:
    """Shardings of each array over all devices along its first dim, if that divides."""
    import jax

    def of(leaf: Any) -> Any:
        cut = leaf.ndim > 0 and leaf.shape[0] % mesh.size == 0
        spec = jax.sharding.PartitionSpec(mesh.axis_names) if cut else jax.sharding.PartitionSpec()
        return jax.sharding.NamedSharding(mesh, spec)

    return jax.tree.map(of, tree)


def main() -> int:
    from record import table, write

    parser = argparse.ArgumentParser()
    parser.add_argument("--only", default="")
    parser.add_argument("--kept", action="store_true")
    parser.add_argument("--one", nargs=3)
    options = parser.parse_args()
    if options.one:
        print(json.dumps(one(*options.one)))
        return 0
    rows: list[tuple[str, ...]] = []
    ratios: list[float] = []
    single = 0
    for model, topology in CASES:
        complete = all(_file(model, topology, name).exists() for name in (*EXPERTS, "jit", "search", FOUND[0]))
        if options.only in f"{model} {topology}" and (complete or not options.kept):
            experts, own = compared(model, topology, kept=options.kept)
            ratios.append(own / min(_seconds(record) for record in experts.values()))
            single += ratios[-1] >= 1 and not _file(model, topology, FOUND[1]).exists()
            rows.append((model, topology, *map(_cell, experts.values()), f"{own * 1e3:.2f}", f"{ratios[-1]:.3f}"))
    headings = (
        "model",
        "machine",
        *(f"{name} (ms)" for name in (*EXPERTS, "jit + NamedSharding")),
        "found (ms)",
        "of the best expert",
    )
    within = sum(ratio <= 1.02 for ratio in ratios)
    better = sum(ratio < 1 for ratio in ratios)
    body = (
        "Step time by `partir.judge` (the compiler's cycles, collectives by the alpha-beta model), mesh data=4, model=2, "
        "small depths. Where the best that search found is not better than all experts, it compiled three and took the best of "
        "them: its best, the best that sends other things, and the best of at most a quarter of the decisions"
        f"{f' (in {single} cases only its best)' if single else ''}.\n\n"
        f"{table(headings, rows)}\n\n"
        f"Within 2 % of the best expert in {within} of {len(ratios)}, strictly better than all in {better}; "
        f"the worst is {max(ratios):.3f}."
    )
    write("against_experts", "Search against experts, by the TPU compiler", body)
    return 0


def _cell(record: Mapping[str, Any]) -> str:
    if "error" not in record:
        return f"{record['step_seconds'] * 1e3:.2f}"
    if "too long" in record["error"]:
        return "took too long"
    return "does not fit" if "memory" in record["error"] or "error_1000" in record["error"] else "refused"


if __name__ == "__main__":
    sys.exit(main())

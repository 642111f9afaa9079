"""Measures how soon search finds the best known strategy: with groups, within scopes, without groups, and by other searchers.

Times are multiples of T, JAX's own cold trace + lower of the same function. A seed succeeds if it is within 1 % of the best
strategy of all runs and of all schedules below.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import partir
from partir import DataParallel, Megatron, SequenceParallel, ZeRO
from partir.cost.estimate import estimate
from partir.search import MCTS, Beam, Environment, Random, Result
from partir.search.environment import Price, price_of
from partir.tactics import Search

SIZES = {"d_model": 1024, "heads": 16, "vocab": 8192, "seq": 512, "batch": 32}
MESH = partir.Mesh(data=4, model=2)
AXES = ("data", "model")
TARGET = partir.targets.get("tpu_v3")
SEEDS = 20
UNGROUPED_SEEDS = 3
UNGROUPED_EPISODES = 200
EPISODES = (25, 50, 100, 200, 300, 500)
NEAR = 1.01

EXPERTS: dict[str, list[Any]] = {
    "data parallel, 8": [DataParallel("data"), DataParallel("model")],
    "data 4 x Megatron 2": [DataParallel("data"), Megatron("model")],
    "the same + ZeRO-2": [DataParallel("data"), Megatron("model"), ZeRO("data", stage=2)],
    "the same + ZeRO-3": [DataParallel("data"), Megatron("model"), ZeRO("data", stage=3)],
    "the same + sequence": [DataParallel("data"), Megatron("model"), SequenceParallel("model"), ZeRO("data", stage=3)],
    "FSDP, 8": [DataParallel("data"), DataParallel("model"), ZeRO("data", stage=3), ZeRO("model", stage=3)],
}


@dataclass
class Runs:
    """Searches of one kind: the seconds to make their environment (`setup`), and the result for each seed."""

    name: str
    setup: float
    results: list[Result]


def unit(layers: int) -> float:
    """T in seconds, measured in a fresh process."""
    command = [sys.executable, str(__file__).replace("bench_search", "bench_pipeline"), "jax", str(layers)]
    out = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    return float(json.loads(out.splitlines()[-1])["T"])


def traced(layers: int) -> partir.Traced:
    """The model, imported."""
    example = partir.zoo.gpt(layers=layers, **SIZES)
    return partir.jit(example.fun, mesh=MESH, donate_argnums=example.donate_argnums).trace(*example.args)


def environment(tr: partir.Traced, *, grouped: bool = True, scopes: Sequence[str] | None = None) -> Environment:
    """A new environment, with the folded program made and the start priced. With `scopes`, the batch is sharded before it."""
    start = tr.partition([DataParallel("data")] if scopes else [])
    axes = AXES[1:] if scopes else AXES
    made = Search(axes, scopes=scopes, target=TARGET).environment(start.assignment, grouped=grouped)
    made.price(())
    return made


def runs(name: str, tr: partir.Traced, seeds: int, episodes: int, **options: Any) -> Runs:
    """Run MCTS with several seeds, each with an empty cache of prices."""
    start = time.perf_counter()
    first = environment(tr, **options)
    setup = time.perf_counter() - start
    found: list[Result] = []
    for seed in range(seeds):
        found.append(MCTS(episodes, seed=seed, patience=None).search(first.forgotten()))
        print(f"... {name}, seed {seed}: {found[-1].price.seconds * 1e3:.3f} ms", file=sys.stderr, flush=True)
    return Runs(name, setup, found)


def reached(result: Result, cost: float) -> tuple[int, float] | None:
    """The episodes and seconds until a search reached a cost; None if it never did."""
    step = next((step for step in result.trace if step.price.cost <= cost and step.price.fits), None)
    return (step.episodes, step.seconds) if step is not None else None


def lowest(prices: Sequence[Price]) -> float:
    """The least cost of the prices that fit into memory."""
    return min(price.cost for price in prices if price.fits)


def curve(found: Runs, best: float) -> list[str]:
    """For each number of episodes: how many of the seeds have reached the best by then."""
    at = [reached(result, NEAR * best) for result in found.results]
    return [f"{sum(r is not None and r[0] <= limit for r in at)} of {len(at)}" for limit in EPISODES]


def curves(kinds: Sequence[tuple[Runs, float]]) -> str:
    """The table of success against episodes."""
    from record import table

    rows = [(found.name, str(len(found.results[0].environment.decisions)), *curve(found, best)) for found, best in kinds]
    return table(("decisions", "to decide", *(f"{limit} episodes" for limit in EPISODES)), rows)


def prices(named: Mapping[str, Price], best: float) -> str:
    """The table of strategies with their prices."""
    from record import table

    rows = [
        (name, f"{price.seconds * 1e3:.2f}", f"{price.cost / best:.3f}", f"{price.bytes / 1e9:.2f}")
        for name, price in named.items()
    ]
    return table(("strategy", "step (ms)", "of the best", "peak (GB)"), rows)


def main() -> int:
    from record import write

    layers = int(sys.argv[1]) if len(sys.argv) > 1 else 24
    T = unit(layers)
    tr = traced(layers)
    grouped = runs("groups", tr, SEEDS, EPISODES[-1])
    scoped = runs("scopes, the batch given", tr, SEEDS, EPISODES[-1], scopes=["attention-block", "mlp-block"])
    apart = runs("no groups", tr, UNGROUPED_SEEDS, UNGROUPED_EPISODES, grouped=False)
    env = grouped.results[0].environment
    beam, random = Beam(width=8).search(env.forgotten()), Random(2 * EPISODES[-1]).search(env.forgotten())
    long = MCTS(4 * EPISODES[-1], seed=SEEDS, patience=None).search(env.forgotten())
    experts = {name: price_of(estimate(tr.partition(schedule).plan, TARGET)) for name, schedule in EXPERTS.items()}
    seeds = sorted((result.price for result in grouped.results), key=lambda price: price.cost)
    named = {
        **experts,
        f"MCTS, {EPISODES[-1]} episodes, median of {SEEDS} seeds": seeds[SEEDS // 2],
        f"MCTS, {4 * EPISODES[-1]} episodes": long.price,
        f"Beam(8), {beam.evaluations} strategies": beam.price,
        f"Random, {random.evaluations} strategies": random.price,
    }
    best = lowest([*seeds, *named.values(), *(result.price for result in apart.results)])
    kinds = [(grouped, best), (scoped, lowest([result.price for result in scoped.results])), (apart, best)]
    times = [r[1] for result in grouped.results if (r := reached(result, NEAR * best)) is not None]
    middle = statistics.median(times) if times else float("nan")
    whole = statistics.median([grouped.setup + result.seconds for result in grouped.results])
    each = statistics.median([1e3 * result.seconds / result.evaluations for result in grouped.results])
    body = (
        f"GPT training step with Adam, {layers} layers, d 1024, 16 heads, vocabulary 8192, 32 x 512 tokens, on mesh data=4, "
        f"model=2, target {TARGET.name}; T = {T:.2f} s is JAX's cold trace + lower. Seeds within 1 % of the best known (with "
        f"scopes, of the best that any seed found there), by episodes:\n\n{curves(kinds)}\n\n"
        f"With groups: the environment takes {grouped.setup / T:.2f} T, the best is reached after {middle / T:.2f} T in the "
        f"median ({len(times)} of {SEEDS} seeds), {EPISODES[-1]} episodes take {whole / T:.2f} T, {each:.1f} ms a strategy. "
        f"Without groups every layer is decided alone, every strategy priced on the whole program ({UNGROUPED_SEEDS} seeds of "
        f"{UNGROUPED_EPISODES} episodes).\n\n{prices(named, best)}"
    )
    write("bench_search", "Search", body)
    return 0 if len(times) == SEEDS and middle <= 5 * T else 1


if __name__ == "__main__":
    sys.exit(main())

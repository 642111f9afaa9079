"""Compares MCTS with enumeration where the best strategy can be known, and with the other searchers where it cannot.

A case is a model of the zoo on a mesh and a target; earlier tactics, scopes or kinds of decisions keep the space small enough
to be enumerated. Orders of decisions with the same effect count as one strategy.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import partir
from partir import DataParallel, Megatron
from partir.search import MCTS, Beam, Decision, Environment, Exhaustive, Random, Result, Searcher
from partir.search.environment import Price
from partir.tactics import Search

MESHES = {
    "8": partir.Mesh(data=8),
    "4x2": partir.Mesh(data=4, model=2),
    "2x4": partir.Mesh(data=2, model=4),
    "2x2x2": partir.Mesh(data=2, model=2, expert=2),
}
SHARE = 0.10
SEEDS = 5
LARGE_SEEDS = 20
NEAR = 1.01
EQUAL = 1 + 1e-9


@dataclass(frozen=True)
class Case:
    """One search problem. `kinds` and `scopes` limit the decisions of the search; `before` are tactics that run first."""

    model: str
    settings: tuple[tuple[str, Any], ...]
    mesh: str
    target: str
    axes: tuple[str, ...]
    before: tuple[Any, ...] = ()
    scopes: tuple[str, ...] | None = None
    kinds: tuple[str, ...] = ("tile", "state", "prefer")

    @cached_property
    def environment(self) -> Environment:
        """The environment of the search, in which nothing is priced yet."""
        example = partir.zoo.MODELS[self.model](**dict(self.settings))
        made = partir.jit(example.fun, mesh=MESHES[self.mesh], donate_argnums=example.donate_argnums)
        start = made.trace(*example.args).partition(list(self.before)).assignment

        def wanted(decision: Decision) -> bool:
            return decision.kind in self.kinds

        return Search(self.axes, target=self.target, scopes=self.scopes, filter=wanted).environment(start)

    def __str__(self) -> str:
        sizes = ", ".join(f"{name} {value}" for name, value in self.settings)
        limits = [f"after {type(tactic).__name__}({tactic.axis})" for tactic in self.before]
        limits += [f"in {', '.join(self.scopes)}"] if self.scopes else []
        limits += [] if len(self.kinds) == 3 else [f"{' and '.join(self.kinds)} only"]
        return f"{self.model} ({sizes})" + "".join(f"; {limit}" for limit in limits)


def case(model: str, mesh: str, target: str, axes: str, *before: Any, **limits: Any) -> Case:
    """A case with the model's settings in `SIZES`; `axes` are the names of the axes to decide on, separated by spaces."""
    return Case(model, tuple(SIZES[model].items()), mesh, target, tuple(axes.split()), before, **limits)


SIZES: dict[str, dict[str, Any]] = {
    "mlp": {"widths": (1024, 4096, 1024), "batch": 512},
    "gpt": {"layers": 2, "d_model": 512, "heads": 8, "vocab": 4096, "seq": 128, "batch": 16},
    "partir_t32": {"layers": 2},
    "llama": {"layers": 2, "d_model": 512, "heads": 8, "d_ff": 1408, "vocab": 4096, "seq": 128, "batch": 16},
    "moe": {"layers": 1, "every": 1, "d_model": 512, "heads": 8, "vocab": 4096, "seq": 128, "batch": 16},
    "vit": {"layers": 2, "d_model": 512, "heads": 8, "d_ff": 2048, "batch": 32},
    "unet": {"channels": 64, "multipliers": (1, 2), "blocks": 1, "image": 16, "batch": 16, "attention_at": ()},
    "wide_resnet": {"depth": 10, "width": 4, "batch": 64},
    "gns": {"steps": 1, "hidden_layers": 1},
    "gpt_decode": {"layers": 1, "batch": 16},
}
DATA, MEGATRON = DataParallel("data"), Megatron("model")
BLOCKS = ("attention-block", "mlp-block")
TILES = ("tile",)
CASES = [
    case("mlp", "8", "tpu_v3", "data"),
    case("mlp", "8", "h100", "data", DATA),
    case("mlp", "2x4", "tpu_v5e", "data model", DATA, kinds=TILES),
    case("mlp", "2x2x2", "tpu_v4", "model expert", DATA, kinds=TILES),
    case("gpt", "8", "tpu_v3", "data", kinds=TILES),
    case("gpt", "4x2", "tpu_v5e", "data model", DATA, scopes=BLOCKS, kinds=("tile", "state")),
    case("partir_t32", "8", "tpu_v3", "data", kinds=TILES),
    case("partir_t32", "8", "h100", "data", kinds=TILES),
    case("partir_t32", "4x2", "tpu_v3", "data model", DATA, MEGATRON, kinds=TILES),
    case("llama", "8", "tpu_v3", "data", kinds=TILES),
    case("llama", "8", "h100", "data", kinds=TILES),
    case("moe", "8", "tpu_v3", "data", kinds=TILES),
    case("moe", "4x2", "tpu_v5e", "model", DATA, scopes=("attention-block", "moe-block")),
    case("vit", "8", "tpu_v3", "data", kinds=TILES),
    case("vit", "8", "h100", "data", kinds=TILES),
    case("unet", "4x2", "tpu_v3", "data model", DATA, scopes=("up_0",), kinds=TILES),
    case("wide_resnet", "8", "tpu_v3", "data", DATA, kinds=TILES),
    case("wide_resnet", "4x2", "tpu_v3", "data model", DATA, scopes=("stage_0", "stage_1"), kinds=TILES),
    case("gns", "8", "tpu_v3", "data", DATA, kinds=TILES),
    case("gns", "4x2", "tpu_v5e", "model", DATA, scopes=("edge-block", "node-block"), kinds=TILES),
    case("gpt_decode", "8", "tpu_v3", "data", kinds=TILES),
    case("gpt_decode", "4x2", "h100", "data", DATA, MEGATRON, kinds=TILES),
]
LARGE = [
    case("llama", "4x2", "tpu_v3", "data model"),
    case("wide_resnet", "4x2", "tpu_v5e", "data model"),
    case("gpt_decode", "2x2x2", "h100", "data model expert"),
]
EVALUATIONS = 200
WANTED = 15


def limited(searcher: Searcher, environment: Environment, evaluations: int, until: float = -1.0) -> Result:
    """Search until `evaluations` strategies are priced, or one is found that fits and costs no more than `until`."""

    def stop(done: int, episodes: int | None, best: Price) -> None:
        if environment.evaluations >= evaluations or (best.fits and best.cost <= until):
            raise KeyboardInterrupt  # searchers end with the best so far

    return searcher.search(environment, stop)


def at(result: Result, evaluations: int) -> float:
    """The least cost among the first `evaluations` strategies that were priced."""
    return min(step.price.cost for step in result.trace if step.price.fits and step.evaluations <= evaluations)


@dataclass(frozen=True)
class Found:
    """One enumerated case: how many decisions and strategies there are, and the costs of the start and of the best strategy.

    For each seed, `until` is the number of strategies that MCTS priced until it had the best (None: more than the allowed
    share), and `costs` is its best cost within the share.
    """

    case: Case
    decisions: int
    strategies: int
    start: float
    best: float
    until: list[int | None]
    costs: list[float]

    @property
    def equal(self) -> bool:
        """Whether every seed found the optimum within the share."""
        return None not in self.until

    @property
    def row(self) -> tuple[str, ...]:
        """A row of the table."""
        ordered = sorted(self.until, key=lambda count: self.strategies if count is None else count)
        middle, worst = ordered[len(ordered) // 2], ordered[-1]
        gap = max(self.costs) / self.best - 1
        return (
            str(self.case), self.case.mesh, self.case.target, str(self.decisions), f"{self.strategies:,}",
            f"{self.start / self.best:.2f}", "-" if middle is None else str(middle),
            "-" if worst is None else f"{worst} ({worst / self.strategies:.1%})",
            f"{len(ordered) - ordered.count(None)} of {len(ordered)}" + (f", worst {gap:+.1%}" if worst is None else ""),
        )  # fmt: skip


def enumerated(case: Case) -> Found:
    """Enumerate a case, then search it with several seeds, each with an empty cache of prices."""
    env = case.environment
    all_ = Exhaustive().search(env)
    best, strategies = all_.price.cost, env.evaluations
    allowed = int(SHARE * strategies)
    until: list[int | None] = []
    costs: list[float] = []
    for seed in range(SEEDS):
        found = limited(MCTS(strategies, seed=seed, patience=None), env.forgotten(), allowed, best * EQUAL)
        hit = next((s.evaluations for s in found.trace if s.price.fits and s.price.cost <= best * EQUAL), allowed + 1)
        until.append(hit if hit <= allowed else None)
        costs.append(at(found, allowed))
    return Found(case, len(env.decisions), strategies, env.price(()).cost, best, until, costs)


def compared(case: Case, evaluations: int) -> tuple[bool, tuple[str, ...]]:
    """Run all searchers with the same number of evaluations. Returns whether the median of MCTS is near the best that the
    others found, and a row of the table."""
    env = case.environment
    env.price(())

    def costs(searchers: Sequence[Searcher]) -> list[float]:
        return sorted(at(limited(s, env.forgotten(), evaluations), evaluations) for s in searchers)

    endless = 10**6
    mcts = costs([MCTS(endless, seed=seed, patience=None) for seed in range(LARGE_SEEDS)])
    random = costs([Random(endless, seed=seed) for seed in range(SEEDS)])
    beams = {width: costs([Beam(width=width)])[0] for width in (2, 4, 8)}
    others = min(random[0], *beams.values())
    best = min(mcts[0], others)
    middle = statistics.median(mcts)
    shown = [f"{cost / best:.3f}" for cost in (middle, mcts[-1], *beams.values(), statistics.median(random), random[0])]
    row = (str(case), case.mesh, case.target, str(len(env.decisions)), str(evaluations), f"{best * 1e3:.3f}", *shown)
    return middle <= NEAR * others, row


def progress(said: object) -> None:
    """Print a line on stderr."""
    print(f"... {said}", file=sys.stderr, flush=True)


def main() -> int:
    from record import table, write

    began = time.perf_counter()
    found: list[Found] = []
    for case_ in CASES:
        found.append(enumerated(case_))
        progress(" | ".join(found[-1].row))
    equal = sum(one.equal for one in found)
    near: list[bool] = []
    rows: list[tuple[str, ...]] = []
    rest = [(one.case, int(SHARE * one.strategies)) for one in found if not one.equal]
    for case_, evaluations in (*rest, *((case_, EVALUATIONS) for case_ in LARGE)):
        is_near, row = compared(case_, evaluations)
        near.append(is_near)
        rows.append(row)
        progress(" | ".join(row))
    headings = (
        "case", "mesh", "target", "to decide", "strategies", "the start, of the optimum", "priced until the optimum, median",
        "worst", f"seeds within {SHARE:.0%}",
    )  # fmt: skip
    large = (
        "case", "mesh", "target", "to decide", "priced by each", "best (ms)", f"MCTS, median of {LARGE_SEEDS}", "worst",
        "Beam(2)", "Beam(4)", "Beam(8)", f"Random, median of {SEEDS}", "best",
    )  # fmt: skip
    body = (
        f"Every strategy of a case is priced (`Exhaustive`; orders of decisions that mean the same are one strategy), then "
        f"MCTS searches it with {SEEDS} seeds. In {equal} of {len(found)} cases every seed has the optimum before it has "
        f"priced {SHARE:.0%} of the strategies.\n\n{table(headings, [one.row for one in found])}\n\n"
        f"The rest, and cases too large to enumerate, of which every searcher prices as many strategies; costs as multiples of "
        f"the best that any seed of any of them found. In {sum(near)} of {len(near)} the median of MCTS is within "
        f"{NEAR - 1:.0%} of the best that the others found, or better.\n\n{table(large, rows)}"
    )
    write("bench_exhaustive", "Search against enumeration", body)
    progress(f"{time.perf_counter() - began:.0f} s")
    return 0 if equal >= WANTED and all(near) else 1


if __name__ == "__main__":
    sys.exit(main())

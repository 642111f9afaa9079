"""Compares our shardings with those that Shardy propagates from the same arguments and results; writes `docs/shardy.md`.

It covers every value of every model of the zoo at small size, under schedules that suit it. Rules
(`tests/shardy_differences.py`) find a reason for each difference; it fails if one has none. It also compares the bytes that a
device sends with those of plain jit with the same shardings.
"""

from __future__ import annotations

import os
import platform
import sys
from collections import Counter
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

# This compiles much and computes nothing. LLVM's optimizations take half of the time, and run after XLA's partitioner.
os.environ.setdefault("XLA_FLAGS", "--xla_force_host_platform_device_count=8 --xla_backend_optimization_level=0")
os.environ.setdefault("JAX_PLATFORMS", "cpu")
ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT / "tests"))

PAGE = ROOT / "docs" / "shardy.md"
TARGET = "tpu_v3"
"""The judge needs a target; the bytes do not depend on it."""

HEAD = """# Against Shardy's propagation

Written by `python benchmarks/against_shardy.py`, {where}.

Shardy is what `jax.jit` propagates shardings with. Given the shardings of arguments and results that partir decided
(`part.shardy()`), it finds one for every value between. Here it does so in the same process (`sdy-propagation-pipeline`), with
its own sharding rules, on each model of the zoo at small size and a mesh data=4, model=2; and every value that an op makes is
compared with partir's plan. *Cut* are the values with equal shardings that are sharded over any axis. Constants, and what is
computed from them alone, are not compared: partir makes them again wherever they are read.

{table}

*By jit* are the bytes that a device sends in a step of the program that XLA makes of the same function under `jax.jit` with
these shardings of arguments and results, *by partir* those of partir's program: both read off the compiled text
(`partir.judge`), if each collective sends as little as possible. ZeRO gathers parameters: if a layer has more of them than its
small batch has activations (mlp, wide_resnet), that is more than moving activations, as Shardy's choice does; with a larger
batch (the rows that say so) it is less.

## Why

Of {total} values {same} lie alike, and each of the other {different} has a reason.

{reasons}

A value *follows* if it differs only because a value differs that it is computed from, or that is computed from it.

## Examples

Axes by dim, those of one dim joined by `+`, major first; `*` is a dim that a broadcast adds, which partir makes where it is
read; `a/b` a dim of two parts.

{examples}

## Schedules

{schedules}
"""


@dataclass(frozen=True)
class Row:
    """One model under one schedule: the comparison, and the bytes that a device sends in a step by us and by plain jit."""

    model: str
    schedule: str
    comparison: Any
    ours: int
    by_jit: int


def measure() -> list[Row]:
    """Compare every case, compile both programs, and judge them."""
    import jax
    from jax.sharding import AxisType
    from shardy_differences import compare
    from zoo_cases import CASES, MODELS

    import partir

    mesh = jax.make_mesh((4, 2), ("data", "model"), axis_types=(AxisType.Auto,) * 2)
    rows: list[Row] = []
    for (model, schedule), tactics in CASES.items():
        example = MODELS[model]()
        step = partir.jit(example.fun, mesh=mesh, donate_argnums=example.donate_argnums)
        part = step.trace(*example.args).partition(tactics)
        plain = jax.jit(
            example.fun,
            in_shardings=part.in_shardings,
            out_shardings=part.out_shardings,
            donate_argnums=example.donate_argnums,
        )
        compiled = part.lower().compile(), plain.lower(*example.args).compile()
        ours, by_jit = (round(partir.judge(c, TARGET).communicated_bytes) for c in compiled)
        rows.append(Row(model, schedule, compare(part), ours, by_jit))
        print(
            f"{model}, {schedule}: {len(rows[-1].comparison.differences)} differences, {ours} B, jit {by_jit} B",
            file=sys.stderr,
        )
        jax.clear_caches()
    return rows


def page(rows: list[Row]) -> str:
    """The text of docs/shardy.md."""
    from record import table
    from shardy_differences import REASONS, UNEXPLAINED
    from zoo_cases import CASES

    from partir.viz.report import bytes_text, call_text

    counts = [Counter(d.reason for d in row.comparison.differences) for row in rows]
    every = [d for row in rows for d in row.comparison.differences]
    found = [reason for reason in (*REASONS, UNEXPLAINED) if any(c[reason] for c in counts)]
    headings = ("model", "schedule", "values", "alike", "of them cut", "differ", *found, "by partir", "by jit")
    lines = [
        (
            row.model,
            row.schedule,
            f"{row.comparison.same + len(row.comparison.differences)}",
            f"{row.comparison.same}",
            f"{row.comparison.cut}",
            f"{len(row.comparison.differences)}",
            *(f"{count[reason] or ''}" for reason in found),
            bytes_text(row.ours),
            bytes_text(row.by_jit),
        )
        for row, count in zip(rows, counts, strict=True)
    ]
    reasons = []
    for reason in found:
        own = [d.follows for d in every if d.reason == reason]
        reasons.append((reason, str(len(own)), str(sum(own)), REASONS.get(reason, "No rule says why.")))
    examples = []
    for row in rows:
        for reason in found:
            own = [d for d in row.comparison.differences if d.reason == reason]
            if own:
                shown = min(own, key=lambda d: (d.follows, not d.line))
                where = f"{row.model}, {row.schedule}", reason, f"`{shown.value}`", shown.line or "-"
                examples.append((*where, f"`{shown.ours}`", f"`{shown.theirs}`"))
    schedules = {schedule: ", ".join(map(call_text, tactics)) for (_, schedule), tactics in CASES.items()}
    same = sum(row.comparison.same for row in rows)
    return HEAD.format(
        where=f"Python {platform.python_version()}, jax {version('jax')}",
        table=table(headings, lines),
        total=same + len(every),
        same=same,
        different=len(every),
        reasons=table(("reason", "values", "of them follow", "what it is"), reasons),
        examples=table(("model, schedule", "reason", "value", "line", "partir", "Shardy"), examples),
        schedules="\n".join(f"- `{name}`: `{text}`" for name, text in schedules.items()),
    )


def main() -> int:
    from shardy_differences import UNEXPLAINED

    rows = measure()
    PAGE.write_text(page(rows))
    print(PAGE.read_text())
    return 1 if any(d.reason == UNEXPLAINED for row in rows for d in row.comparison.differences) else 0


if __name__ == "__main__":
    sys.exit(main())

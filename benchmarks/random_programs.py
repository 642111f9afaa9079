"""Checks random programs under random decisions on random meshes of 8 virtual devices: results and shardings must be right.

    python benchmarks/random_programs.py [--first 0] [--cases 2000] [--workers 2]

A case is made from a seed: program, mesh, decisions, and requested shardings (of arguments, by `in_shardings` or by placing
them on the mesh; of results; and by constraints in the program). Each runs on 8 devices, and its results are compared with one
device; for every fourth its Core IR is interpreted as well. A case that fails is minimised and printed with its seed, and the
exit code is 1.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import sys
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from random import Random
from typing import Any

CHUNK = 50
"""The number of cases that a process runs before a new one takes over: JAX's caches of compiled programs grow."""

os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.setdefault("XLA_FLAGS", "--xla_force_host_platform_device_count=8 --xla_backend_optimization_level=0")
sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))


def run(seeds: Sequence[int]) -> dict[str, Any]:
    """Check the cases of some seeds. Returns counts of ops and collectives, and a text for each case that fails."""
    import jax

    jax.config.update("jax_enable_x64", True)
    from random_cases import asking_case, check, minimised

    ops: Counter[str] = Counter()
    collectives: Counter[str] = Counter()
    wrong: list[str] = []
    start = time.process_time()
    for seed in seeds:
        case = asking_case(Random(seed))
        core = seed % 4 == 0
        ops.update(set(case.program.ops))
        try:
            collectives.update(check(case, core=core).collectives.keys() or ("none",))
        except Exception as error:
            wrong.append(f"seed {seed}: {type(error).__name__}: {error}\n{minimised(case, core=core)!r}")
    return {"ops": ops, "collectives": collectives, "wrong": wrong, "seconds": time.process_time() - start}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--first", type=int, default=0, help="the first seed (default 0)")
    parser.add_argument("--cases", type=int, default=2000, help="how many seeds from there (default 2000)")
    parser.add_argument("--workers", type=int, default=os.cpu_count(), help="processes at once")
    options = parser.parse_args()
    seeds = range(options.first, options.first + options.cases)
    chunks = [seeds[i : i + CHUNK] for i in range(0, len(seeds), CHUNK)]
    ops: Counter[str] = Counter()
    collectives: Counter[str] = Counter()
    wrong: list[str] = []
    seconds = 0.0
    # Spawned: a process that has imported JAX must not be forked.
    with multiprocessing.get_context("spawn").Pool(options.workers, maxtasksperchild=1) as pool:
        for found in pool.imap(run, chunks):
            ops += found["ops"]
            collectives += found["collectives"]
            wrong += found["wrong"]
            seconds += found["seconds"]
            for text in found["wrong"]:
                print(text, file=sys.stderr, flush=True)
    record(seeds, ops, collectives, wrong, seconds)
    return 1 if wrong else 0


def record(seeds: range, ops: Counter[str], collectives: Counter[str], wrong: Sequence[str], seconds: float) -> None:
    """Write the result into docs/benchmarks.md."""
    from record import table, write

    rows = [
        ("cases", f"{len(seeds):,} (seeds {seeds.start} to {seeds.stop - 1})"),
        ("results that differ from one device, layouts other than asked for, or errors", str(len(wrong))),
        *(
            (f"cases with {kind}" if kind != "none" else "cases without any collective", str(n))
            for kind, n in sorted(collectives.items())
        ),
        ("CPU time of a case", f"{seconds / len(seeds):.2f} s"),
    ]
    text = (
        "Each case is a program of two to six random ops (three in ten differentiated), one to six random actions, and one of "
        "four meshes of 8 devices. Layouts are asked for of six in ten arguments (three in ten of these are on the mesh so, "
        "the others in `in_shardings`) and results, and of three in ten values by constraints; some dims are left open. "
        "Arguments and results lie as asked. The results equal those of one device (float64 to 1e-9, everything else exactly), "
        "are the same on all devices that hold them, and the program has the planned collectives; every fourth has its Core IR "
        "interpreted, too.\n\n"
        f"{table(('', ''), rows)}\n\n"
        f"Ops, by cases they occur in: {', '.join(f'{name} {n}' for name, n in ops.most_common())}."
    )
    write("random_programs", "Random programs under random actions", text)


if __name__ == "__main__":
    sys.exit(main())

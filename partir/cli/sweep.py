"""`partir sweep`: estimates many cases from one file in parallel, keeps each result at once, and makes one table of all."""

from __future__ import annotations

import argparse
import functools
import importlib.util
import itertools
import json
import multiprocessing
import os
import sys
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from partir.cli import cases as cases_
from partir.cli.cases import Case
from partir.cli.environment import host_devices
from partir.cli.inputs import mesh_of, schedule_of
from partir.errors import PartirError, ProgramError, error_text

if TYPE_CHECKING:
    from partir.stages import Traced


def add_to(commands: Any) -> None:
    """Declare the subcommand and its options."""
    parser: argparse.ArgumentParser = commands.add_parser(
        "sweep",
        help="models x sizes x meshes x targets x schedules from one file, as one table",
        description="Partition and estimate every case of a sweep file. Each result is saved in DIR/cases at once; a sweep "
        "that was stopped continues from there. At the end DIR has table.csv, table.md and pareto.svg (time against memory).",
        epilog=f"a sweep file:\n{cases_.EXAMPLE}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("file", metavar="FILE", help="the sweep file (TOML)")
    parser.add_argument("--out", required=True, metavar="DIR", help="where results and tables go")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, metavar="N", help="processes (one per core)")
    parser.add_argument("--json", action="store_true", help="one JSON document on stdout")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Run the cases that have no result yet, then write the tables."""
    host_devices(1)
    cases = cases_.read(options.file)
    out = Path(options.out)
    try:
        (out / "cases").mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ProgramError(error_text(f"cannot write to {out}", why=error.strerror or str(error))) from None
    todo = [case for case in cases if result_of(out, case) is None]
    print(f"{len(cases)} cases, {len(cases) - len(todo)} of them done already", file=sys.stderr)
    _run_all(todo, out, max(1, options.jobs))
    results = [found for case in cases if (found := result_of(out, case)) is not None]
    from partir.viz import sweep

    (out / "table.csv").write_text(sweep.csv_of(results))
    table = sweep.table_of(results)
    (out / "table.md").write_text(sweep.markdown_of(table))
    print(json.dumps(results, indent=1) if options.json else table)
    print(f"written: {out / 'table.csv'}, {out / 'table.md'}", file=sys.stderr)
    if importlib.util.find_spec("matplotlib") is None:
        print("no picture of time against memory: pip install 'partir[plot]'", file=sys.stderr)
    else:
        sweep.pareto(results, out / "pareto.svg")
        print(f"written: {out / 'pareto.svg'}", file=sys.stderr)
    return 1 if all("error" in result for result in results) else 0


def result_of(out: Path, case: Case) -> dict[str, Any] | None:
    """The saved result of a case; None if there is none, or if it cannot be read."""
    try:
        found = json.loads(_file(out, case).read_text())
    except (OSError, ValueError):
        return None
    return found if isinstance(found, dict) else None  # type: ignore[reportUnknownVariableType]


def _file(out: Path, case: Case) -> Path:
    return out / "cases" / f"{case.key}.json"


def _run_all(todo: Sequence[Case], out: Path, jobs: int) -> None:
    """Run cases in processes. The cases of one model are one task, so that it is imported once; with fewer models than
    processes, tasks are split."""
    by_subject = [list(group) for _, group in itertools.groupby(todo, key=lambda case: case.subject)]
    parts = max(1, -(-jobs // max(1, len(by_subject))))
    tasks = [own[k::parts] for own in by_subject for k in range(parts) if own[k::parts]]
    if not tasks:
        return
    context = multiprocessing.get_context("spawn")
    done = 0
    with ProcessPoolExecutor(min(jobs, len(tasks)), mp_context=context) as pool:
        waiting = [pool.submit(run_cases, task, out, os.getpid()) for task in tasks]
        try:
            for future in as_completed(waiting):
                done += future.result()
                print(f"{done} of {len(todo)} done", file=sys.stderr, flush=True)
        except KeyboardInterrupt:
            pool.shutdown(wait=False, cancel_futures=True)
            raise ProgramError(error_text("stopped", hint="the same command continues where it stopped")) from None


def run_cases(task: Sequence[Case], out: Path, parent: int) -> int:
    """Run cases in a child process, until its parent ends; returns how many. Each result is written in full or not at all."""
    host_devices(1)
    for number, case in enumerate(task):
        if os.getppid() != parent:
            return number
        text = json.dumps(asdict(case) | {"settings": dict(case.settings)} | measured(case), indent=1)
        unfinished = _file(out, case).with_suffix(f".{os.getpid()}.tmp")
        unfinished.write_text(text)
        unfinished.replace(_file(out, case))
    return len(task)


def measured(case: Case) -> dict[str, Any]:
    """The figures of a case, or the error that it raises."""
    from partir import targets
    from partir.tactics import Search

    try:
        schedule = schedule_of(case.tactics)
        part = traced(*case.subject).partition(schedule, mesh=mesh_of(case.mesh), target=targets.get(case.target))
        estimate = part.estimate
    except PartirError as error:
        return {"error": str(error)}
    searched = [item.result for item in schedule if isinstance(item, Search) and item.result is not None]
    return {
        "step_seconds": estimate.step_seconds,
        "compute_seconds": estimate.compute_seconds,
        "communication_seconds": estimate.communication_seconds,
        "peak_bytes": estimate.peak_bytes,
        "fits": estimate.fits,
        "collectives": part.collectives,
        "evaluations": sum(result.evaluations for result in searched),
        "actions": part.strategy.to_json()["actions"],
    }


@functools.lru_cache(maxsize=2)
def traced(model: str, settings: tuple[tuple[str, Any], ...]) -> Traced:
    """Import a model of the sweep. The mesh does not matter: each case partitions over its own."""
    from partir.api import jit
    from partir.cli.model import model_of
    from partir.mesh import Mesh

    example = model_of(model, dict(settings))
    return jit(example.fun, mesh=Mesh(one=1), donate_argnums=example.donate_argnums).trace(*example.args)

"""Shows the results of a sweep: one table (text, CSV or Markdown), and a plot of step time against peak memory."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from partir.viz.report import bytes_text, counts_text, seconds_text
from partir.viz.table import Table

Results = Sequence[Mapping[str, Any]]

COLUMNS = (
    "model", "settings", "mesh", "target", "schedule", "step_seconds", "compute_seconds", "communication_seconds", "peak_bytes",
    "fits", "collectives", "evaluations", "error",
)  # fmt: skip


def settings_text(settings: Mapping[str, Any]) -> str:
    """The settings of a model in one line: `layers=4 tied=True`."""
    return " ".join(f"{name}={value}" for name, value in settings.items())


def csv_of(results: Results) -> str:
    """The cases as CSV, one per line, with times in seconds and memory in bytes."""
    out = io.StringIO()
    writer: csv.DictWriter[str] = csv.DictWriter(out, COLUMNS, extrasaction="ignore", lineterminator="\n")
    writer.writeheader()
    for result in results:
        shown = dict(result) | {"settings": settings_text(result["settings"])}
        if "collectives" in result:
            shown["collectives"] = counts_text(result["collectives"])
        if "error" in result:
            shown["error"] = str(result["error"]).splitlines()[0]
        writer.writerow(shown)
    return out.getvalue()


def table_of(results: Results) -> Table:
    """A row per case. A star marks the Pareto front: no other case of that model and target is both faster and smaller."""
    best = _front(results)
    rows = [
        (
            f"{result['model']} {settings_text(result['settings'])}".strip(),
            result["mesh"],
            result["target"],
            result["schedule"],
            *_measured(result),
            "*" if number in best else "",
        )
        for number, result in enumerate(results)
    ]
    headings = ("model", "mesh", "target", "schedule", "step time", "peak memory", "collectives", "pareto")
    notes = ("* no other schedule or mesh of that model and target is both faster and smaller",)
    return Table(f"{len(results)} cases", headings, tuple(rows), notes, frozenset({"step time", "peak memory"}))


def _measured(result: Mapping[str, Any]) -> tuple[str, str, str]:
    if "error" in result:
        return "", "", str(result["error"]).splitlines()[0]
    fits = "" if result["fits"] else " (too much)"
    return seconds_text(result["step_seconds"]), f"{bytes_text(result['peak_bytes'])}{fits}", counts_text(result["collectives"])


def markdown_of(table: Table) -> str:
    """A table in Markdown."""

    def line(cells: Sequence[str]) -> str:
        return f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"

    rule = ["---:" if heading in table.right else "---" for heading in table.headings]
    lines = [line(table.headings), line(rule), *map(line, table.rows)]
    return "\n".join([*lines, "", *table.notes, ""])


def _subject(result: Mapping[str, Any]) -> tuple[str, str, str]:
    return result["model"], settings_text(result["settings"]), result["target"]


def _front(results: Results) -> set[int]:
    """The numbers of the cases on the Pareto front of their model and target in step time and peak memory."""
    measured = [(i, r) for i, r in enumerate(results) if "error" not in r]

    def beaten(own: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
        a, b = (own["step_seconds"], own["peak_bytes"]), (other["step_seconds"], other["peak_bytes"])
        return _subject(own) == _subject(other) and b != a and b[0] <= a[0] and b[1] <= a[1]

    return {i for i, own in measured if not any(beaten(own, other) for _, other in measured)}


def pareto(results: Results, path: Path) -> None:
    """Write a plot of step time (ms) against peak memory (GB), a panel per model and target, to `path`."""
    from matplotlib.figure import Figure

    subjects = list(dict.fromkeys(_subject(result) for result in results if "error" not in result))
    best = _front(results)
    figure = Figure(figsize=(7, 3.6 * max(1, len(subjects))), layout="constrained")
    panels = figure.subplots(max(1, len(subjects)), squeeze=False)[:, 0]
    for panel, subject in zip(panels, subjects, strict=False):
        own = [(i, r) for i, r in enumerate(results) if "error" not in r and _subject(r) == subject]
        for i, result in own:
            x, y = result["peak_bytes"] / 1e9, result["step_seconds"] * 1e3
            panel.plot(x, y, "o", color="C0" if i in best else "0.7")
            panel.annotate(
                f"{result['schedule']}, {result['mesh']}", (x, y), xytext=(4, 4), textcoords="offset points", fontsize=7
            )
        front = sorted((r["peak_bytes"] / 1e9, r["step_seconds"] * 1e3) for i, r in own if i in best)
        panel.plot([x for x, _ in front], [y for _, y in front], color="C0", linewidth=1)
        panel.set_title(" ".join(filter(None, subject)), fontsize=9)
        panel.set_xlabel("peak memory of a device (GB)")
        panel.set_ylabel("step time (ms)")
    figure.savefig(path)

"""Shows what a search found: each decision with its worth, rejected decisions, improvements; and what helps if none fits."""

from __future__ import annotations

from typing import Any

from partir.search import Decision, Price, Result
from partir.viz.report import bytes_text, seconds_text
from partir.viz.table import Table

MANY = 5
"""How many of the values that are alive at the memory peak are named."""


def decisions_table(result: Result) -> Table:
    """A row per decision of the best strategy, with the step time and peak memory without it."""
    target = result.environment.target
    rows = [(str(decision), *_cells(price), _change(price, result.price)) for decision, price in result.without()]
    return Table(
        f"found on {target.name}: {seconds_text(result.price.seconds)} a step, peak {bytes_text(result.price.bytes)} of "
        f"{bytes_text(int(target.hbm_bytes))}",
        ("decision", "step without it", "peak without it", "worth"),
        tuple(rows),
        (_effort(result), *_misfit(result)),
        frozenset({"step without it", "peak without it", "worth"}),
    )


def rejected_table(result: Result) -> Table:
    """A row per decision that could be added to the best strategy, with the step time and peak memory with it."""
    rows = [(str(decision), *_cells(price), _change(price, result.price)) for decision, price in result.rejected()]
    headings = ("decision", "step with it", "peak with it", "change")
    return Table("rejected decisions, the best first", headings, tuple(rows), (), frozenset(headings[1:]))


def trace_table(result: Result) -> Table:
    """A row per improvement: after how many strategies and seconds it was found, and its step time and peak memory."""
    rows = [
        (str(step.evaluations), seconds_text(step.seconds), *_cells(step.price), str(len(step.state))) for step in result.trace
    ]
    headings = ("strategies", "after", "step", "peak", "decisions")
    return Table("best so far", headings, tuple(rows), (), frozenset(headings))


def record_of(result: Result) -> dict[str, Any]:
    """All three tables as plain data, with seconds and bytes as numbers."""

    def priced(items: list[tuple[Decision, Price]]) -> list[dict[str, Any]]:
        return [{"decision": str(d), **_record(price)} for d, price in items]

    return {
        "target": result.environment.target.name,
        "finished": result.finished,
        "evaluations": result.evaluations,
        "search_seconds": result.seconds,
        **_record(result.price),
        "decisions": priced(result.without()),
        "rejected": priced(result.rejected()),
        "trace": [
            {"evaluations": step.evaluations, "search_seconds": step.seconds, **_record(step.price)} for step in result.trace
        ],
    }


def _record(price: Price) -> dict[str, Any]:
    return {"step_seconds": price.seconds, "peak_bytes": price.bytes, "fits": price.fits}


def _cells(price: Price) -> tuple[str, str]:
    return seconds_text(price.seconds), bytes_text(price.bytes) + ("" if price.fits else " (too much)")


def _change(price: Price, best: Price) -> str:
    return f"{100 * (price.seconds / best.seconds - 1):+.1f} %" if best.seconds else ""


def _effort(result: Result) -> str:
    ended = "" if result.finished else ", interrupted"
    return f"{result.evaluations} strategies estimated in {seconds_text(result.seconds)}{ended}"


def _misfit(result: Result) -> tuple[str, ...]:
    """Notes for a search that found nothing that fits: the lowest peak, where it is, what is alive there, what would help."""
    if result.price.fits:
        return ()
    target = result.environment.target
    estimate = result.environment.estimate(result.smallest)
    largest = estimate.at_peak[:MANY]
    kernel = estimate.kernels[min(estimate.peak_kernel, len(estimate.kernels) - 1)]
    where = f"{kernel.op} in {kernel.scope or 'the program'}" + ("" if kernel.phase == "forward" else f" [{kernel.phase}]")
    state = sum(resident.bytes for resident in estimate.at_peak if resident.is_argument)
    activations = estimate.peak_bytes - state
    helps = "jax.checkpoint around the layers, a smaller batch" if activations > state else "ZeRO over more devices"
    return (
        f"nothing that was found fits into {bytes_text(int(target.hbm_bytes))}",
        f"the lowest peak is {bytes_text(estimate.peak_bytes)}, at {where}{f' ({kernel.source})' if kernel.source else ''}: "
        f"{bytes_text(state)} of arguments, {bytes_text(activations)} of other values",
        "the largest values alive there:",
        *(f"  {bytes_text(resident.bytes)}  {resident.name}" for resident in largest),
        f"what would help: {helps}, or a target with more memory",
    )

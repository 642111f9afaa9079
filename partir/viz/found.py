"""What a search found and why: the decisions with the worth of each, what was rejected, the trace, and what would help."""

from __future__ import annotations

from typing import Any

from partir.search import Decision, Price, Result
from partir.viz.report import bytes_text, seconds_text
from partir.viz.table import Table

MANY = 5
"""How many of the values that live at a peak are named."""


def decisions_table(result: Result) -> Table:
    """A row per decision of the best strategy: what the step would cost without it."""
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
    """The decisions that could have been added, with what each would have cost."""
    rows = [(str(decision), *_cells(price), _change(price, result.price)) for decision, price in result.rejected()]
    headings = ("decision", "step with it", "peak with it", "change")
    return Table("could have been added, the nearest first", headings, tuple(rows), (), frozenset(headings[1:]))


def trace_table(result: Result) -> Table:
    """Each improvement on the way."""
    rows = [
        (str(step.evaluations), seconds_text(step.seconds), *_cells(step.price), str(len(step.state))) for step in result.trace
    ]
    headings = ("strategies", "after", "step", "peak", "decisions")
    return Table("best so far", headings, tuple(rows), (), frozenset(headings))


def record_of(result: Result) -> dict[str, Any]:
    """The same as plain data: seconds and bytes as numbers."""

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
    """Where nothing fits: the lowest peak found, where it is and what lives there, and what would help."""
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
        "the largest that live there:",
        *(f"  {bytes_text(resident.bytes)}  {resident.name}" for resident in largest),
        f"what would help: {helps}, or a target with more memory",
    )

"""A progress bar on stderr while a search runs, with the best strategy so far."""

from __future__ import annotations

import sys
from collections.abc import Generator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from partir.search import Price
from partir.search.searcher import Show
from partir.viz.report import bytes_text, seconds_text


@contextmanager
def bar(title: str) -> Generator[Show | None]:
    """A context with a function that updates the bar; None if stderr is not a terminal."""
    if not sys.stderr.isatty():
        yield None
        return
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("{task.fields[best]}"),
    )
    with Progress(*columns, console=Console(file=sys.stderr), transient=True) as progress:
        task = progress.add_task(title, total=None, best="")

        def show(done: int, of: int | None, best: Price) -> None:
            text = f"best {seconds_text(best.seconds)}, {bytes_text(best.bytes)}{'' if best.fits else ' (too much)'}"
            progress.update(task, completed=done, total=of if of is not None and of < sys.maxsize else None, best=text)

        yield show

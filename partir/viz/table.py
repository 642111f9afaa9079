"""The table that every report returns: plain data with a title and notes, shown as text (by rich) or HTML."""

from __future__ import annotations

import html
from collections.abc import Sequence
from dataclasses import dataclass, field
from io import StringIO

from rich.console import Console
from rich.table import Table as RichTable
from rich.text import Text

WIDTH = 140


@dataclass(frozen=True)
class Table:
    """Rows of text under headings. The columns named in `right` are right-aligned."""

    title: str
    headings: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    notes: tuple[str, ...] = ()
    right: frozenset[str] = field(default_factory=frozenset[str])

    def __str__(self) -> str:
        table = RichTable(box=None, pad_edge=False)
        for heading in self.headings:
            table.add_column(heading, justify="right" if heading in self.right else "left", overflow="fold")
        for row in self.rows:
            table.add_row(*(Text(cell) for cell in row))
        out = StringIO()
        Console(file=out, width=WIDTH, color_system=None, highlight=False).print(table)
        lines = [line.rstrip() for line in out.getvalue().splitlines()]
        return "\n".join([*([self.title] if self.title else []), *lines, *self.notes])

    def _repr_html_(self) -> str:
        return self.to_html()

    def to_html(self) -> str:
        """The table as an HTML fragment, which notebooks show."""

        def cells(tag: str, row: Sequence[str]) -> str:
            aligned = [
                f'<{tag} style="text-align:{"right" if heading in self.right else "left"}">{html.escape(cell)}</{tag}>'
                for heading, cell in zip(self.headings, row, strict=True)
            ]
            return f"<tr>{''.join(aligned)}</tr>"

        body = "".join(cells("td", row) for row in self.rows)
        notes = "".join(f"<p>{html.escape(note)}</p>" for note in self.notes)
        return (
            f"<table><caption>{html.escape(self.title)}</caption><thead>{cells('th', self.headings)}</thead>"
            f"<tbody>{body}</tbody></table>{notes}"
        )

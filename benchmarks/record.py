"""Writes measured figures into docs/benchmarks.md, in one section per script, which each run of the script replaces."""

from __future__ import annotations

import os
import platform
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path

DOCUMENT = Path(__file__).parent.parent / "docs" / "benchmarks.md"
HEAD = """# Benchmarks

Every section is written by the script it names (`make bench` runs them all). Figures are ratios within one run: machines are
shared and noisy, so read the multiples, not the seconds.
"""


def table(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A Markdown table."""
    lines = ["| " + " | ".join(headings) + " |", "|" + "---|" * len(headings)]
    return "\n".join([*lines, *("| " + " | ".join(row) + " |" for row in rows)])


def write(name: str, title: str, body: str) -> None:
    """Put `body` into the section of script `name`, and print it."""
    begin, end = f"<!-- {name} -->", f"<!-- /{name} -->"
    where = f"{os.cpu_count()} cores, Python {platform.python_version()}, jax {version('jax')}, xdsl {version('xdsl')}"
    section = f"{begin}\n## {title}\n\n`python benchmarks/{name}.py`, on {where}.\n\n{body}\n{end}\n"
    text = DOCUMENT.read_text() if DOCUMENT.exists() else HEAD
    if begin in text:
        before, rest = text.split(begin, 1)
        text = before + section + rest.split(end, 1)[1].lstrip("\n")
    else:
        text = text.rstrip("\n") + "\n\n" + section
    DOCUMENT.write_text(text)
    print(section)

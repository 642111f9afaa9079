"""Puts rows of repeated layers together: rows whose names differ in one number only, and whose cells are equal."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

NUMBER = re.compile(r"(\d+)")
WORD = re.compile(r"[^/\s\"]*/?$")
"""The word before a number, which tells it from other numbers in a name: `layer_`, or `layers/` if the number is a level."""

BLANK = "\0"
"""Stands for the number that is left out."""
Key = tuple[str, tuple[str, ...], tuple[object, ...]]
"""What rows of repeated layers have in common: the word before the number, the parts of the name without it, and the cells."""


@dataclass(frozen=True)
class Repeated:
    """Rows shown as one under a `name` such as `layer_{0..3}/mlp`: the `cells` they share, and their positions (`rows`)."""

    name: str
    cells: tuple[object, ...]
    rows: tuple[int, ...]

    @property
    def count(self) -> int:
        return len(self.rows)


def together(names: Sequence[str], cells: Sequence[tuple[object, ...]]) -> list[Repeated]:
    """Put rows together whose names differ in one number and whose cells are equal, in order of first appearance.

    Equal numbers after the same word are one number: both 0s of `layer_0: layer_0/w:1`. A row that could join several groups
    joins the largest.

    >>> [r.name for r in together(["layer_0/w", "layer_0/b", "layer_1/w", "layer_1/b"], [(4,), (2,), (4,), (3,)])]
    ['layer_{0,1}/w', 'layer_0/b', 'layer_1/b']
    """
    keys = [_keys(name, own) for name, own in zip(names, cells, strict=True)]
    sizes: dict[Key, int] = {}
    for own in keys:
        for key in own:
            sizes[key] = sizes.get(key, 0) + 1
    groups: dict[Key, list[int]] = {}
    for row, own in enumerate(keys):
        groups.setdefault(max(own, key=lambda key: sizes[key]), []).append(row)
    found: list[Repeated] = []
    for key, rows in groups.items():
        _, parts, shared = key
        numbers = numbers_text([keys[row][key] for row in rows])
        found.append(Repeated("".join(numbers if part == BLANK else part for part in parts), shared, tuple(rows)))
    return found


def _keys(name: str, cells: tuple[object, ...]) -> dict[Key, int]:
    """The keys under which a row can join others, each with the number that it leaves out; one key for a name without any."""
    parts = NUMBER.split(name)
    places: dict[tuple[str, str], list[int]] = {}
    for place in range(1, len(parts), 2):
        word = WORD.search(parts[place - 1])
        places.setdefault((word.group() if word else "", parts[place]), []).append(place)
    found: dict[Key, int] = {}
    for (word, number), own in places.items():
        left = tuple(BLANK if place in own else part for place, part in enumerate(parts))
        found[word, left, cells] = int(number)
    return found or {("", (name,), cells): 0}


def numbers_text(numbers: Sequence[int]) -> str:
    """Numbers in the notation of shells, in ascending order.

    >>> numbers_text([0, 1, 2, 3]), numbers_text([0, 2]), numbers_text([7])
    ('{0..3}', '{0,2}', '7')
    """
    ordered = sorted(set(numbers))
    if len(ordered) == 1:
        return str(ordered[0])
    if len(ordered) > 2 and ordered[-1] - ordered[0] == len(ordered) - 1:
        return f"{{{ordered[0]}..{ordered[-1]}}}"
    return f"{{{','.join(map(str, ordered))}}}"

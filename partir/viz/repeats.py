"""Repeated layers as one line: rows whose names differ in one number, and in nothing else, are shown together."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

NUMBER = re.compile(r"(\d+)")
WORD = re.compile(r"[^/\s\"]*/?$")
"""What stands before a number and tells it from the others in a name: `layer_`, or `layers/` where it is a level itself."""

BLANK = "\0"
Key = tuple[str, tuple[str, ...], tuple[object, ...]]


@dataclass(frozen=True)
class Repeated:
    """Rows under one `name`, such as `layer_{0..3}/mlp`: the `cells` they share, and their positions."""

    name: str
    cells: tuple[object, ...]
    rows: tuple[int, ...]

    @property
    def count(self) -> int:
        return len(self.rows)


def together(names: Sequence[str], cells: Sequence[tuple[object, ...]]) -> list[Repeated]:
    """Put rows together whose names differ in one number and whose cells are equal; in order of first appearance.

    A number counts as one wherever it follows the same word: both 0s of `layer_0: layer_0/w:1`.

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
    """What a row may share with others, each with the number it leaves out; a name without numbers shares with nobody."""
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
    """Numbers as a shell would take them, in ascending order.

    >>> numbers_text([0, 1, 2, 3]), numbers_text([0, 2]), numbers_text([7])
    ('{0..3}', '{0,2}', '7')
    """
    ordered = sorted(set(numbers))
    if len(ordered) == 1:
        return str(ordered[0])
    if len(ordered) > 2 and ordered[-1] - ordered[0] == len(ordered) - 1:
        return f"{{{ordered[0]}..{ordered[-1]}}}"
    return f"{{{','.join(map(str, ordered))}}}"

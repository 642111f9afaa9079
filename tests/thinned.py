"""Matrices of cases that repeat each other: `make test` runs some of their cells, `make test-all` runs all."""

import os
from collections import Counter
from collections.abc import Iterable
from typing import TypeVar

Cell = TypeVar("Cell", bound=tuple)

ALL = bool(os.environ.get("PARTIR_TEST_ALL"))


def thinned(cells: Iterable[Cell], most: int) -> list[Cell]:
    """At most so many of the cells, in their order; more where that is what it takes for every value to occur.

    Each next cell is the first of those whose values have occurred least: the same in every run, and every value of every
    parameter about as often as every other.

    >>> thinned([(model, mesh) for model in "ab" for mesh in (4, 8)], most=1)
    [('a', 4), ('b', 8)]
    """
    rest = dict(enumerate(cells))
    if ALL or len(rest) <= most:
        return list(rest.values())
    had: Counter[tuple[int, str]] = Counter()
    values = {number: [(place, str(value)) for place, value in enumerate(cell)] for number, cell in rest.items()}
    every, kept = {value for cell in values.values() for value in cell}, {}
    while len(kept) < most or any(not had[value] for value in every):
        number = min(rest, key=lambda number: sum(had[value] for value in values[number]))
        kept[number] = rest.pop(number)
        had.update(values[number])
    return [kept[number] for number in sorted(kept)]

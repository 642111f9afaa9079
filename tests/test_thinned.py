"""What is left of a thinned matrix: every value, evenly."""

import doctest
from collections import Counter
from itertools import product

import pytest
import thinned

pytestmark = pytest.mark.core


@pytest.fixture(autouse=True)
def _by_default(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(thinned, "ALL", False)


def test_the_example() -> None:
    assert doctest.testmod(thinned) == (0, 1)


def test_every_value_occurs_as_often_as_every_other() -> None:
    cells = thinned.thinned(product("abcdef", range(4), (True, False)), most=12)

    assert len(cells) == 12
    assert [set(Counter(column).values()) for column in zip(*cells, strict=True)] == [{2}, {3}, {6}]


def test_a_value_of_one_cell_is_kept() -> None:
    cells = [*product("abc", range(3)), ("a", 9), ("z", 0)]

    kept = thinned.thinned(cells, most=1)

    assert {("a", 9), ("z", 0)} <= set(kept)
    assert [set(column) for column in zip(*kept, strict=True)] == [set(column) for column in zip(*cells, strict=True)]
    assert kept == [cell for cell in cells if cell in kept]


def test_in_full_where_it_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(thinned, "ALL", True)

    assert thinned.thinned(product("ab", "cd"), most=1) == list(product("ab", "cd"))

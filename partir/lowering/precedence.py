"""From "this one had the axis before that one", seen at many ops, to one order - and the exceptions it needs."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from typing import TypeVar

from partir.sharding.assignment import in_scope

Item = TypeVar("Item", bound=Hashable)
Edge = tuple[Item, Item]
"""The first comes before the second."""


def in_order(
    items: Sequence[Item], hard: set[Edge[Item]], soft: Mapping[Edge[Item], int]
) -> tuple[list[Item], set[Edge[Item]]] | None:
    """The items in an order that keeps every hard edge and most soft ones, ties as given; with the soft edges it breaks.

    Soft edges have a weight; where they go round in circles, the item that breaks least goes first. None if hard edges do.

    >>> in_order("abc", {("c", "a")}, {("a", "b"): 1})
    (['c', 'a', 'b'], set())
    >>> in_order("ab", set(), {("a", "b"): 1, ("b", "a"): 2})
    (['b', 'a'], {('a', 'b')})
    """
    rank = {item: i for i, item in enumerate(items)}
    before: dict[Item, set[Item]] = {item: set() for item in items}
    for first, second in (*hard, *soft):
        if first != second:
            before[second].add(first)
    left = dict.fromkeys(items)
    ordered: list[Item] = []
    broken: set[Edge[Item]] = set()
    while left:
        ready = [item for item in left if not before[item]]
        if not ready:
            ready = sorted(
                (item for item in left if not any((first, item) in hard for first in before[item])),
                key=lambda item: sum(soft[first, item] for first in before[item]),
            )[:1]
            if not ready:
                return None
            broken.update((first, ready[0]) for first in before[ready[0]])
        chosen = min(ready, key=lambda item: rank[item])
        ordered.append(chosen)
        del left[chosen]
        for item in left:
            before[item].discard(chosen)
    return ordered, broken


Contest = tuple[str, int, tuple[int, ...]]
"""At an op: its scope, the class that has the axis, the classes that wanted it too."""


def preferences(contests: Sequence[Contest], broken: set[str]) -> list[tuple[str, int]] | None:
    """(scope, class) pairs, first match first, that settle all contests in the `broken` scopes; None where there are none.

    >>> preferences([("mlp", 1, (2,)), ("mlp", 2, (3,)), ("head", 2, (1,))], {"mlp"})
    [('mlp', 1), ('mlp', 2)]
    """
    found: list[tuple[str, int]] = []
    for scope in sorted(broken, key=lambda scope: -len(scope.split("/"))):
        own = [(winner, losers) for at, winner, losers in contests if in_scope(scope, at)]
        winners = list(dict.fromkeys(winner for winner, _ in own))
        edges = {(winner, loser) for winner, losers in own for loser in losers if loser in winners}
        solved = in_order(winners, edges, {})
        if solved is None:
            return None
        found += [(scope, class_) for class_ in solved[0]]
    return found

"""From "this one had the axis before that one", seen at many ops, to one order - and the exceptions it needs."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from typing import TypeVar

from partir.sharding.assignment import in_scope

Item = TypeVar("Item", bound=Hashable)
Edge = tuple[Item, Item]
"""The first comes before the second."""


def in_order(items: Sequence[Item], edges: Mapping[Edge[Item], int]) -> tuple[list[Item], set[Edge[Item]]]:
    """The items in an order that keeps their weighted edges, ties as given; with the edges it breaks.

    Where edges go round in circles, the item that breaks least goes first.

    >>> in_order("abc", {("c", "a"): 1, ("a", "b"): 1})
    (['c', 'a', 'b'], set())
    >>> in_order("ab", {("a", "b"): 1, ("b", "a"): 2})
    (['b', 'a'], {('a', 'b')})
    """
    rank = {item: i for i, item in enumerate(items)}
    before: dict[Item, set[Item]] = {item: set() for item in items}
    for first, second in edges:
        if first != second:
            before[second].add(first)
    left = dict.fromkeys(items)
    ordered: list[Item] = []
    broken: set[Edge[Item]] = set()
    while left:
        cost = {item: sum(edges[first, item] for first in before[item]) for item in left}
        chosen = min(left, key=lambda item: (cost[item], rank[item]))
        broken.update((first, chosen) for first in before[chosen])
        ordered.append(chosen)
        del left[chosen]
        for item in left:
            before[item].discard(chosen)
    return ordered, broken


Contest = tuple[str, int, tuple[int, ...]]
"""At an op: its scope, the class that has the axis, the classes that wanted it too."""


def preferences(contests: Sequence[Contest], broken: set[str]) -> list[tuple[str, int]]:
    """(scope, class) pairs, first match first, that settle the contests in the `broken` scopes as far as pairs can.

    >>> preferences([("mlp", 1, (2,)), ("mlp", 2, (3,)), ("head", 2, (1,))], {"mlp"})
    [('mlp', 1), ('mlp', 2)]
    """
    found: list[tuple[str, int]] = []
    for scope in sorted(broken, key=lambda scope: -len(scope.split("/"))):
        own = [(winner, losers) for at, winner, losers in contests if in_scope(scope, at)]
        winners = list(dict.fromkeys(winner for winner, _ in own))
        edges = {(winner, loser): 1 for winner, losers in own for loser in losers if loser in winners}
        found += [(scope, class_) for class_ in in_order(winners, edges)[0]]
    return found

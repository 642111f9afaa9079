"""Groups: classes that are the same decision in repeated layers, found by hashing their surroundings.

Two classes belong together when they have the same size and the same ops around them: for each op the kind, the phase, the
scope with numbers taken out, the shape of its rule and the factor's place in it, counted. 24 layers then give about ten
decisions instead of hundreds.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from partir.sharding.classes import Classes
from partir.sharding.indices import ClassId
from partir.sharding.scopes import without_numbers


@dataclass(frozen=True)
class Group:
    """Classes that are one decision: their numbers in program order, their common size, and the scopes they live in
    (numbers taken out, deepest first)."""

    classes: tuple[ClassId, ...]
    size: int
    scopes: tuple[str, ...]

    def __repr__(self) -> str:
        where = self.scopes[0] if self.scopes and self.scopes[0] else "(program)"
        return f"Group({len(self.classes)} classes of size {self.size}, {where})"


def find(classes: Classes) -> list[Group]:
    """The groups of all classes that touch an op, in program order of their first class.

    Of two layers `tanh(x @ w0) @ w1` and `tanh(x @ w2) @ w3` in scopes `layer_0` and `layer_1`, the hidden classes are each
    around {(dot_general, forward, layer_*, its shape, factor j): 1, (tanh, ..., dim 1): 1, (dot_general, ..., factor k): 1}.
    """
    tables, atoms = classes.tables, classes.atoms
    # [classes] how often each has a place at an op of a kind, phase, scope and shape; and in which scopes.
    around: list[Counter[tuple[object, ...]]] = [Counter() for _ in range(classes.count)]
    scopes: list[Counter[str]] = [Counter() for _ in range(classes.count)]
    plain: dict[str, str] = {}
    for position, row in tables.each_row():
        shape = atoms.shapes[position]
        scope = tables.scope(row)
        name = plain.get(scope)
        if name is None:
            name = plain[scope] = without_numbers(scope)
        phase = tables.phase(row)
        for place, class_ in enumerate(classes.of_row(position)):
            if class_ >= 0:
                around[class_][row.op.name, phase, name, id(shape), place] += 1
                scopes[class_][name] += 1
    found: dict[object, list[ClassId]] = {}
    for class_, surroundings in enumerate(around):
        if surroundings:
            found.setdefault((classes.size[class_], frozenset(surroundings.items())), []).append(ClassId(class_))
    return [
        Group(tuple(members), classes.size[members[0]], _by_depth(scopes[members[0]])) for members in sorted(found.values())
    ]


def _by_depth(scopes: Counter[str]) -> tuple[str, ...]:
    return tuple(sorted(scopes, key=lambda name: (-name.count("/"), -scopes[name], name)))

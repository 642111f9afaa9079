"""How arguments come in and results leave: as a PartitionSpec can say, as a `Pin` or a fixed spec says, as the other end of a
state lies."""

from __future__ import annotations

import math
from collections.abc import Sequence

from partir.program import Leaf
from partir.sharding.assignment import Assignment, Fixed
from partir.sharding.indices import ValueIndex
from partir.sharding.layout import DimLayout, Layout, expressible, replicated
from partir.sharding.rule import shape_of
from partir.sharding.tables import View


def argument_layout(assignment: Assignment, argument: ValueIndex, lies: Layout) -> Layout:
    """How an argument lies at the boundary, where the program reads it as `lies`: what of that a PartitionSpec can say.

    Axes of one device cut nothing, and are in no layout; but where a `Pin` names them, they are shown.
    """
    mesh, tables = assignment.mesh, assignment.structure.tables
    said = sayable(lies, tables.program.signature.arguments[argument])
    pinned = assignment.pinned.get(argument)
    if pinned is None or not any(mesh.size_of(axis) == 1 for axes in pinned.values() for axis in axes):
        return said
    dims = list(said)
    for dim, axes in pinned.items():
        size = tables.shapes[argument][dim]
        if axes and size % mesh.size_of(*axes) == 0:
            dims[dim] = ((size, axes),)
    return tuple(dims)


def result_layout(
    assignment: Assignment, result: int, view: View | None, layouts: Sequence[Layout], arguments: Sequence[Layout]
) -> Layout:
    """How a result leaves: as its spec is fixed, else as the argument lies whose state it hands on, else as it lies already, as
    far as a PartitionSpec can say.

    One without elements is replicated: XLA makes it so whatever it is told, and JAX then cannot read it. `layouts` are those of
    all values, `arguments` those of arguments at the boundary.
    """
    tables = assignment.structure.tables
    signature, fixed = tables.program.signature, dict(assignment.outputs).get(result)
    argument, leaf = signature.argument_of_result.get(result), signature.results[result]
    shape = shape_of(tables.root.returns[result].type)
    if view is None or 0 in leaf.shape:
        lies = replicated(shape)
    else:
        source = layouts[view.source]
        lies = tuple(source[d] if d >= 0 else ((shape[i], ()),) for i, d in enumerate(view.dims))
    if fixed is not None:
        return _as_fixed(fixed, sayable(lies, leaf), shape)
    return arguments[argument] if argument is not None else sayable(lies, leaf)


def sayable(layout: Layout, leaf: Leaf) -> Layout:
    """The part of a layout that a PartitionSpec of this leaf can say. A random key has inner dims that no spec speaks of."""
    said, rank = expressible(layout), len(leaf.shape)
    return said[:rank] + replicated([math.prod(size for size, _ in segments) for segments in said[rank:]])


def _as_fixed(fixed: Fixed, lies: Layout, shape: Sequence[int]) -> Layout:
    """The layout of a result whose spec is fixed: open dims lie as they do, as far as their axes are not named elsewhere. The
    inner dims of a random key, of which no spec speaks, are whole.

    >>> _as_fixed((("x",), None), (((8, ()),), ((4, ("y",)),)), (8, 4))
    (((8, ('x',)),), ((4, ('y',)),))
    """
    named = {axis for axes in fixed for axis in axes or ()}
    found: list[DimLayout] = []
    for size, own, segments in zip(shape, (*fixed, *[()] * (len(shape) - len(fixed))), lies, strict=True):
        is_free = own is None and named.isdisjoint(axis for _, axes in segments for axis in axes)
        found.append(segments if is_free else ((size, own or ()),))
    return tuple(found)

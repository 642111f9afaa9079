"""How one tensor lies on the mesh: per dim, segments from major to minor, each cut over an ordered list of axes.

A dim of 768 = 12 heads x 64 with the heads over "model" is `((12, ("model",)), (64, ()))`. Layouts are canonical, so two
of them describe the same placement exactly when they are equal; a dim that is one segment can be said in a PartitionSpec.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from functools import cache

Axes = tuple[str, ...]
Segment = tuple[int, Axes]
DimLayout = tuple[Segment, ...]
Layout = tuple[DimLayout, ...]


def replicated(shape: Sequence[int]) -> Layout:
    """The layout of a tensor every device holds in full."""
    return tuple(((int(size), ()),) for size in shape)


def canonical_dim(segments: Iterable[Segment], sizes: Mapping[str, int]) -> DimLayout:
    """Merge neighbouring segments that are one block of memory.

    >>> canonical_dim([(12, ("model",)), (64, ())], {"model": 2})
    ((768, ('model',)),)
    >>> canonical_dim([(4, ()), (8, ("model",))], {"model": 2})
    ((4, ()), (8, ('model',)))
    """
    merged: list[Segment] = []
    for size, axes in segments:
        if size == 1:
            continue
        if merged:
            major_size, major_axes = merged[-1]
            cut_fully = math.prod(sizes[a] for a in major_axes) == major_size
            if not axes or cut_fully:
                if not major_axes and axes:
                    pass
                else:
                    merged[-1] = (major_size * size, major_axes + axes)
                    continue
        merged.append((size, axes))
    return tuple(merged) or ((1, ()),)


@cache
def local_shape(layout: Layout, sizes: tuple[tuple[str, int], ...]) -> tuple[int, ...]:
    """The shape each device holds of a tensor with this layout."""
    by_axis = dict(sizes)
    return tuple(math.prod(size // math.prod(by_axis[a] for a in axes) for size, axes in segments) for segments in layout)


def axes_of(layout: Layout) -> Axes:
    """Every axis the layout uses, dims in order, major first."""
    return tuple(axis for segments in layout for _, axes in segments for axis in axes)


def is_replicated(layout: Layout) -> bool:
    """Whether no dim is cut."""
    return all(not axes for segments in layout for _, axes in segments)


def expressible(layout: Layout) -> Layout:
    """The part of a layout that a PartitionSpec can say: the outermost segment of each dim."""
    return tuple(
        segments if len(segments) == 1 else ((math.prod(size for size, _ in segments), segments[0][1]),) for segments in layout
    )


def spec_of(layout: Layout) -> tuple[str | Axes | None, ...]:
    """The entries of the PartitionSpec of an expressible layout, trailing Nones dropped.

    >>> spec_of((((8, ("data", "model")),), ((16, ()),)))
    (('data', 'model'),)
    """
    entries: list[str | Axes | None] = []
    for segments in layout:
        (_, axes), *rest = segments
        if any(inner for _, inner in rest):
            raise ValueError(f"layout {layout} cannot be said in a PartitionSpec")
        entries.append(None if not axes else axes[0] if len(axes) == 1 else axes)
    while entries and entries[-1] is None:
        entries.pop()
    return tuple(entries)


def spec_text(spec: Iterable[object]) -> str:
    """A spec as a reader writes it, without the dims at its end that are whole.

    >>> spec_text(["data", None, ("x", "y"), None])
    "P('data', None, ('x', 'y'))"
    """
    entries = list(spec)
    while entries and not entries[-1]:
        entries.pop()
    return f"P({', '.join(map(repr, entries))})"

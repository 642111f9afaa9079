"""The specs of one function for another that shares its parameters: which leaf of the one is which leaf of the other."""

from __future__ import annotations

from collections.abc import Sequence

from partir.mesh import Mesh
from partir.program import Leaf
from partir.sharding.layout import Layout, spec_of

Spec = tuple[object, ...]


def followed(leaves: Sequence[Leaf], known: Sequence[tuple[Leaf, Layout]], mesh: Mesh) -> list[Spec | None]:
    """For each leaf the spec of the known leaf that is the same, None where there is none.

    The same is, first, what has the same whole path; else what has the longest common end of the path (pytree keys, without
    the name of the argument or result). It has to have as many dims, and the spec to divide them; where several leaves with
    different specs are equally near, none is followed.
    """
    return [_nearest(leaf, known, mesh) for leaf in leaves]


def _nearest(leaf: Leaf, known: Sequence[tuple[Leaf, Layout]], mesh: Mesh) -> Spec | None:
    best, specs = 0, set[Spec]()
    for other, layout in known:
        common = _common_end(leaf.path, other.path)
        whole = leaf.path == other.path
        if len(other.shape) != len(leaf.shape) or not (whole or common):
            continue
        near = (2 if whole else 0) + 2 * common + (leaf.shape == other.shape)
        if near < best:
            continue
        if near > best:
            best, specs = near, set()
        specs.add(tuple(spec_of(layout)))
    if len(specs) != 1:
        return None
    (spec,) = specs
    return spec if _divides(spec, leaf.shape, mesh) else None


def _common_end(a: tuple[str, ...], b: tuple[str, ...]) -> int:
    """How many keys two paths end with in common, argument names left out."""
    count = 0
    for x, y in zip(reversed(a[1:]), reversed(b[1:]), strict=False):
        if x != y:
            break
        count += 1
    return count


def _divides(spec: Spec, shape: Sequence[int], mesh: Mesh) -> bool:
    for entry, size in zip(spec, shape, strict=False):
        axes = (entry,) if isinstance(entry, str) else entry if isinstance(entry, tuple) else ()
        if size % mesh.size_of(*(str(axis) for axis in axes)):
            return False
    return True

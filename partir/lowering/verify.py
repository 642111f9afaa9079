"""Checks an SPMD program against its dialects and its mesh, and counts its collectives."""

from __future__ import annotations

from collections import Counter

from xdsl.dialects.builtin import IntegerAttr, ModuleOp
from xdsl.ir import Operation

from partir.dialect.sdy import MeshOp
from partir.dialect.spmd import AllSliceOp, CollectiveOp, CoordinateOp
from partir.dialect.text import verify
from partir.errors import IRError, error_text
from partir.lowering.to_spmd import TRIPS
from partir.sharding.plan import COLLECTIVES


def count_collectives(module: ModuleOp) -> dict[str, int]:
    """How many collectives of each kind one step of a device-local program runs.

    Those in a loop body count once per iteration, if the trip count is known. Slices communicate nothing and are left out.
    """
    counts: Counter[str] = Counter()
    for op in module.walk():
        if isinstance(op, CollectiveOp) and not isinstance(op, AllSliceOp):
            counts[op.name.removeprefix("spmd.")] += _times(op)
    return {kind: counts[kind] for kind in COLLECTIVES if counts[kind]}


def _times(op: Operation) -> int:
    """How often an op runs in one step: the trip counts of the loop bodies around it, multiplied."""
    times = 1
    inner, outer = op, op.parent_op()
    while outer is not None:
        trips = outer.attributes.get(TRIPS)
        if isinstance(trips, IntegerAttr) and inner.parent_region() is outer.regions[-1]:
            times *= trips.value.data
        inner, outer = outer, outer.parent_op()
    return times


def verify_spmd(module: ModuleOp) -> None:
    """Raise IRError unless the module obeys its dialects and every axis of a collective is one of the module's mesh."""
    verify(module)
    mesh = next((op for op in module.body.block.ops if isinstance(op, MeshOp)), None)
    if mesh is None:
        raise IRError(error_text("an SPMD module has no sdy.mesh"))
    sizes = dict(mesh.mesh.axes)
    for op in module.walk():
        if isinstance(op, CollectiveOp | CoordinateOp):
            for name, size in op.axes.data:
                if sizes.get(name) != size:
                    raise IRError(
                        error_text(
                            f'{op.name} over "{name}"={size}',
                            where=str(op.axes),
                            why=f"the mesh is {mesh.mesh.mesh!r}",
                        )
                    )

"""What the user wrote into the program as sharding constraints: first actions in program order, exact at their own op.

A constraint asks for a layout of one value. Each axis it names tiles the class of its dim (so that it flows, as any tile
does); at the constraint itself the layout is exactly what was written. What cannot be done is said, never dropped.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from xdsl.dialects.builtin import ArrayAttr, StringAttr
from xdsl.ir import SSAValue

from partir.dialect.sdy import ManualComputationOp, ShardingConstraintOp, TensorShardingAttr
from partir.errors import ProgramError, word
from partir.mesh import Mesh
from partir.sharding.actions import Action, Addresses, Tile
from partir.sharding.atoms import Atoms
from partir.sharding.layout import Layout
from partir.sharding.rule import shape_of
from partir.sharding.tables import OpRow, Tables


@dataclass(frozen=True)
class Wishes:
    """`factors[row][axis]` is the sub-factor a constraint gives the axis to; `actions` are its tiles; `refused` its misfits."""

    factors: dict[int, dict[str, int]]
    actions: tuple[Action, ...]
    refused: tuple[str, ...]


def dim_axes(sharding: TensorShardingAttr) -> list[tuple[str, ...]]:
    """The axes of each dim, major first; a part of an axis shows as such, a name that no mesh has."""
    return [
        tuple(f"{axis.name}:({axis.pre_size}){axis.size}" if axis.is_part else axis.name for axis in dim.axes)
        for dim in sharding.dims
    ]


def strange_axes(op: ShardingConstraintOp | ManualComputationOp) -> list[tuple[int, str]]:
    """(dim, axis and its mesh) for what is asked over axes that the import could not say as ours, or inside a `shard_map`."""
    found = op.attributes.get(ShardingConstraintOp.REFUSED)
    texts = [item.data for item in found if isinstance(item, StringAttr)] if isinstance(found, ArrayAttr) else []
    return [(int(dim), axis) for dim, axis in (text.split(": ", 1) for text in texts)]


def read(tables: Tables, atoms: Atoms, addresses: Addresses, mesh: Mesh) -> Wishes:
    """Collect the constraints of a program for one mesh."""
    factors: dict[int, dict[str, int]] = {}
    actions: dict[Action, None] = {}
    refused: list[str] = []
    for position, row in enumerate(tables.rows):
        if isinstance(row.op, ManualComputationOp):
            refused += [
                f"a constraint inside {addresses.names[row.results[0]]} asks for dim {dim} over {axis}: it stays whole there"
                for dim, axis in strange_axes(row.op)
            ]
        if not isinstance(row.op, ShardingConstraintOp):
            continue
        own: dict[str, int] = {}
        strange = strange_axes(row.op)
        for dim, axis in strange:
            refused.append(
                f"{addresses.names[row.results[0]]} dim {dim} was asked for over {axis}, which no axes of the mesh {mesh!r} "
                f"cut alike, device by device"
            )
        if strange and not any(dim_axes(row.op.sharding)):
            continue  # nothing that could be done is asked
        for dim, axes in enumerate(dim_axes(row.op.sharding)):
            _place(tables, atoms, addresses, mesh, position, row, dim, axes, own, actions, refused)
        factors[position] = own
    return Wishes(factors, tuple(actions), tuple(refused))


def _place(
    tables: Tables,
    atoms: Atoms,
    addresses: Addresses,
    mesh: Mesh,
    position: int,
    row: OpRow,
    dim: int,
    axes: tuple[str, ...],
    own: dict[str, int],
    actions: dict[Action, None],
    refused: list[str],
) -> None:
    shape = atoms.shapes[position]
    size = tables.shapes[row.results[0]][dim]
    pieces = list(shape.slots[shape.operand_count][dim] or ())
    extents = [shape.sizes[p] for p in pieces]
    name = addresses.names[row.results[0]]
    for axis in axes:
        if axis not in mesh.names:
            refused.append(f'{name} dim {dim} was asked for over "{axis}", which is not an axis of the mesh {mesh!r}')
            continue
        devices = mesh.size_of(axis)
        while extents and extents[0] == 1:
            pieces.pop(0)
            extents.pop(0)
        if not extents or extents[0] % devices:
            above = size + -size % devices
            near = f"{above - devices} or {above}" if above > devices else f"{above}"
            refused.append(
                f'{name} dim {dim} ({size}) was asked for over "{axis}" and stays whole: {size} does not divide by '
                f"{devices} ({size} mod {devices} = {size % devices}); {near} would"
            )
            continue
        extents[0] //= devices
        own[axis] = pieces[0]
        actions[Tile(name, dim, axis)] = None


def manual_layouts(op: ManualComputationOp, mesh: Mesh) -> tuple[tuple[Layout, ...], tuple[Layout, ...]]:
    """How the operands of a user's `shard_map` must lie, and its results do. Raises ProgramError for another mesh's axes."""

    def layouts(shardings: Sequence[TensorShardingAttr], values: Sequence[SSAValue]) -> tuple[Layout, ...]:
        found: list[Layout] = []
        for sharding, value in zip(shardings, values, strict=True):
            dims = dim_axes(sharding)
            for axis in (axis for axes in dims for axis in axes):
                if axis not in mesh.names:
                    raise ProgramError(
                        word(
                            f'a shard_map in the function is over mesh axis "{axis}"',
                            why=f"the mesh to partition over is {mesh!r}",
                            hint="partition over the mesh of the shard_map",
                        )
                    )
            found.append(tuple(((size, axes),) for size, axes in zip(shape_of(value.type), dims, strict=True)))
        return tuple(found)

    return layouts(op.in_shardings.shardings, op.operands), layouts(op.out_shardings.shardings, op.results)

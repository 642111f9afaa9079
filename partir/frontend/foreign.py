"""Translates shardings over meshes that the function itself names to the axes of the mesh to partition over.

A sharding constraint places data on devices: its axes are replaced by those that give each device the same shard. Where there
are none, the dim is left open and the constraint keeps a note of that for the report. The result of a `shard_map` does not
depend on which device runs which shard: its devices may be taken in any order for which axes exist, and the device numbers in
its body (replica groups, partition ids) are renumbered accordingly.

before   sdy.mesh @flat = <["z"=8]> ; sdy.sharding_constraint %x <@flat, [{"z"}, {}]>
after    sdy.sharding_constraint %x <@mesh, [{"x", "y"}, {}]>                             on a mesh x=4, y=2
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import jax
import numpy as np
from jax.extend.core import ClosedJaxpr, Jaxpr
from xdsl.dialects.builtin import ArrayAttr, DenseArrayBase, DenseIntOrFPElementsAttr, StringAttr, TensorType, i64
from xdsl.ir import Attribute, Operation

from partir.dialect.constants import dense, to_numpy
from partir.dialect.sdy import (
    AxisRef,
    DimSharding,
    ManualAxesAttr,
    MeshAttr,
    MeshShape,
    ShardingConstraintOp,
    TensorShardingAttr,
    TensorShardingPerValueAttr,
)
from partir.dialect.stablehlo import OPS
from partir.mesh import Mesh

MESH = "mesh"
"""The symbol of the mesh to partition over."""

NUMBERED = frozenset({"replica_groups", "source_target_pairs"})
"""Properties of collectives that name devices by number."""

Axes = tuple[tuple[str, int], ...]


@dataclass(frozen=True)
class Named:
    """The meshes that a function itself names: the device ids that they are all made of, and the axes of each concrete mesh."""

    devices: tuple[int, ...] = ()
    concrete: frozenset[Axes] = frozenset()


def named_meshes(jaxpr: Any) -> Named:
    """The meshes in the equations of a traced function. JAX refuses functions whose meshes are of different devices."""
    devices: tuple[int, ...] = ()
    concrete: set[Axes] = set()
    for equation in equations(jaxpr):
        for mesh in _meshes_in(equation.params.values()):
            devices = devices or mesh.device_ids
            concrete.add(mesh.axes)
    return Named(devices, frozenset(concrete))


def _meshes_in(values: Iterable[Any]) -> Iterator[Mesh]:
    """The concrete meshes among the parameters of an equation, alone or in a NamedSharding."""
    for value in values:
        if isinstance(value, tuple | list):
            yield from _meshes_in(value)
            continue
        mesh = value.mesh if isinstance(value, jax.sharding.NamedSharding) else value
        if isinstance(mesh, jax.sharding.Mesh) and not mesh.empty:
            yield Mesh.of(mesh)


def equations(jaxpr: Any) -> Iterator[Any]:
    """Every equation of a jaxpr and of all jaxprs nested in it; a jaxpr that is called several times is visited once."""
    seen: set[int] = set()
    stack: list[Any] = [jaxpr]
    while stack:
        value = stack.pop()
        if isinstance(value, ClosedJaxpr):
            value = value.jaxpr
        if isinstance(value, Jaxpr):
            if id(value) in seen:
                continue
            seen.add(id(value))
            for equation in value.eqns:
                yield equation
                stack.extend(p for p in equation.params.values() if isinstance(p, ClosedJaxpr | Jaxpr | tuple | list))
        elif isinstance(value, tuple | list):
            stack.extend(item for item in value if isinstance(item, ClosedJaxpr | Jaxpr))


@dataclass
class Meshes:
    """The meshes that a module names (`by_symbol`) and the mesh to partition over (`ours`; None: translate nothing)."""

    ours: Mesh | None
    named: Named = field(default_factory=Named)
    by_symbol: dict[str, Mesh] = field(default_factory=dict[str, Mesh])

    def add(self, symbol: str, mesh: MeshAttr) -> None:
        """Record one `sdy.mesh` of the module."""
        self.by_symbol[symbol] = self._with_devices(mesh.data)

    @property
    def has_others(self) -> bool:
        """Whether the module names any mesh other than ours."""
        return self.ours is not None and not all(self._is_ours(mesh) for mesh in self.by_symbol.values())

    def _is_ours(self, theirs: Mesh) -> bool:
        return self.ours is not None and self.ours == theirs and theirs.device_ids in ((), self.ours.device_ids)

    def _with_devices(self, shape: MeshShape) -> Mesh:
        """The mesh with the devices that the function made it of. The module gives them as positions in one list of devices."""
        mesh, devices = Mesh(shape.axes), self.named.devices
        if shape.axes not in self.named.concrete or mesh.size != len(devices):
            return mesh
        return mesh.on([devices[i] for i in shape.device_ids] if shape.device_ids else devices)

    def of(self, sharding: TensorShardingAttr) -> Mesh:
        """The mesh whose axes a sharding names."""
        named = sharding.mesh
        return self.by_symbol[named] if isinstance(named, str) else self._with_devices(named)

    def constraint(self, sharding: TensorShardingAttr) -> tuple[TensorShardingAttr, Attribute | None]:
        """Translate a constraint to our axes. Also returns, for the report, the axes that have no counterpart (None: all have).

        Of the axes of a dim the longest prefix that can be translated is kept; a dim that lost axes is left open.
        """
        ours, theirs = self.ours, self.of(sharding)
        if ours is None or self._is_ours(theirs):
            return sharding, None
        dims, refused = [], list[Attribute]()
        for number, dim in enumerate(sharding.dims):
            kept = len(dim.axes)
            while (found := _translated(ours, theirs, dim.axes[:kept])) is None:
                kept -= 1
            refused += [StringAttr(f'{number}: "{axis.name}" of {theirs.described(ours)}') for axis in dim.axes[kept:]]
            dims.append(replace(dim, axes=found, is_closed=dim.is_closed and kept == len(dim.axes)))
        data = replace(sharding.data, mesh=MESH, dims=tuple(dims), replicated=())
        return TensorShardingAttr(data), ArrayAttr(refused) if refused else None

    def manual(self, properties: dict[str, Attribute]) -> Renumbering:
        """Translate the specs of a `shard_map` (in its `properties`) to our axes; returns how to renumber devices in its body.

        Specs that cannot be translated are given axis names that no mesh has, so that planning raises an error with that name.
        """
        ours = self.ours
        specs = {key: properties[key] for key in ("in_shardings", "out_shardings")}
        lists = {key: attr.shardings for key, attr in specs.items() if isinstance(attr, TensorShardingPerValueAttr)}
        manual = properties["manual_axes"]
        assert isinstance(manual, ManualAxesAttr)
        shardings = [sharding for own in lists.values() for sharding in own]
        if ours is None or not shardings:
            return Renumbering()
        theirs = self.of(shardings[0])
        for places in _orders(ours, theirs):
            found = {key: _all_over(ours, theirs, own, places) for key, own in lists.items()}
            if None not in found.values():
                properties.update({key: TensorShardingPerValueAttr(own) for key, own in found.items() if own is not None})
                # If no axes of ours correspond to the manual axes, the body is manual over our whole mesh.
                axes = ours.cut_as(theirs, manual.data, places)
                properties["manual_axes"] = ManualAxesAttr(tuple(a for a in ours.names if axes is None or a in axes))
                return Renumbering(tuple(places))
        for key, own in lists.items():
            properties[key] = TensorShardingPerValueAttr(tuple(_unresolvable(s, theirs.described(ours)) for s in own))
        return Renumbering()


def _orders(ours: Mesh, theirs: Mesh) -> Iterator[list[int]]:
    """Candidate orders of a `shard_map`'s devices: entry i is the position in `theirs` of our device i.

    First the identity, then the order that matches axes by name, then the one that matches devices by their ids.
    """
    if ours.size != theirs.size:
        return
    yield list(range(ours.size))
    for found in (ours.places_by_name(theirs), ours.places_in(theirs)):
        if found is not None:
            yield found


def _translated(ours: Mesh, theirs: Mesh, axes: Iterable[AxisRef]) -> tuple[AxisRef, ...] | None:
    """The axes of one dim of a constraint in our mesh; None if there are none, or if it names part of an axis (a sub-axis)."""
    axes = tuple(axes)
    if any(axis.is_part for axis in axes):
        return None
    found = ours.translated([axis.name for axis in axes], theirs)
    return None if found is None else tuple(map(AxisRef, found))


def _all_over(
    ours: Mesh, theirs: Mesh, shardings: Sequence[TensorShardingAttr], places: Sequence[int]
) -> tuple[TensorShardingAttr, ...] | None:
    """The specs of a `shard_map`'s operands or results over our axes; None if one cannot be translated.

    Our device i takes the part of device `places[i]` of theirs.
    """
    found: list[TensorShardingAttr] = []
    for sharding in shardings:
        dims: list[DimSharding] = []
        for dim in sharding.dims:
            axes = ours.cut_as(theirs, dim.names, places)
            if axes is None or any(axis.is_part for axis in dim.axes):
                return None
            dims.append(replace(dim, axes=tuple(map(AxisRef, axes))))
        found.append(TensorShardingAttr(replace(sharding.data, mesh=MESH, dims=tuple(dims), replicated=())))
    return tuple(found)


def _unresolvable(sharding: TensorShardingAttr, mesh: str) -> TensorShardingAttr:
    """A spec whose axis names have the name of their mesh added, so that our mesh has none of them."""
    dims = [replace(dim, axes=tuple(AxisRef(f"{axis.name} of {mesh}") for axis in dim.axes)) for dim in sharding.dims]
    return TensorShardingAttr(replace(sharding.data, dims=tuple(dims), replicated=()))


@dataclass(frozen=True)
class Renumbering:
    """How to renumber devices in the body of a `shard_map`, which may be written for another order: our device i is its
    `places[i]`.

    `asked` collects the sharding constraints in the body, over axes that are not manual. They are dropped: the body is not
    partitioned any further.
    """

    places: tuple[int, ...] = ()
    asked: list[str] = field(default_factory=list[str])

    @property
    def is_needed(self) -> bool:
        return self.places != tuple(range(len(self.places)))

    def note(self, sharding: Attribute) -> None:
        """Record a sharding constraint in the body, which the import drops."""
        assert isinstance(sharding, TensorShardingAttr)
        self.asked.extend(f'{n}: "{axis.name}"' for n, dim in enumerate(sharding.dims) for axis in dim.axes)

    @property
    def refused(self) -> dict[str, Attribute]:
        """The dropped constraints, as an attribute of the `shard_map` for the report."""
        return {ShardingConstraintOp.REFUSED: ArrayAttr(list(map(StringAttr, self.asked)))} if self.asked else {}

    def attribute(self, name: str, attr: Attribute) -> Attribute:
        """A property of a collective, with device numbers replaced by ours. Short replica groups are padded with -1."""
        if name not in NUMBERED or not isinstance(attr, DenseIntOrFPElementsAttr) or not self.is_needed:
            return attr
        ours = np.empty(len(self.places) + 1, np.int64)
        ours[-1] = -1
        ours[list(self.places)] = np.arange(len(self.places))
        return dense(ours[to_numpy(attr)])

    def number(self, op: Operation) -> list[Operation]:
        """Replace `partition_id`, the device's own number, by its number in the order that the body was written for.

        before   %n = partition_id
        after    %i = partition_id ; %t = constant places ; %s = dynamic_slice %t, %i ; %n = reshape %s
        """
        if not self.is_needed:
            return [op]
        scalar = op.results[0].type
        assert isinstance(scalar, TensorType)
        element = scalar.element_type
        table = dense(np.array(self.places, np.uint32))
        constant = OPS["stablehlo.constant"].create(result_types=[table.get_type()], properties={"value": table})
        piece = OPS["stablehlo.dynamic_slice"].create(
            operands=[constant.results[0], op.results[0]],
            result_types=[TensorType(element, (1,))],
            properties={"slice_sizes": DenseArrayBase.from_list(i64, [1])},
        )
        result = OPS["stablehlo.reshape"].create(operands=[piece.results[0]], result_types=[scalar])
        made = [op, constant, piece, result]
        for new in made[1:]:
            new.attributes.update(op.attributes)
        return made

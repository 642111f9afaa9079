"""Meshes of the function's own: what it says over their axes, said over the axes of the mesh to partition over.

A constraint is about devices: its axes become those that give each device the same piece. What no axes do is left open, and
written beside the constraint for the report. A `shard_map` is about numbers alone, which do not tell one device from another:
its devices may be taken in any order in which its specs can be said; what its body says by number is renumbered.

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
    """The meshes that a function names itself: the devices of those made of devices, and the axes of each kind."""

    devices: tuple[int, ...] = ()
    concrete: frozenset[Axes] = frozenset()


def named_meshes(jaxpr: Any) -> Named:
    """The meshes in the equations of a traced function; JAX sees to it that all are of the same devices."""
    devices: tuple[int, ...] = ()
    concrete: set[Axes] = set()
    for equation in equations(jaxpr):
        for mesh in _meshes_in(equation.params.values()):
            devices = devices or mesh.device_ids
            concrete.add(mesh.axes)
    return Named(devices, frozenset(concrete))


def _meshes_in(values: Iterable[Any]) -> Iterator[Mesh]:
    """The meshes made of devices among the parameters of an equation, their shardings' meshes included."""
    for value in values:
        if isinstance(value, tuple | list):
            yield from _meshes_in(value)
            continue
        mesh = value.mesh if isinstance(value, jax.sharding.NamedSharding) else value
        if isinstance(mesh, jax.sharding.Mesh) and not mesh.empty:
            yield Mesh.of(mesh)


def equations(jaxpr: Any) -> Iterator[Any]:
    """Every equation of a jaxpr and of those inside it, each jaxpr once."""
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
    """The meshes a module names, beside the one to partition over, `ours`; None leaves everything as it is said."""

    ours: Mesh | None
    named: Named = field(default_factory=Named)
    by_symbol: dict[str, Mesh] = field(default_factory=dict[str, Mesh])

    def add(self, symbol: str, mesh: MeshAttr) -> None:
        """Take note of one `sdy.mesh`."""
        self.by_symbol[symbol] = self._with_devices(mesh.data)

    @property
    def has_others(self) -> bool:
        """Whether any is another than ours."""
        return self.ours is not None and not all(self._is_ours(mesh) for mesh in self.by_symbol.values())

    def _is_ours(self, theirs: Mesh) -> bool:
        return self.ours is not None and self.ours == theirs and theirs.device_ids in ((), self.ours.device_ids)

    def _with_devices(self, shape: MeshShape) -> Mesh:
        """A mesh with the devices the function made it of: module and numbers speak of these by their place in one list."""
        mesh, devices = Mesh(shape.axes), self.named.devices
        if shape.axes not in self.named.concrete or mesh.size != len(devices):
            return mesh
        return mesh.on([devices[i] for i in shape.device_ids] if shape.device_ids else devices)

    def of(self, sharding: TensorShardingAttr) -> Mesh:
        """The mesh that a sharding is over."""
        named = sharding.mesh
        return self.by_symbol[named] if isinstance(named, str) else self._with_devices(named)

    def constraint(self, sharding: TensorShardingAttr) -> tuple[TensorShardingAttr, Attribute | None]:
        """A constraint over our axes, and what of it cannot be said over them."""
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
        """Say the specs of a `shard_map`, in its `properties`, over our axes; returns the numbers its body's devices have.

        What cannot be said names axes that no mesh has, so that whoever plans for it refuses it by name.
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
                axes = ours.cut_as(theirs, manual.data, places)
                properties["manual_axes"] = ManualAxesAttr(tuple(a for a in ours.names if axes is None or a in axes))
                return Renumbering(tuple(places))
        for key, own in lists.items():
            properties[key] = TensorShardingPerValueAttr(tuple(_strange(s, theirs.described(ours)) for s in own))
        return Renumbering()


def _orders(ours: Mesh, theirs: Mesh) -> Iterator[list[int]]:
    """The orders in which the devices of a `shard_map` can be taken for ours: as they are, by the names of axes, by device."""
    if ours.size != theirs.size:
        return
    yield list(range(ours.size))
    for found in (ours.places_by_name(theirs), ours.places_in(theirs)):
        if found is not None:
            yield found


def _translated(ours: Mesh, theirs: Mesh, axes: Iterable[AxisRef]) -> tuple[AxisRef, ...] | None:
    """The axes of one dim of a constraint; a part of an axis has no name here."""
    axes = tuple(axes)
    if any(axis.is_part for axis in axes):
        return None
    found = ours.translated([axis.name for axis in axes], theirs)
    return None if found is None else tuple(map(AxisRef, found))


def _all_over(
    ours: Mesh, theirs: Mesh, shardings: Sequence[TensorShardingAttr], places: Sequence[int]
) -> tuple[TensorShardingAttr, ...] | None:
    """The specs of the operands or results of a `shard_map`, for devices of ours that stand at `places` in theirs."""
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


def _strange(sharding: TensorShardingAttr, mesh: str) -> TensorShardingAttr:
    """A spec whose axes carry the name of their mesh, which makes them nobody's here."""
    dims = [replace(dim, axes=tuple(AxisRef(f"{axis.name} of {mesh}") for axis in dim.axes)) for dim in sharding.dims]
    return TensorShardingAttr(replace(sharding.data, dims=tuple(dims), replicated=()))


@dataclass(frozen=True)
class Renumbering:
    """The body of a `shard_map`, which may be written for another order of devices: our device i is its `places[i]`.

    `asked` are the constraints in it, on the axes that it leaves to the compiler: nobody cuts over these there.
    """

    places: tuple[int, ...] = ()
    asked: list[str] = field(default_factory=list[str])

    @property
    def is_needed(self) -> bool:
        return self.places != tuple(range(len(self.places)))

    def note(self, sharding: Attribute) -> None:
        """Take note of a constraint in the body, which is left out."""
        assert isinstance(sharding, TensorShardingAttr)
        self.asked.extend(f'{n}: "{axis.name}"' for n, dim in enumerate(sharding.dims) for axis in dim.axes)

    @property
    def refused(self) -> dict[str, Attribute]:
        """What the constraints in the body ask, as the attribute of the `shard_map`."""
        return {ShardingConstraintOp.REFUSED: ArrayAttr(list(map(StringAttr, self.asked)))} if self.asked else {}

    def attribute(self, name: str, attr: Attribute) -> Attribute:
        """The property of a collective: groups and pairs by our numbers (-1 fills short groups up)."""
        if name not in NUMBERED or not isinstance(attr, DenseIntOrFPElementsAttr) or not self.is_needed:
            return attr
        ours = np.empty(len(self.places) + 1, np.int64)
        ours[-1] = -1
        ours[list(self.places)] = np.arange(len(self.places))
        return dense(ours[to_numpy(attr)])

    def number(self, op: Operation) -> list[Operation]:
        """A device's own number, looked up in the other order.

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

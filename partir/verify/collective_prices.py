"""What a compiled collective costs: its replica groups found among the axes of a mesh, and priced by the alpha-beta model."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from partir.comm import algorithms as prices
from partir.comm.link import Link
from partir.cost.target import Target
from partir.cost.wiring import Wiring
from partir.mesh import Mesh
from partir.verify.hlo import Groups
from partir.verify.transfers import Transfer


@dataclass(frozen=True)
class CollectivePrices:
    """Prices collectives by the devices that take part: those of the mesh axes their groups run along.

    Without a mesh, axes are made up that the groups run along; with one, a group that runs along none of its axes is taken as
    an axis of its own.
    """

    target: Target
    devices: int
    mesh: Mesh | None = None

    def seconds(self, transfer: Transfer) -> float:
        """How long one transfer takes, once."""
        if transfer.devices == 1 or self.devices == 1:
            return 0.0
        return prices.best(transfer.kind, float(transfer.bytes), self.link(transfer.groups, transfer.kind)).seconds

    def link(self, groups: Groups, kind: str) -> Link:
        """The wires the groups use."""
        if kind == "collective_permute":
            return self._permute(groups)
        if not groups:
            groups = (tuple(range(self.devices)),)
        first = tuple(sorted(groups[0]))
        if self.mesh is not None and (axes := self._axes.get(first)) is not None:
            return Wiring(self.target, self.mesh).link(axes)
        return self._strided(first)

    @cached_property
    def _axes(self) -> Mapping[tuple[int, ...], tuple[str, ...]]:
        """The mesh axes of each group that device 0 can be in."""
        assert self.mesh is not None
        names = self.mesh.names
        chosen = itertools.chain.from_iterable(itertools.combinations(names, count) for count in range(1, len(names) + 1))
        return {tuple(sorted(self.mesh.replica_groups(axes)[0])): axes for axes in chosen}

    def _strided(self, group: Sequence[int]) -> Link:
        """A group as axes made up for it: (outer, group, inner) devices, the inner ones between its members."""
        size = len(group)
        stride = max(1, group[1] - group[0]) if size > 1 else 1
        outer = max(1, math.ceil(self.devices / (size * stride)))
        made = Mesh([("outer", outer), ("group", size), ("inner", stride)])
        return Wiring(replace(self.target, innermost=()), made).link(("group",))

    def _permute(self, pairs: Groups) -> Link:
        """Neighbours: the link of the axis along which the pairs lie, with one message."""
        longest = max((abs(target - source) for source, target in pairs), default=1)
        if self.mesh is not None:
            for group, axes in self._axes.items():
                members = set(group)
                if (
                    len(axes) == 1
                    and all((t in members) for s, t in pairs if s in members)
                    and any(s in members for s, _ in pairs)
                ):
                    return Wiring(self.target, self.mesh).link(axes)
        return self._strided((0, max(1, longest)))

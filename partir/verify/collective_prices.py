"""Prices the collectives of a compiled program by the alpha-beta model, along the mesh axes of their replica groups."""

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
    """Prices collectives by the mesh axes that their replica groups run along.

    A group that runs along none of the axes, or along an unknown mesh (None), is priced as an axis of a mesh made up for it.
    """

    target: Target
    devices: int
    mesh: Mesh | None = None

    def seconds(self, transfer: Transfer) -> float:
        """How long one run of a transfer takes."""
        if transfer.devices == 1 or self.devices == 1:
            return 0.0
        return prices.best(transfer.kind, float(transfer.bytes), self.link(transfer.groups, transfer.kind)).seconds

    def link(self, groups: Groups, kind: str) -> Link:
        """The interconnect link that collectives over these groups use. Without groups, all devices take part."""
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
        """For each replica group that device 0 can be in: the mesh axes that it runs along."""
        assert self.mesh is not None
        names = self.mesh.names
        chosen = itertools.chain.from_iterable(itertools.combinations(names, count) for count in range(1, len(names) + 1))
        return {tuple(sorted(self.mesh.replica_groups(axes)[0])): axes for axes in chosen}

    def _strided(self, group: Sequence[int]) -> Link:
        """The link of a group by a mesh made up for it: [outer, group, inner], with `inner` the distance of its members."""
        size = len(group)
        stride = max(1, group[1] - group[0]) if size > 1 else 1
        outer = max(1, math.ceil(self.devices / (size * stride)))
        made = Mesh([("outer", outer), ("group", size), ("inner", stride)])
        return Wiring(replace(self.target, innermost=()), made).link(("group",))

    def _permute(self, pairs: Groups) -> Link:
        """The link of a collective permute: that of the single mesh axis along which all its pairs are, or a made-up one.

        `pairs` are (source, target).
        """
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

"""`estimate(plan, target)`: what one step costs a device, and where it goes - by kernel, scope and collective, with causes.

What depends on the program alone (kernels, their order, operations) is found once for each program and kind of target; an
estimate of another plan of the same program then only looks at how values lie.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from functools import cached_property
from weakref import WeakKeyDictionary

import numpy as np

from partir.cost import kernels as kernels_
from partir.cost.bf16_operands import NARROW
from partir.cost.compute import Roofline, kernel_bytes, off_chip
from partir.cost.fusing import FUSINGS
from partir.cost.kernels import Floats, Ints, Kernels
from partir.cost.memory import Sizes, live_bytes
from partir.cost.moves import Move, Moves, moves_of
from partir.cost.target import Target
from partir.cost.timeline import step_seconds
from partir.cost.unfolding import Unfolding
from partir.cost.wiring import Wiring
from partir.mesh import Mesh
from partir.program import origin_of
from partir.sharding.actions import Action, Addresses
from partir.sharding.assignment import Assignment
from partir.sharding.atoms import Atoms
from partir.sharding.claims import NEVER
from partir.sharding.indices import ValueIndex
from partir.sharding.plan import Plan, Reduction
from partir.sharding.propagation import FactorAxes
from partir.sharding.structure import Structure
from partir.sharding.tables import Tables

COPIED_TWICE = 4
"""What two copies read and write."""

THROUGH_CHIP = 0.5
"""How much of that is left of copies that fit into the memory on the chip; nothing where they run beside kernels."""


@dataclass(frozen=True)
class KernelCost:
    """One kernel in one step: named after the op in it that does most, with the ops in it; all on one device."""

    op: str
    scope: str
    phase: str
    source: str
    ops: int
    times: int
    seconds: float
    flops: float
    bytes: float


@dataclass(frozen=True)
class CollectiveCost:
    """One collective in one step, and why it is there.

    `value` is what it moves, `action` the decision that cut what it puts together or sums, `reason` in words: which op left a
    sum, or which use wants another layout; `scope`, `phase` and `source` are those of that op.
    """

    kind: str
    axes: tuple[str, ...]
    value: str
    reason: str
    scope: str
    phase: str
    source: str
    action: Action | None
    bytes: float
    times: int
    seconds: float
    algorithm: str


@dataclass(frozen=True)
class Resident:
    """A value that lives at the peak, with its bytes on one device."""

    name: str
    bytes: int
    is_argument: bool


@dataclass(frozen=True)
class ScopeCost:
    """All of one scope in one step."""

    compute_seconds: float = 0.0
    communication_seconds: float = 0.0
    flops: float = 0.0
    communicated_bytes: float = 0.0


@dataclass(eq=False)
class Estimate:
    """What one step costs one device of `target`. Bytes are in memory (padded where the target pads), seconds of one step.

    `peak_bytes` is arguments, results that do not take the place of donated arguments, and temporaries at their peak.
    `step_seconds` lets collectives run beside computation as far as data and the target allow; `compute_seconds` and
    `communication_seconds` are each alone. `communicated_bytes` is what one device sends. `unit_seconds` [4, K + S] are those
    of each of K kernels, and of what S of them do only after a collective, on the matrix unit, the vector unit, in memory and
    in reductions, `runs` [K + S] how often each runs; the largest and the overhead are its part of `kernel_seconds` [K]. Copies
    that the compiler makes for collectives are beside them.
    """

    plan: Plan
    target: Target
    step_seconds: float
    compute_seconds: float
    communication_seconds: float
    argument_bytes: int
    result_bytes: int
    temporary_bytes: int
    flops: float
    communicated_bytes: float
    model: Model
    unit_seconds: Floats
    runs: Floats
    kernel_seconds: Floats
    copied_bytes: float
    copy_seconds: float
    kernel_bytes: Floats
    row_flops: Floats
    live: Floats
    value_bytes: Floats
    moved: Moves

    @property
    def peak_bytes(self) -> int:
        """The most one device holds at once."""
        return self.argument_bytes + self.result_bytes + self.temporary_bytes

    @property
    def fits(self) -> bool:
        """Whether the peak is within the target's memory."""
        return self.peak_bytes <= self.target.hbm_bytes

    @property
    def peak_kernel(self) -> int:
        """The kernel at which temporaries are at their peak."""
        return int(np.argmax(self.live)) if len(self.live) else 0

    @cached_property
    def at_peak(self) -> list[Resident]:
        """What lives at the peak, the largest first: arguments, and temporaries that were made and are still to be read."""
        kernels, tables, at = self.model.kernels, self.model.tables, self.peak_kernel
        alive = np.flatnonzero((kernels.born >= 0) & (kernels.born <= at) & (kernels.ends >= at) & (self.value_bytes > 0))
        leaves = tables.program.signature.arguments
        here = [a for a in self.model.from_host if kernels.wanted[a] <= at <= kernels.ends[a]]
        values = [*(a for a, leaf in enumerate(leaves) if not leaf.memory), *here, *alive.tolist()]
        names = self.model.names
        found = [Resident(names[v], int(self.value_bytes[v]), v < tables.argument_count) for v in dict.fromkeys(values)]
        return sorted(found, key=lambda resident: -resident.bytes)

    @cached_property
    def kernels(self) -> list[KernelCost]:
        """Every kernel, in the order they run, and one for all copies. Operations of an op are counted where it runs first."""
        kernels, tables = self.model.kernels, self.model.tables
        own_flops = np.zeros(kernels.count)
        counted = np.flatnonzero(kernels.counted >= 0)
        np.add.at(own_flops, kernels.counted[counted], self.row_flops[counted])
        parts = np.bincount(kernels.parts[0], minlength=kernels.count)
        found: list[KernelCost] = []
        for k in range(kernels.count):
            op = tables.rows[int(kernels.label[k])].op
            origin = origin_of(op)
            times = int(kernels.times[k])
            found.append(
                KernelCost(
                    op.name.rsplit(".", 1)[-1],
                    origin.scope.data,
                    origin.phase.data,
                    origin.source.data,
                    int(parts[k]),
                    times,
                    float(self.kernel_seconds[k]),
                    float(own_flops[k]),
                    float(self.kernel_bytes[k]) * times,
                )
            )
        if self.copied_bytes:
            found.append(KernelCost("copy for collectives", "", "", "", 0, 1, self.copy_seconds, 0.0, self.copied_bytes))
        return found

    @property
    def samples(self) -> tuple[Floats, Floats]:
        """`unit_seconds` with all copies as one more, and `runs` with none for those."""
        copies = np.array([[0.0], [0.0], [self.copy_seconds], [0.0]])
        return np.concatenate([self.unit_seconds, copies], axis=1), np.append(self.runs, 0.0)

    @cached_property
    def collectives(self) -> list[CollectiveCost]:
        """Every collective, with its cause."""
        return [_collective(self.plan, move) for owed in self.moved.owed for move in owed.moves()]

    def by_scope(self, levels: int | None = None) -> dict[str, ScopeCost]:
        """Costs by named scope, each summed over its first `levels` levels (None: all of them)."""
        sums: dict[str, list[float]] = defaultdict(lambda: [0.0, 0.0, 0.0, 0.0])

        def of(scope: str) -> list[float]:
            return sums["/".join(scope.split("/")[:levels])]

        for kernel in self.kernels:
            own = of(kernel.scope)
            own[0] += kernel.seconds
            own[2] += kernel.flops
        for collective in self.collectives:
            own = of(collective.scope)
            own[1] += collective.seconds
            own[3] += collective.bytes
        return {scope: ScopeCost(*own) for scope, own in sorted(sums.items())}

    def __repr__(self) -> str:
        return (
            f"Estimate on {self.target.name}: step {self.step_seconds * 1e3:.3g} ms (compute {self.compute_seconds * 1e3:.3g}, "
            f"communication {self.communication_seconds * 1e3:.3g}), peak {self.peak_bytes / 1e9:.3g} GB"
        )


@dataclass(eq=False)
class Model:
    """What an estimate needs to know of one program on one target, whatever is decided."""

    tables: Tables
    atoms: Atoms
    target: Target
    addresses: Addresses

    @property
    def names(self) -> list[str]:
        """The address of each value."""
        return self.addresses.names

    @cached_property
    def kernels(self) -> Kernels:
        return kernels_.build(self.tables, FUSINGS[self.target.platform])

    @cached_property
    def roofline(self) -> Roofline:
        return Roofline(self.kernels, self.atoms, self.target)

    @cached_property
    def row_times(self) -> Floats:
        """How often each row runs in one step."""
        by_region = [self.tables.times(region) for region in self.tables.regions]
        return np.array([by_region[row.region] for row in self.tables.rows], dtype=np.float64)

    @cached_property
    def stored(self) -> list[int]:
        """The values that have memory of their own, arguments first."""
        kernels = self.kernels
        own = np.flatnonzero((kernels.maker >= 0) | (kernels.born >= 0)).tolist()
        return [*range(self.tables.argument_count), *(v for v in own if v >= self.tables.argument_count)]

    @cached_property
    def from_host(self) -> list[int]:
        """The arguments that are kept in host memory: a device has them from the kernel that reads them first to the last."""
        leaves = self.tables.program.signature.arguments
        return [a for a, leaf in enumerate(leaves) if leaf.memory and self.kernels.wanted[a] <= self.kernels.ends[a]]

    @cached_property
    def itself(self) -> Unfolding:
        """Where things happen that plans of the program itself speak of."""
        return Unfolding.itself(self.kernels)

    def estimate(self, plan: Plan, unfolding: Unfolding | None = None) -> Estimate:
        """Price a plan of this program, or of one that stands for it (`Unfolding.of(model.kernels, folded)`)."""
        kernels, roofline, target = self.kernels, self.roofline, self.target
        unfolding = unfolding or self.itself
        tables, mesh = plan.assignment.structure.tables, plan.assignment.mesh
        assert tables is unfolding.planned
        sizes = Sizes(tables, mesh.axes, target.pads_tiles)
        local = self._local_bytes(plan, sizes, unfolding)
        row_cut = _row_cut(plan)[unfolding.row_of]
        moved = moves_of(plan, unfolding, self._wiring(mesh), sizes)
        touched = kernel_bytes(kernels, local) + np.bincount(*moved.read_more, kernels.count)
        np.maximum(touched, 0.0, out=touched)
        moved_bytes = touched if target.on_chip_bytes is None else off_chip(kernels, local, touched, target.on_chip_bytes)
        arguments, results, replaced, resident = self._boundary(plan, sizes, unfolding)
        near = target.on_chip_bytes or 0
        through_chip = 0.0 if target.overlaps else THROUGH_CHIP
        copied = moved.copied + COPIED_TWICE * sum(size * (through_chip if size < near else 1.0) for size in replaced)
        copy_seconds = copied / (target.hbm_bytes_per_second * target.efficiency.memory)
        padding = None
        if target.matrix_unit > 1:
            planned = unfolding.row_of[roofline.matrix_rows].tolist()
            padding = roofline.padding([plan.rows[p].factor_axes for p in planned], mesh.shape)
        reductions = roofline.reduction_seconds(row_cut, touched)
        units = roofline.seconds(row_cut, moved_bytes, padding, reductions) * kernels.times
        seconds = units.max(axis=0) + target.efficiency.overhead_seconds * kernels.times
        split = [*moved.apart]
        apart = roofline.apart(moved.apart, moved.reduced, reductions) * kernels.times[split]
        np.add.at(seconds, split, apart.max(axis=0) + target.efficiency.overhead_seconds * kernels.times[split])
        touched[split] += [*moved.apart.values()]
        row_flops = roofline.flops / row_cut * self.row_times
        row_flops[kernels.counted < 0] = 0.0
        for value, start, stop in kernels.copies:
            moved.intervals.add([start], [stop], local[value] * NARROW)
        for value in self.from_host:
            moved.intervals.add([int(kernels.wanted[value])], [int(kernels.ends[value])], local[value])
        live = live_bytes(kernels, local, resident, moved.intervals) + sum(replaced)
        return Estimate(
            plan,
            target,
            step_seconds(seconds, moved.transfers(target.overlaps)) + copy_seconds,
            float(seconds.sum()) + copy_seconds,
            float(moved.seconds),
            int(arguments),
            int(results),
            int(max(0.0, live.max(initial=0.0))),
            float(row_flops.sum()),
            float(moved.bytes),
            self,
            np.concatenate([units, apart], axis=1),
            np.append(kernels.times, kernels.times[split]),
            seconds,
            copied,
            copy_seconds,
            touched,
            row_flops,
            live,
            local,
            moved,
        )

    @cached_property
    def _wirings(self) -> dict[Mesh, Wiring]:
        return {}

    def _wiring(self, mesh: Mesh) -> Wiring:
        if mesh not in self._wirings:
            self._wirings[mesh] = Wiring(self.target, mesh)
        return self._wirings[mesh]

    def _local_bytes(self, plan: Plan, sizes: Sizes, unfolding: Unfolding) -> Floats:
        """The bytes of each value that has memory, on one device."""
        planned = np.zeros(len(plan.layouts) + 1)
        wanted = unfolding.stored(self.stored)
        planned[wanted] = [sizes.padded(value, plan.layouts[value]) for value in wanted]
        local = np.zeros(len(self.tables.values))
        local[self.stored] = planned[unfolding.value_of[self.stored]]
        local[self.kernels.narrow] *= NARROW
        return local

    def _boundary(self, plan: Plan, sizes: Sizes, unfolding: Unfolding) -> tuple[float, float, list[float], Ints]:
        """Bytes of the arguments; of the results that do not go where a donated argument was; of each that is copied there;
        and the values whose memory those of results are.

        As JAX does: a donated argument is taken by the first result of its shape, type and sharding. What is kept in host
        memory takes none of the device's but for what lives while it is used.
        """
        arguments = results = 0.0
        copied: list[float] = []
        given: dict[object, int] = defaultdict(int)
        for argument, count, donated, dtype, memory in unfolding.arguments:
            layout = plan.arguments[argument]
            arguments += 0.0 if memory else count * sizes.padded(argument, layout)
            given[dtype, memory, layout] += donated
        resident: list[int] = []
        returned = unfolding.planned.root.returns
        for own in unfolding.boundary:
            layout = plan.outputs[own.planned]
            if (-1 - own.planned, 0) not in plan.uses and not own.memory:
                resident += own.homes
            key = own.dtype, own.memory, layout
            taken = min(own.count, given[key])
            given[key] -= taken
            size = sizes.of_type(returned[own.planned].type, layout)
            results += 0.0 if own.memory else (own.count - taken) * size
            brought = plan.reshard_for(-1 - own.planned, 0)
            if self.kernels.fusing.copies_state and brought is not None:
                copied += [size] * (taken * any(step.kind == "all_gather" for step in brought.steps))
        return arguments, results, copied, np.array(resident, dtype=np.int64)


_models: WeakKeyDictionary[Structure, list[Model]] = WeakKeyDictionary()


def model_of(structure: Structure, target: Target) -> Model:
    """The model of a program on a target, kept as long as the program is."""
    known = _models.setdefault(structure, [])
    found = next((model for model in known if model.target == target), None)
    if found is None:
        found = Model(structure.tables, structure.atoms, target, structure.addresses)
        known.append(found)
    return found


def estimate(plan: Plan, target: Target) -> Estimate:
    """What one step of a plan costs a device of `target`."""
    return model_of(plan.assignment.structure, target).estimate(plan)


def _row_cut(plan: Plan) -> Floats:
    """How many devices share the work of each row."""
    by_axis = plan.assignment.mesh.shape
    known: dict[FactorAxes, float] = {(): 1.0}

    def of(own: FactorAxes) -> float:
        found = known.get(own)
        if found is None:
            found = 1.0
            for axes in own:
                for axis in axes:
                    found *= by_axis[axis]
            known[own] = found
        return found

    return np.array([of(row.factor_axes) for row in plan.rows])


def _collective(plan: Plan, move: Move) -> CollectiveCost:
    """A move with its cause."""
    assignment, tables = plan.assignment, plan.assignment.structure.tables
    names, owed = assignment.structure.addresses.names, move.owed
    if isinstance(owed, Reduction):
        row = tables.rows[tables.producer[owed.value]]
        reason = f"{row.op.name.rsplit('.', 1)[-1]} left a sum over {' and '.join(move.axes)}"
        action = _made_by(assignment, tables.producer[owed.value], move.axes[0], summed=True)
    else:
        row = tables.rows[owed.row] if owed.row >= 0 else None
        wanted = "the program returns it" if row is None else f"{row.op.name.rsplit('.', 1)[-1]} reads it"
        how = "with another layout" if move.kind == "all_to_all" else "replicated" if move.kind == "all_gather" else "summed"
        reason = f"{wanted} {how} over {' and '.join(move.axes)}"
        action = _cut_by(assignment, owed.value, move.axes[0])
    origin = origin_of(row.op) if row is not None else None
    return CollectiveCost(
        move.kind,
        move.axes,
        names[owed.value],
        reason,
        origin.scope.data if origin is not None else "",
        origin.phase.data if origin is not None else "",
        origin.source.data if origin is not None else "",
        action,
        move.bytes,
        move.times,
        move.seconds,
        move.choice.algorithm,
    )


def _made_by(assignment: Assignment, row: int, axis: str, *, summed: bool) -> Action | None:
    """The action that cut a row (the reduction of it, where a sum is asked for), or the row that its operands came from."""
    tables = assignment.structure.tables
    for _ in range(len(tables.rows)):
        winner = int(assignment.winners[axis][row])
        if winner >= 0 and (assignment.classes.reduction[winner] or not summed):
            return _claim(assignment, int(assignment.classes.of_factor[winner]), axis)
        sources = [view.source for view in tables.rows[row].operands if view is not None]
        row = max((tables.producer[source] for source in sources if tables.producer[source] < row), default=-1)
        if row < 0:
            return None
    return None


def _cut_by(assignment: Assignment, value: ValueIndex, axis: str) -> Action | None:
    """The action that cut a value over an axis: its argument's, or that of the row which made it."""
    tables, atoms, classes = assignment.structure.tables, assignment.structure.atoms, assignment.classes
    if value >= tables.argument_count:
        return _made_by(assignment, tables.producer[value], axis, summed=False)
    for dim, axes in assignment.pinned.get(value, {}).items():
        if axis in axes:
            return assignment.actions[assignment.pins[value, dim]]
    first, count = atoms.start[value], atoms.count_of(value)
    own = [int(c) for c in classes.of_node[first : first + count]]
    best = min(own, key=lambda c: int(assignment.reach.order[axis][c]), default=-1)
    return _claim(assignment, best, axis)


def _claim(assignment: Assignment, class_: int, axis: str) -> Action | None:
    order = int(assignment.reach.order[axis][class_]) if class_ >= 0 else NEVER
    return assignment.actions[order] if order < len(assignment.actions) else None

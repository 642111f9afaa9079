"""Our sharding of every value of a program beside the one that Shardy's own propagation finds in-process, and why they differ.

Both start from the same shardings of arguments and results. Shardy gets the program without the sharding rules that partir
adds: its rules are its own. Values are matched by a number on each op. Reasons are found by rule, from the plan and from what
Shardy did at the same op; a value that only follows another which differs has the reason of that one.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

from jax.extend.mlir import ir, passmanager
from jax.interpreters import mlir
from xdsl.dialects.builtin import IntegerAttr, i64
from xdsl.ir import Block, Operation, SSAValue

import partir
from partir.dialect.core import TagOp
from partir.dialect.sdy import OpShardingRuleAttr
from partir.dialect.text import parse_attribute, to_generic
from partir.lowering.shardy import to_shardy
from partir.program import origin_of
from partir.sharding import unreduced
from partir.sharding.actions import Tile
from partir.sharding.claims import NEVER
from partir.sharding.layout import Axes
from partir.sharding.propagation import Propagation
from partir.sharding.rule import shape_of
from partir.sharding.tables import OpRow

PROPAGATE = "builtin.module(sdy-propagation-pipeline)"
POPULATE = "builtin.module(func.func(sdy-populate-op-sharding-rules))"
NUMBER = "number"
"""The attribute that an op is known by after the passes."""

REASONS = {
    "meeting": "Two dims of one op want the same axis: under ZeRO the batch (or the edges) and a dim of a parameter or its "
    "gradient. partir gives it to the one that was decided first, the batch; parameters are gathered, gradients scattered. "
    "Shardy knows no order of decisions and gave it to the other: activations move instead.",
    "unreduced": "partir leaves a sum unreduced and reduces it later, where several sums have become one or there is less to "
    "sum. "
    "Shardy's propagation has no such state: the result of the op is summed, whole or as a later op wants it cut.",
    "ended": "A tactic ended a dimension class here (`Cut`): the experts' before their gates, the batch's around a decoding "
    "cache. Shardy is told the shardings of arguments and results only, and takes the axis further, forwards and backwards.",
    "view": "A broadcast is no value of its own for partir: its source is brought to what the op that reads it wants, and the "
    "rest is made there. Shardy lays the broadcast. The ops that read it lie alike.",
    "uneven": "Shardy cuts a dim whose size does not divide by the axis, and leaves the padding to XLA. partir never does.",
    "closed": "partir's rule of the op keeps the dim whole (a window slides along it). Shardy's cuts it, and leaves it to XLA "
    "to exchange what lies across the edges.",
    "no rule": "Shardy has no rule for the op (those of `chlo`) and does not see through it. partir has one.",
    "inner": "The cut is within a dim: along the inner part of a product like heads x width, which no PartitionSpec can say. "
    "partir slices the argument first thing inside; Shardy is told of an argument that is whole.",
}
UNEXPLAINED = "unexplained"

Lies = tuple[Axes, ...]
"""The axes of each dim, major first, as Shardy says them."""


@dataclass(frozen=True)
class Difference:
    """A value that lies otherwise, `ours` and `theirs` as text; `line` is the source line of the op that makes it.

    It `follows` if another value, which it is computed from or which is computed from it, differs for this reason.
    """

    value: str
    op: str
    ours: str
    theirs: str
    reason: str
    follows: bool
    line: str


class Why(NamedTuple):
    reason: str
    follows: bool = False


@dataclass(frozen=True)
class Comparison:
    """`same` values lie alike, `cut` of them over at least one axis; `free` ones are not compared: constants, and what is
    computed from them alone, are made again wherever they are read."""

    same: int
    cut: int
    free: int
    differences: tuple[Difference, ...]


def compare(part: partir.Partitioned) -> Comparison:
    """Every value that an op of a partitioned program makes, ours beside Shardy's."""
    return _Comparing(part).run()


def propagated(part: partir.Partitioned) -> tuple[dict[SSAValue, Lies], set[Operation]]:
    """How every argument and result of an op lies as Shardy propagates it, and the ops that it has no rule for."""
    module = to_shardy(part.plan)
    ours = [op for op in part.program.main.walk() if not isinstance(op, TagOp)][1:]
    copies = [op for op in module.walk() if op.name not in ("builtin.module", "sdy.mesh", "func.func")]
    for number, (op, copy) in enumerate(zip(ours, copies, strict=True)):
        assert op.name == copy.name
        copy.attributes.pop(OpShardingRuleAttr.KEY, None)
        copy.attributes[NUMBER] = IntegerAttr(number, i64)
    lies: dict[SSAValue, Lies] = {}
    ruled: set[Operation] = set()

    def place(op: Any) -> Any:
        if op.name == "func.func":
            for argument, attributes in zip(part.program.body.args, op.attributes["arg_attrs"], strict=True):
                lies[argument] = _axes(_sharding(attributes), argument)
        elif NUMBER in op.attributes:
            per_value = _sharding(op.attributes)
            for k, result in enumerate(ours[op.attributes[NUMBER].value].results):
                lies[result] = _axes(per_value.shardings[k] if per_value is not None else None, result)
        return ir.WalkResult.ADVANCE

    def rule(op: Any) -> Any:
        if NUMBER in op.attributes and OpShardingRuleAttr.KEY in op.attributes:
            ruled.add(ours[op.attributes[NUMBER].value])
        return ir.WalkResult.ADVANCE

    text = to_generic(module)
    with mlir.make_ir_context():
        for passes, visit in ((PROPAGATE, place), (POPULATE, rule)):
            read = ir.Module.parse(text)
            passmanager.PassManager.parse(passes).run(read.operation)
            read.operation.walk(visit)
    return lies, set(ours) - ruled


def _sharding(attributes: Any) -> Any:
    return parse_attribute(str(attributes["sdy.sharding"])) if "sdy.sharding" in attributes else None


def _axes(sharding: Any, value: SSAValue) -> Lies:
    """The axes of each dim; part of an axis counts as another axis, with a name that says which part."""
    if sharding is None:
        return ((),) * len(shape_of(value.type))
    return tuple(
        tuple(f"{axis.name}:({axis.pre_size}){axis.size}" if axis.is_part else axis.name for axis in dim.axes)
        for dim in sharding.dims
    )


class _Comparing:
    def __init__(self, part: partir.Partitioned) -> None:
        self.plan = part.plan
        self.assignment = part.plan.assignment
        self.structure = self.assignment.structure
        self.tables, self.atoms = self.structure.tables, self.structure.atoms
        self.theirs, self.unruled = propagated(part)
        self.sums = self.unreduced()
        self.known: dict[tuple[int, str], Why | None] = {}

    def run(self) -> Comparison:
        same = cut = free = 0
        found: list[Difference] = []
        for value, number in self.tables.index_of.items():
            if isinstance(value.owner, Block):
                continue  # given, or as the result of the loop lies
            if self.tables.view_of(value) is None:
                free += 1
                continue
            axis = next((a for a in self.assignment.mesh.names if self.differs(number, a)), None)
            if axis is None:
                same += 1
                cut += any(self.lies(number))
            else:
                found.append(self.difference(number, value.owner, self.why(number, axis) or Why(UNEXPLAINED)))
        return Comparison(same, cut, free, tuple(found))

    def unreduced(self) -> list[frozenset[str]]:
        """The axes over which each value is still to be summed: what its op leaves or lets through, and the plan keeps."""
        propagation = Propagation(self.assignment)
        passes = unreduced.decide(self.assignment, *propagation.tentative(propagation.claimed()))
        found = [frozenset[str]()] * len(self.tables.values)
        for position, row in enumerate(self.tables.rows):
            sums = frozenset(propagation.own_sums(position, row, self.plan.rows[position].factor_axes))
            for slot, view, _, _ in self.tables.reads[position]:
                use = self.plan.uses.get((position, slot))
                sums |= found[view.source].difference(use[3] if use is not None else ())
            for result in row.results:
                found[result] = sums & passes.keep.get(result, frozenset())
            if position in passes.carries:
                found[row.results[1]] = frozenset(passes.carries[position])
        return found

    # ---- how a value lies

    def lies(self, value: int) -> Lies:
        """How Shardy lays a value: a tag as what it is on, what a region is given as the result of its op."""
        ssa = self.tables.values[value]
        while isinstance(ssa.owner, TagOp):
            ssa = ssa.owner.operands[0]
        if isinstance(ssa.owner, Block) and ssa not in self.theirs:
            op = ssa.owner.parent_op()
            assert op is not None
            ssa = op.results[ssa.index]
        return self.theirs[ssa]

    def differs(self, value: int, axis: str) -> bool:
        """Whether a value has an axis on another dim, in another order or part of it, or is unreduced. Dims that a broadcast
        adds are made where they are read, and not compared."""
        view = self.tables.view_of(self.tables.values[value])
        if view is None:
            return False
        if axis in self.sums[view.source]:
            return True
        layout = self.plan.layouts[view.source]
        for source, theirs in zip(view.dims, self.lies(value), strict=True):
            ours = tuple(a for _, axes in layout[source] for a in axes) if source >= 0 else theirs
            if _upto(ours, axis) != _upto(theirs, axis) or (
                source >= 0 and any(axis in axes for _, axes in layout[source][1:])
            ):
                return True
        return False

    def difference(self, value: int, op: Operation, why: Why) -> Difference:
        view = self.tables.view_of(self.tables.values[value])
        assert view is not None
        layout = self.plan.layouts[view.source]
        own = ["*" if d < 0 else "/".join("+".join(axes) or "-" for _, axes in layout[d]) for d in view.dims]
        sums = "".join(f" sum over {axis}" for axis in sorted(self.sums[view.source]))
        theirs = ["+".join(axes) or "-" for axes in self.lies(value)]
        name, line = self.structure.addresses.names[value], origin_of(op).source.data
        return Difference(name, op.name, f"[{', '.join(own)}]{sums}", f"[{', '.join(theirs)}]", *why, line)

    # ---- why

    def why(self, value: int, axis: str) -> Why | None:
        """Why a value that differs on an axis does; None where no rule says, or the value is being asked already."""
        key = value, axis
        if key in self.known:
            return self.known[key]
        self.known[key] = None
        found = self.known[key] = self.of_itself(value, axis) or self.of_its_op(value, axis)
        if found is None:
            del self.known[key]  # another way to ask may find it
        return found

    def of_itself(self, value: int, axis: str) -> Why | None:
        """What shows at the value alone."""
        view = self.tables.view_of(self.tables.values[value])
        assert view is not None
        layout = self.plan.layouts[view.source]
        if axis in self.sums[view.source]:
            return Why("unreduced")
        if any(axis in axes for segments in layout for _, axes in segments[1:]):
            return Why("inner")
        for size, axes in zip(self.tables.shapes[value], self.lies(value), strict=True):
            if axis in axes and size % math.prod(self.assignment.mesh.shape.get(a, 1) for a in axes):
                return Why("uneven")
        return None

    def of_its_op(self, value: int, axis: str) -> Why | None:
        """What shows at the op that makes it: which of its factors have the axis with us, and which as Shardy lays its ends."""
        if value in self.tables.views:
            source = self.tables.views[value].source
            found = self.of_one([source], axis) or self.of_one(self.readers(value), axis)
            return found or (None if self.differs(source, axis) else Why("view"))
        position = self.tables.producer[value]
        if position < 0:
            return None
        row = self.tables.rows[position]
        own = {factor for factor, axes in enumerate(self.plan.rows[position].factor_axes) if axis in axes}
        theirs = self.factors(position, row, axis)
        standing = {self.standing(position, factor, axis) for factor in theirs - own}
        if "claimed" in standing and own:
            return Why("meeting")
        if "ended" in standing:
            return Why("ended")
        if (found := self.of_one([view.source for view in row.operands if view is not None], axis)) is not None:
            return found
        if standing == {"closed"}:
            return Why("closed")
        if row.op in self.unruled and own:
            return Why("no rule")
        return self.of_one((made for result in row.results for made in self.readers(result)), axis)

    def of_one(self, values: Iterable[int], axis: str) -> Why | None:
        """Why one of the values differs on the axis, and therefore what follows it."""
        found = next((why for v in values if self.differs(v, axis) and (why := self.why(v, axis)) is not None), None)
        return None if found is None else Why(found.reason, follows=True)

    def readers(self, value: int) -> Iterator[int]:
        """What is made of a value by the ops that read it."""
        for use in self.tables.values[value].uses:
            results = use.operation.results
            for result in (results[use.index],) if use.operation.name == "stablehlo.while" else results:
                yield self.tables.index_of[result]

    def factors(self, position: int, row: OpRow, axis: str) -> set[int]:
        """The sub-factors of a row that have an axis as Shardy lays what the row reads and makes."""
        shape = self.atoms.shapes[position]
        operands = [row.op.operands[row.index]] if row.kind == "carry" else row.op.operands
        ends = [(slot, self.tables.index_of[v]) for slot, v in enumerate(operands) if row.operands[slot] is not None]
        ends += [(shape.operand_count + k, result) for k, result in enumerate(row.results)]
        return {
            pieces[0]
            for slot, value in ends
            for pieces, axes in zip(shape.slots[slot], self.lies(value), strict=True)
            if pieces and axis in axes
        }

    def standing(self, position: int, factor: int, axis: str) -> str:
        """What we know of a factor on an axis: `claimed`; `ended`, if it would be claimed but for a `Cut`; `closed`."""
        node = self.atoms.node_of_factor(self.atoms.factor_id(position, factor))
        class_ = int(self.assignment.classes.of_node[node])
        if class_ < 0:
            return "closed"
        if self.assignment.claims.order[axis][class_] != NEVER:
            return "claimed" if self.assignment.claims.divides[axis][class_] else "undivided"
        return "ended" if int(self.structure.classes().of_node[node]) in self.uncut(axis) else "unclaimed"

    def uncut(self, axis: str) -> set[int]:
        """The classes that would be claimed on an axis if nothing were cut off them."""
        plain = type(self.assignment)(self.structure, self.assignment.mesh)
        find = self.structure.addresses.find
        tiles = [a for a in self.assignment.actions if isinstance(a, Tile) and a.axis == axis]
        found = (plain.class_of(find(a.value), plain.dim_of(find(a.value), a.dim)) for a in tiles)
        return {class_ for class_ in found if class_ is not None}


def _upto(axes: Axes, axis: str) -> tuple[str, ...] | None:
    """The axes of a dim up to one of them, parts of it included; None where it has no part in the dim."""
    place = next((k for k, own in enumerate(axes) if own == axis or own.startswith(f"{axis}:")), None)
    return None if place is None else axes[: place + 1]

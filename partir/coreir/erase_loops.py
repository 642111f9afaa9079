"""Turns Core IR back into the program without loops: each loop nest becomes the one op on global values that it was made of."""

from __future__ import annotations

from dataclasses import dataclass

from xdsl.dialects.builtin import DictionaryAttr, ModuleOp
from xdsl.dialects.func import FuncOp
from xdsl.ir import Attribute, Block, Operation, SSAValue
from xdsl_jax.dialects.stablehlo.data_movement_ops import GatherOp, ScatterOp

from partir.collector import paused
from partir.coreir import boundary
from partir.coreir.copier import Copier, copied
from partir.coreir.materialise import PROPERTIES
from partir.dialect.core import CoordinateOp, LoopOp, SliceOp, YieldOp
from partir.dialect.sdy import MeshOp, OpShardingRuleAttr
from partir.errors import IRError, error_text
from partir.frontend.rules import standard_rule
from partir.program import Program, origin_of
from partir.sharding.table_builder import CONTROL

AT_OWNER = frozenset({"stablehlo.dynamic_slice", "stablehlo.dynamic_update_slice"})
"""Ops at a run-time index. If the dim that they index is tiled, their loop body has further ops that localise the index."""


@dataclass(frozen=True, eq=False)
class Erased:
    """A program without loops: `loops` has the outermost loop that each op stood in (if any), `values` maps the module's values
    to the program's."""

    program: Program
    loops: dict[Operation, LoopOp]
    values: dict[SSAValue, SSAValue]


def erase_loops(module: ModuleOp) -> Erased:
    """The program of a Core IR module without its loops. The module is left unchanged.

    before   %y = loop "data"=4 [tile<0>] (%i) { %s = slice %x[%i] tile<0> ; %t = tanh %s ; yield %t }
    after    %y = tanh %x

    The tiles of slices are ignored here; `compare` checks them. Raises IRError for a loop that does not stand around one op,
    and for a module that is not Core IR.
    """
    main = boundary.main_of(module)
    rest = [op for op in module.body.block.ops if op is not main and not isinstance(op, MeshOp)]
    if rest:
        raise IRError(
            error_text(f"the module holds more than @main and a mesh: {rest[0].name}", hint="inline the calls of @main first")
        )
    name = module.sym_name.data if module.sym_name is not None else ""
    with paused():
        return _Eraser(main).run(name)


class _Eraser:
    """One run of `erase_loops`. `shared` makes equal attributes one object."""

    def __init__(self, main: FuncOp) -> None:
        self.main = main
        self.signature = boundary.signature_of(main)
        self.copier = Copier(self.signature, main.body.blocks[0].args)
        self.loops: dict[Operation, LoopOp] = {}
        self.shared: dict[Attribute, Attribute] = {}

    def run(self, name: str) -> Erased:
        self.ops(self.main.body.blocks[0])
        module = boundary.module_of(name, self.signature, None, self.copier.block)
        return Erased(Program(module, self.signature, name), self.loops, self.copier.values)

    def ops(self, block: Block) -> None:
        """Copy the ops of a block and of the control flow in it, each loop nest as the one op that it was made of."""
        for op in block.ops:
            if isinstance(op, LoopOp):
                self.loops[self.nest(op)] = op
            elif op.name in CONTROL and op.regions:
                self.copier.copy_control(op, self.ops)
            elif op.name.startswith("spmd.") or isinstance(op, SliceOp | CoordinateOp):
                raise IRError(error_text(f"{op.name} stands where no Core IR has it", where=where_of(op)))
            else:
                self.complete(self.copier.copy(op))

    def complete(self, op: Operation) -> None:
        """Do for an op of hand-written text what the frontend does: add its sharding rule, make equal attributes one object.

        Memo tables of rules, plans and loops find attributes by `id`.
        """
        rule = op.attributes.get(OpShardingRuleAttr.KEY) or standard_rule(op)
        if rule is not None:
            op.attributes[OpShardingRuleAttr.KEY] = self.share(rule)
            op.properties = {name: self.share(attr) for name, attr in op.properties.items()}

    def share(self, attribute: Attribute) -> Attribute:
        """The attribute, or the first one that equals it."""
        return self.shared.setdefault(attribute, attribute)

    def nest(self, outermost: LoopOp) -> Operation:
        """Write the op that a loop nest is made of, on global values and with the properties of the global op."""
        reading = _Nest(outermost)
        op = reading.op
        values = self.copier.values
        stored = outermost.attributes.get(PROPERTIES)
        attributes = dict(op.attributes)
        if (rule := outermost.attributes.get(OpShardingRuleAttr.KEY)) is not None:
            attributes[OpShardingRuleAttr.KEY] = rule
        new = type(op).create(
            operands=[values[reading.source(operand)] for operand in op.operands],
            result_types=list(outermost.result_types),
            properties=dict(op.properties) | (dict(stored.data) if isinstance(stored, DictionaryAttr) else {}),
            attributes=attributes,
            regions=[copied(region, values) for region in op.regions],
        )
        self.complete(new)
        self.copier.add(new, outermost.results)
        return new


class _Nest:
    """Nested loops, read from the outermost to the one op in the innermost body."""

    def __init__(self, outermost: LoopOp) -> None:
        self.loops: list[LoopOp] = []
        self.inside: dict[SSAValue, SSAValue | None] = {}
        """For each value made inside: the outer value that it is (part of); None if made of constants and coordinates alone."""
        inner: LoopOp | None = outermost
        while inner is not None:
            self.loops.append(inner)
            inner = self.enter(inner)
        self.op = self.principal()

    def enter(self, loop: LoopOp) -> LoopOp | None:
        """Record the slices of a loop's body. Returns the loop inside it, if there is one; it must then be all the rest."""
        rest: list[Operation] = []
        for op in loop.body.block.ops:
            if isinstance(op, SliceOp):
                self.inside[op.results[0]] = self.source(op.operands[0])
            elif isinstance(op, CoordinateOp):
                self.inside[op.results[0]] = None
            elif not isinstance(op, YieldOp):
                rest.append(op)
        if not any(isinstance(op, LoopOp) for op in rest):
            return None
        (only, *more) = rest
        if more or not isinstance(only, LoopOp):
            raise self.refuse("a loop around another holds nothing else but slices")
        self.check_yield(loop, only)
        return only

    def principal(self) -> Operation:
        """The op that the loops stand around. Other ops in the innermost body only make local indices and masks for it."""
        innermost = self.loops[-1]
        last = innermost.body.block.last_op
        ops = [op for op in innermost.body.block.ops if not isinstance(op, SliceOp | CoordinateOp) and op is not last]
        if len(ops) == 1:
            self.check_yield(innermost, ops[0])
            return ops[0]
        found = [op for op in ops if isinstance(op, GatherOp | ScatterOp) or op.name in AT_OWNER]
        if len(found) != 1:
            raise self.refuse(f"its innermost body has {len(ops)} ops")
        for op in ops:
            if op is found[0]:
                break
            made = {source: None for v in op.operands if (source := self.source_or_none(v)) is not None}
            if len(made) > 1:
                raise self.refuse(f"{op.name} in it combines values")
            source = next(iter(made), None)
            self.inside.update((result, source) for result in op.results)
        return found[0]

    def source(self, value: SSAValue) -> SSAValue:
        """The value outside the loops that an operand is, or is a slice of."""
        found = self.source_or_none(value)
        if found is None:
            raise self.refuse("it reads a constant that is made inside it")
        return found

    def source_or_none(self, value: SSAValue) -> SSAValue | None:
        return self.inside.get(value, value)

    def check_yield(self, loop: LoopOp, op: Operation) -> None:
        if tuple(loop.yielded) != tuple(op.results):
            raise self.refuse(f"a loop in it does not yield the results of {op.name}")

    def refuse(self, why: str) -> IRError:
        return IRError(
            error_text(
                "cannot read a loop as one op that is tiled",
                where=where_of(self.loops[0]),
                why=why,
                hint="one op to a nest of loops, as partir writes them",
            )
        )


def where_of(op: Operation) -> str:
    """An op's name, result types, scope and source line, for a message."""
    origin = next((o for inner in op.walk() if (o := origin_of(inner)).scope.data or o.source.data), None)
    at = f" from {origin.scope.data or 'main'} ({origin.source.data})" if origin is not None else ""
    return f"{op.name} : {', '.join(map(str, op.result_types))}{at}"

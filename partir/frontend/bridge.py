"""Imports an MLIR module into xDSL, op by op through jaxlib's bindings, without printing and parsing the module as text.

Calls of private functions are inlined, so that a program is one block. Every op keeps its scope, phase and source line, and
gets a sharding rule. Large literals become arguments.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from jax.extend.mlir import ir, passmanager
from xdsl.dialects.builtin import ModuleOp, StringAttr, UnregisteredOp
from xdsl.dialects.func import FuncOp, ReturnOp
from xdsl.ir import Attribute, Block, Operation, Region, SSAValue

from partir.collector import paused
from partir.dialect.constants import dense
from partir.dialect.core import OriginAttr, TagOp
from partir.dialect.kinds import CALLED
from partir.dialect.sdy import MeshAttr, OpShardingRuleAttr, ShardingConstraintOp, TensorShardingAttr
from partir.dialect.text import context, parse_attribute
from partir.frontend.foreign import Meshes, Named, Renumbering
from partir.frontend.marks import CONSTRAIN, TAG
from partir.frontend.normalise import exchange, normalised
from partir.frontend.rules import rule_for
from partir.frontend.scopes import Origins
from partir.mesh import Mesh

LARGE = 1024
"""Literals of more elements than this become arguments, unless all their elements are equal (a splat)."""

CALLS = {"func.call": "callee", "stablehlo.composite": "decomposition"}
"""Ops that are replaced by the body of a private function, and the attribute of each that names the function."""

_SYMBOL = re.compile(r"@([\w.$-]+)")
_GROUP_AXES = re.compile(r"^#stablehlo.replica_group_mesh_axes<mesh = @(\w+), axes = \[(.*)\]>$")

PASSES = "builtin.module(canonicalize,cse,func.func(sdy-populate-op-sharding-rules))"
PLACEMENTS = frozenset({"sdy.sharding", "mhlo.sharding"})
"""Attributes by which JAX places an op on a device (a host callback, for example). They are dropped: partir decides this."""

RULE = OpShardingRuleAttr.KEY
ORIGIN = OriginAttr.KEY


@dataclass
class Bridged:
    """An imported program: the `module`, the values (`constants`) of the literals that became its last arguments, in order, and
    whether the function names a mesh other than the one to partition over."""

    module: ModuleOp
    constants: list[np.ndarray[Any, Any]] = field(default_factory=list[Any])
    has_other_meshes: bool = False


@paused()
def bridge(module: Any, mesh: Mesh | None = None, named: Named | None = None) -> Bridged:
    """Import an MLIR module (a `jax.stages.Lowered.compiler_ir()`) and leave the original unchanged.

    Shardings over meshes that the function itself names (`named`) are translated to the axes of `mesh`; without `mesh` they
    stay as they are.
    """
    with module.context:
        clone = module.operation.clone()
        passmanager.PassManager.parse(PASSES).run(clone)
        return _Bridge(clone, Meshes(mesh, named or Named())).run()


class _Bridge:
    """One import: the module's private functions and meshes, and memo tables.

    MLIR attributes and types are uniqued, so that each is parsed once and the xDSL attributes can be told apart by identity,
    which repeated layers are found by. `renumbering` is set while the body of a `shard_map` is copied.
    """

    def __init__(self, module: Any, meshes: Meshes) -> None:
        self.functions: dict[str, Any] = {}
        self.meshes = meshes
        self.renumbering: Renumbering | None = None
        for op in module.regions[0].blocks[0].operations:
            op = op.operation
            if op.name == "sdy.mesh":
                attr = parse_attribute(str(op.attributes["mesh"]))
                assert isinstance(attr, MeshAttr)
                self.meshes.add(ir.StringAttr(op.attributes["sym_name"]).value, attr)
            if op.name == "func.func":
                self.functions[ir.StringAttr(op.attributes["sym_name"]).value] = op
        self.origins = Origins()
        self.attributes: dict[Any, Attribute] = {}
        self.types: dict[Any, Attribute] = {}
        self.classes: dict[str, tuple[type[Operation], frozenset[str]]] = {}
        self.known = context()
        self.entry = Block()
        self.literals: dict[Any, SSAValue] = {}
        self.constants: list[np.ndarray[Any, Any]] = []

    def run(self) -> Bridged:
        main = self.functions["main"]
        body = main.regions[0].blocks[0]
        self.entry = Block(arg_types=[self.type(a.type) for a in body.arguments])
        values: dict[Any, SSAValue] = dict(zip(body.arguments, self.entry.args, strict=True))
        returned = self.block(body, values, self.entry, "")
        self.entry.add_op(ReturnOp(*returned))
        types = [a.type for a in self.entry.args], [v.type for v in returned]
        function = FuncOp("main", types, Region(self.entry), "public")
        exchange(function)
        return Bridged(ModuleOp([function]), self.constants, self.meshes.has_others)

    def block(self, body: Any, values: dict[Any, SSAValue], into: Block, prefix: str) -> list[SSAValue]:
        """Copy the ops of the MLIR block `body` to the end of `into`; returns the operands of its terminator.

        `values` maps MLIR values to xDSL values and is extended; `prefix` is the location name of the inlined call.
        """
        for op in body.operations:
            op = op.operation
            name = op.name
            if name in ("func.return", "sdy.return"):
                if name == "sdy.return":
                    into.add_op(self.op(op, name, values, prefix))
                return [values[v] for v in op.operands]
            if name in CALLS:
                self.call(op, values, into, prefix)
                continue
            if name == "sdy.sharding_constraint" and self.renumbering is not None:
                values[op.results[0]] = values[op.operands[0]]
                self.renumbering.note(parse_attribute(str(op.attributes["sharding"])))
                continue
            if name == "stablehlo.constant" and (literal := self.literal(op)) is not None:
                values[op.results[0]] = literal
                continue
            made, results = normalised(self.op(op, name, values, prefix))
            if name == "stablehlo.partition_id" and self.renumbering is not None:
                made = self.renumbering.number(made[0])
                results = made[-1].results
            for new in made:
                into.add_op(new)
            for old, result in zip(op.results, results, strict=True):
                values[old] = result
        return []

    def call(self, op: Any, values: dict[Any, SSAValue], into: Block, prefix: str) -> None:
        """Inline a call. Scopes inside the callee continue the scope of the call."""
        callee = self.functions[ir.FlatSymbolRefAttr(op.attributes[CALLS[op.name]]).value]
        inner = callee.regions[0].blocks[0]
        scope = dict(zip(inner.arguments, [values[v] for v in op.operands], strict=True))
        name = self.origins.name(op.location)
        path = f"{prefix}/{name}" if prefix and name else name or prefix
        returned = self.block(inner, scope, into, path)
        values.update(zip(op.results, returned, strict=True))

    def op(self, op: Any, name: str, values: dict[Any, SSAValue], prefix: str) -> Operation:
        """Copy one op with its regions, and give it its sharding rule and its origin."""
        class_, names = self.class_of(name)
        properties: dict[str, Attribute] = {}
        attributes: dict[str, Attribute] = {}
        for key, attr in _attributes(op).items():
            if key in PLACEMENTS:
                continue
            found = self.attributes.get(attr)
            if found is None:
                found = self.attributes[attr] = self.groups(str(attr)) or parse_attribute(str(attr))
            (properties if key in names else attributes)[key] = found
        operands = [values[v] for v in op.operands]
        results = [self.type(r.type) for r in op.results]
        outside = self.renumbering
        if outside is not None:
            properties = {key: outside.attribute(key, attr) for key, attr in properties.items()}
        elif name == "sdy.manual_computation":
            self.renumbering = self.meshes.manual(properties)
        elif name == "sdy.sharding_constraint":
            sharding = properties["sharding"]
            assert isinstance(sharding, TensorShardingAttr)
            properties["sharding"], refused = self.meshes.constraint(sharding)
            attributes.update({} if refused is None else {ShardingConstraintOp.REFUSED: refused})
        regions = [self.region(region, values, prefix) for region in op.regions]
        if outside is None and self.renumbering is not None:
            attributes.update(self.renumbering.refused)
        self.renumbering = outside
        new = class_.create(
            operands=operands, result_types=results, properties=properties, attributes=attributes, regions=regions
        )
        if name == "stablehlo.custom_call":
            if called := self.called(str(properties.get("called_computations", ""))):
                new.attributes[CALLED] = StringAttr(called)
            new = self.mark(new)
        rule = rule_for(new)
        if rule is not None:
            new.attributes[RULE] = rule
        new.attributes[ORIGIN] = self.origins.of(op.location, prefix)
        return new

    def groups(self, text: str) -> Attribute | None:
        """Replica groups as lists of device numbers, for an attribute that gives them as mesh axes (newer JAX), else None."""
        found = _GROUP_AXES.match(text)
        if found is None:
            return None
        mesh = self.meshes.by_symbol[found.group(1)]
        return dense(np.array(mesh.replica_groups(re.findall(r'name = "([^"]*)"', found.group(2))), dtype=np.int64))

    def called(self, text: str) -> str:
        """The private functions that `text` refers to as `@name`, and all those that they refer to, as MLIR text."""
        found: dict[str, str] = {}
        queue = _SYMBOL.findall(text)
        while queue:
            name = queue.pop()
            if name in self.functions and name not in found:
                found[name] = str(self.functions[name])
                queue += _SYMBOL.findall(found[name])
        return "\n".join(found.values())

    def region(self, region: Any, values: dict[Any, SSAValue], prefix: str) -> Region:
        blocks: list[Block] = []
        for body in region.blocks:
            block = Block(arg_types=[self.type(a.type) for a in body.arguments])
            inner = dict(values) if len(region.blocks) > 1 else values
            inner.update(zip(body.arguments, block.args, strict=True))
            self.block(body, inner, block, prefix)
            blocks.append(block)
        return Region(blocks)

    def mark(self, op: Operation) -> Operation:
        """Turn the custom call of a `partir.tag` or `partir.constrain` into a `TagOp` or `ShardingConstraintOp`."""
        target, payload = op.properties.get("call_target_name"), op.properties.get("backend_config")
        if not isinstance(target, StringAttr) or not isinstance(payload, StringAttr):
            return op
        if target.data == TAG:
            return TagOp.create(
                operands=list(op.operands),
                result_types=[r.type for r in op.results],
                properties={"label": StringAttr(json.loads(payload.data))},
            )
        if target.data == CONSTRAIN:
            return ShardingConstraintOp.create(
                operands=list(op.operands),
                result_types=[r.type for r in op.results],
                properties={"sharding": TensorShardingAttr.of("mesh", json.loads(payload.data))},
            )
        return op

    def literal(self, op: Any) -> SSAValue | None:
        """Make a large literal an argument of the program; None for any other constant, which stays an op.

        Printed, a literal takes about twice its size in memory, each time a module is printed or hashed.
        """
        count = 1
        for size in ir.ShapedType(op.results[0].type).shape:
            count *= size
        if count <= LARGE:
            return None
        attr = _attributes(op)["value"]
        found = self.literals.get(attr)
        if found is not None:
            return found
        if not isinstance(attr, ir.DenseElementsAttr) or attr.is_splat:
            return None
        try:
            value = np.array(attr)
        except (TypeError, ValueError):
            return None  # an element type numpy cannot show: it stays a literal
        new = self.entry.insert_arg(self.type(op.results[0].type), len(self.entry.args))
        self.literals[attr] = new
        self.constants.append(value)
        return new

    def type(self, type_: Any) -> Attribute:
        found = self.types.get(type_)
        if found is None:
            found = self.types[type_] = parse_attribute(str(type_))
        return found

    def class_of(self, name: str) -> tuple[type[Operation], frozenset[str]]:
        """The xDSL class of an op, and the names that are its properties."""
        found = self.classes.get(name)
        if found is None:
            class_ = self.known.get_optional_op(name) or UnregisteredOp.with_name(name)
            definition = getattr(class_, "get_irdl_definition", None)
            names = frozenset(definition().properties) if definition is not None else frozenset[str]()
            found = self.classes[name] = (class_, names)
        return found


def _attributes(op: Any) -> dict[str, Any]:
    """The attributes of an op by name. The bindings cannot return a complex literal: it is cut out of the op's text."""
    try:
        return dict(op.attributes.items())
    except TypeError:
        text = op.get_asm(print_generic_op_form=True)
        found = re.search(r"<\{value = (dense<.*> : tensor<.*>)\}>", text)
        if found is None:
            raise
        return {"value": found.group(1)}

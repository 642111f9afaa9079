"""Passes that decide and lower on IR text: `partir opt FILE -p 'partir-tile{value=x dim=0 axis=data},partir-to-spmd'`.

A pass that decides reads the actions that a module carries, adds one, and writes the module again, so that passes decide by the
same actions as tactics and searchers. The fields of a pass are its options.
"""

from __future__ import annotations

from dataclasses import dataclass

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp
from xdsl.passes import ModulePass

from partir.coreir import boundary
from partir.coreir.erase_loops import erase_loops
from partir.coreir.materialise import materialise
from partir.coreir.read import read_core
from partir.coreir.unroll import unroll
from partir.dialect.core import ActionsAttr, LoopOp
from partir.dialect.sdy import MeshOp
from partir.errors import IRError, MeshError, NoEffectError, TilingError, error_text
from partir.lowering.to_spmd import to_spmd
from partir.mesh import Mesh
from partir.sharding import plan
from partir.sharding.actions import Action, Cut, GatherOnce, Pin, Prefer, ReduceIn, Replicate, Tile


@dataclass(frozen=True)
class MeshPass(ModulePass):
    """Set the mesh of a module that has no actions yet: `partir-mesh{axes="data=4,model=2"}`.

    before   func.func @main(...)
    after    sdy.mesh @mesh = <["data"=4, "model"=2]>
             func.func @main(...)
    """

    name = "partir-mesh"

    axes: str

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        mesh = _mesh(self.axes)
        if any(isinstance(inner, LoopOp) for inner in op.walk()):
            raise IRError(
                error_text("the module has loops over its mesh already", hint="partir-erase-loops before partir-mesh")
            )
        if boundary.actions_of(op):
            raise IRError(
                error_text("the module has actions on its mesh already", hint="partir-erase-loops before partir-mesh")
            )
        op.attributes.pop(ActionsAttr.KEY, None)
        block = op.body.block
        for old in [old for old in block.ops if isinstance(old, MeshOp)]:
            block.erase_op(old)
        first = block.first_op
        if first is None:
            block.add_op(boundary.mesh_op(mesh))
        else:
            block.insert_op_before(boundary.mesh_op(mesh), first)


@dataclass(frozen=True)
class TilePass(ModulePass):
    """Shard a dim of a value, and with it its dimension class, over an axis: `partir-tile{value=x dim=0 axis=data}`.

    before   %y = tanh %x
    after    %y = loop "data"=4 [tile<0>] (%i) { %s = slice %x[%i] tile<0> ; %t = tanh %s ; yield %t }
    """

    name = "partir-tile"

    value: str
    dim: int
    axis: str

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        _act(op, Tile(self.value, self.dim, self.axis))


@dataclass(frozen=True)
class ReplicatePass(ModulePass):
    """Keep an argument replicated over an axis, whatever later passes do: `partir-replicate{value="params/w" axis=data}`."""

    name = "partir-replicate"

    value: str
    axis: str

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        _act(op, Replicate(self.value, self.axis))


@dataclass(frozen=True)
class PinPass(ModulePass):
    """Shard a dim of an argument over exactly these axes, however its uses are sharded:
    `partir-pin{value=x dim=0 axes="data,model"}`.
    """

    name = "partir-pin"

    value: str
    dim: int
    axes: str = ""

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        _act(op, Pin(self.value, self.dim, self.axes))


@dataclass(frozen=True)
class PreferPass(ModulePass):
    """At the ops of a scope where several classes claim an axis, give it to the class of this dim:
    `partir-prefer{scope="mlp" value=x dim=1 axis=data}`.
    """

    name = "partir-prefer"

    scope: str
    value: str
    dim: int
    axis: str

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        _act(op, Prefer(self.scope, self.value, self.dim, self.axis))


@dataclass(frozen=True)
class CutPass(ModulePass):
    """End the class of a dim at a value, so that its readers are not sharded along with it: `partir-cut{value=x dim=0}`."""

    name = "partir-cut"

    value: str
    dim: int

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        _act(op, Cut(self.value, self.dim))


@dataclass(frozen=True)
class GatherOncePass(ModulePass):
    """Gather a parameter once per step instead of once per phase: `partir-gather-once{value="params/w"}`."""

    name = "partir-gather-once"

    value: str

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        _act(op, GatherOnce(self.value))


@dataclass(frozen=True)
class ReduceInPass(ModulePass):
    """Reduce floating-point values over an axis in this dtype: `partir-reduce-in{axis=data dtype=float32}`."""

    name = "partir-reduce-in"

    axis: str
    dtype: str

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        _act(op, ReduceIn(self.axis, self.dtype))


@dataclass(frozen=True)
class ToSpmdPass(ModulePass):
    """Lower a Core IR module (or StableHLO with a mesh) to the program of one device with explicit collectives."""

    name = "partir-to-spmd"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        _replace(op, to_spmd(plan.make(read_core(op))))


@dataclass(frozen=True)
class EraseLoopsPass(ModulePass):
    """Remove loops, actions and shardings; write out argument paths and sharding rules.

    before   %y = loop "data"=4 [tile<0>] (%i) { %s = slice %x[%i] tile<0> ; %t = tanh %s ; yield %t }
    after    %y = tanh %x
    """

    name = "partir-erase-loops"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        meshes = [inner.clone() for inner in op.body.block.ops if isinstance(inner, MeshOp)]
        erased = erase_loops(op).program.module
        for mesh in meshes:
            erased.body.block.insert_op_before(mesh, boundary.main_of(erased))
        _replace(op, erased)


@dataclass(frozen=True)
class UnrollPass(ModulePass):
    """Unroll all loops into plain StableHLO that computes the same."""

    name = "partir-unroll"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        _replace(op, unroll(op))


def _act(module: ModuleOp, action: Action) -> None:
    """Add an action to a module. Raises TilingError for a tile that does not divide, NoEffectError if nothing would change."""
    before = read_core(module)
    after = before.apply(action)
    new = [str(item) for item in after.claims.undivided if item not in before.claims.undivided]
    if new:
        hint = "another dim, another axis, or a size that divides"
        raise TilingError(error_text(f"cannot do {action}", why="; ".join(new), hint=hint))
    if isinstance(action, Replicate):
        argument = after.structure.addresses.find(action.value)
        idle = argument < len(after.argument_axes) and any(action.axis in axes for axes in after.argument_axes[argument])
    else:
        idle = after.same_effect(before)
    if idle:
        raise NoEffectError(
            error_text(
                f"{action} changes nothing",
                why="what it speaks of is decided already, or not yet",
                hint="what holds a tile off (replicate) goes before it, what changes one (cut, prefer) after it",
            )
        )
    _replace(module, materialise(plan.make(after)))


def _replace(module: ModuleOp, new: ModuleOp) -> None:
    """Replace the contents, the actions and the name of a module by those of another."""
    block = new.body.detach_block(0)
    module.body.erase_block(0)
    module.body.add_block(block)
    module.attributes.pop(ActionsAttr.KEY, None)
    module.attributes.update(new.attributes)
    if new.sym_name is not None:
        module.properties["sym_name"] = new.sym_name


def _mesh(text: str) -> Mesh:
    """`data=4,model=2` as a mesh."""
    axes: list[tuple[str, int]] = []
    for entry in text.split(","):
        name, _, size = entry.partition("=")
        if not name.strip() or not size.strip().isdigit():
            raise MeshError(error_text(f'not a mesh: "{text}"', where=f'"{entry}"', hint="axes with sizes: data=4,model=2"))
        axes.append((name.strip(), int(size)))
    return Mesh(axes)

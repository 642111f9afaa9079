"""The attributes of a Core IR module: the actions it was made from; and path, role, state pair and sharding of each argument
and result of `main`.

    module attributes {partir.actions = #partir.actions<tile value="batch/x" dim=0 axis="data">} {
      func.func public @main(%x: tensor<8x16xf32> {partir.path = ["batch", "x"], sdy.sharding = #sdy.sharding<@mesh, ...>})

With them, text holds all that an `Assignment` and a `Signature` hold, and addresses (`params/mlp/w`) survive a round trip.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

from xdsl.dialects.builtin import ArrayAttr, DictionaryAttr, IntegerAttr, ModuleOp, StringAttr, TensorType, UnitAttr, i64
from xdsl.dialects.func import FuncOp, ReturnOp
from xdsl.ir import Attribute, Block, Region

from partir.dialect.constants import dtype_of
from partir.dialect.core import ActionAttr, ActionsAttr
from partir.dialect.sdy import MeshAttr, MeshOp, MeshShape, TensorShardingAttr
from partir.errors import IRError, StrategyError, error_text
from partir.mesh import Mesh
from partir.program import Leaf, Path, Role, Signature
from partir.sharding.actions import Action, Replicate, from_json, to_json
from partir.sharding.assignment import Fixed
from partir.sharding.layout import Axes, Layout, axes_of, spec_of
from partir.sharding.plan import Plan
from partir.sharding.rule import shape_of

PATH = "partir.path"
ROLE = "partir.role"
DONATED = "partir.donated"
ARGUMENT = "partir.argument"
"""On a result: the number of the argument whose next value it is."""
FIXED = "partir.fixed"
"""On a result: the sharding that the user fixed for it, as `out_shardings` does."""
SHARDING = "sdy.sharding"
MESH = "mesh"

Attributes = dict[str, Attribute]


def mesh_op(mesh: Mesh) -> MeshOp:
    """`sdy.mesh @mesh = <["data"=4, "model"=2]>`"""
    return MeshOp(MESH, MeshAttr.of(mesh))


def mesh_of(module: ModuleOp) -> Mesh:
    """The mesh of a module. Raises IRError unless it has exactly one, in the natural order of devices."""
    found = [op for op in module.body.block.ops if isinstance(op, MeshOp)]
    if len(found) != 1:
        raise IRError(
            error_text(
                f"the module has {len(found)} meshes" if found else "the module has no mesh",
                why="it takes one to know how many devices an axis has",
                hint='sdy.mesh @mesh = <["data"=4]> in the text, or the pass partir-mesh{axes="data=4"} first',
            )
        )
    attr = found[0].mesh
    if attr.device_ids:
        raise IRError(
            error_text(
                f"mesh @{found[0].sym_name.data} has device_ids",
                why="partir numbers devices along the axes, last axis innermost",
            )
        )
    return attr.mesh


def main_of(module: ModuleOp) -> FuncOp:
    """The function `main` of a module. Raises IRError where there is none, or it has no single block."""
    for op in module.body.block.ops:
        if isinstance(op, FuncOp) and op.sym_name.data == "main":
            if len(op.body.blocks) != 1 or not isinstance(op.body.blocks[0].last_op, ReturnOp):
                raise IRError(error_text("@main is not one block that ends with func.return"))
            return op
    raise IRError(error_text("the module has no function @main"))


def module_of(
    name: str,
    signature: Signature,
    mesh: Mesh | None,
    block: Block,
    shardings: tuple[Sequence[Attributes], Sequence[Attributes]] | None = None,
    actions: ActionsAttr | None = None,
) -> ModuleOp:
    """A module around the finished block of `main`, with attributes for the signature, the shardings and the actions."""
    returned = block.last_op
    assert isinstance(returned, ReturnOp)
    own = names(signature)
    if shardings is not None:
        own = tuple([a | b for a, b in zip(first, second, strict=True)] for first, second in zip(own, shardings, strict=True))
    types = [a.type for a in block.args], [v.type for v in returned.operands]
    arguments, results = (ArrayAttr([DictionaryAttr(entry) for entry in entries]) for entries in own)
    main = FuncOp("main", types, Region(block), "public", arg_attrs=arguments, res_attrs=results)
    ops = [main] if mesh is None else [mesh_op(mesh), main]
    carried = {} if actions is None else {ActionsAttr.KEY: actions}
    return ModuleOp(ops, carried, StringAttr(name) if name else None)


def names(signature: Signature) -> tuple[list[Attributes], list[Attributes]]:
    """A signature as attributes: one dictionary for each argument, and one for each result."""
    arguments: list[Attributes] = []
    for leaf in signature.arguments:
        entry: Attributes = {PATH: _path(leaf.path)}
        if leaf.role != "input":
            entry[ROLE] = StringAttr(leaf.role)
        if leaf.donated:
            entry[DONATED] = UnitAttr()
        arguments.append(entry)
    results: list[Attributes] = [{PATH: _path(leaf.path)} for leaf in signature.results]
    for argument, result in signature.state:
        results[result][ARGUMENT] = IntegerAttr(argument, i64)
    return arguments, results


def shardings(plan: Plan) -> tuple[list[Attributes], list[Attributes]]:
    """A plan's shardings as attributes of each argument and each result.

    An argument's `replicated` axes are those that a `Replicate` action keeps it replicated over.
    """
    assignment = plan.assignment
    pinned: dict[int, set[str]] = {}
    for action in assignment.actions:
        if isinstance(action, Replicate):
            pinned.setdefault(assignment.structure.addresses.find(action.value), set()).add(action.axis)
    arguments: list[Attributes] = []
    for argument, layout in enumerate(plan.arguments):
        kept = pinned.get(argument, set()).difference(axes_of(plan.entries[argument]))
        arguments.append({SHARDING: _sharding(layout, [a for a in assignment.mesh.names if a in kept])})
    results: list[Attributes] = [{SHARDING: _sharding(layout)} for layout in plan.outputs]
    for result, dims in assignment.outputs:
        results[result][FIXED] = TensorShardingAttr.of(MESH, dims)
    return arguments, results


def actions_attr(actions: Sequence[Action]) -> ActionsAttr:
    """Actions as the attribute that a Core module carries."""
    return ActionsAttr.of([ActionAttr.of(fields.pop("kind"), fields) for fields in map(to_json, actions)])


def _sharding(layout: Layout, replicated: Sequence[str] = ()) -> TensorShardingAttr:
    entries = [() if e is None else (e,) if isinstance(e, str) else e for e in spec_of(layout)]
    entries += [()] * (len(layout) - len(entries))
    return TensorShardingAttr.of(MESH, entries, replicated=replicated)


def _path(path: Path) -> ArrayAttr[StringAttr]:
    return ArrayAttr([StringAttr(level) for level in path])


# ---- reading -----------------------------------------------------------------------------------------------------------


def signature_of(main: FuncOp) -> Signature:
    """The signature that the attributes of `main` hold. An argument without a path gets its SSA name in the text, or `arg0`."""
    block = main.body.blocks[0]
    returned = block.last_op
    assert returned is not None
    arguments: list[Leaf] = []
    taken: set[Path] = set()
    for number, (value, entry) in enumerate(zip(block.args, entries(main.arg_attrs, len(block.args)), strict=True)):
        path = _read_path(entry) or (value.name_hint or f"arg{number}",)
        if path in taken:
            path = (f"arg{number}",)
        taken.add(path)
        role = entry.get(ROLE)
        arguments.append(
            Leaf(
                path,
                shape_of(value.type),
                _dtype(value.type),
                _role(role.data) if isinstance(role, StringAttr) else "input",
                DONATED in entry,
            )
        )
    results: list[Leaf] = []
    state: list[tuple[int, int]] = []
    for number, (value, entry) in enumerate(
        zip(returned.operands, entries(main.res_attrs, len(returned.operands)), strict=True)
    ):
        results.append(Leaf(_read_path(entry) or (f"result{number}",), shape_of(value.type), _dtype(value.type)))
        argument = entry.get(ARGUMENT)
        if isinstance(argument, IntegerAttr):
            number_of = argument.value.data
            if not 0 <= number_of < len(arguments) or arguments[number_of].shape != results[-1].shape:
                raise IRError(
                    error_text(
                        f"result {number} is paired with argument {number_of}",
                        why=f"there are {len(arguments)} arguments, and the two need one shape",
                    )
                )
            state.append((number_of, number))
    return Signature(tuple(arguments), tuple(results), tuple(state))


def entries(attrs: ArrayAttr[DictionaryAttr] | None, count: int) -> list[Attributes]:
    """The attributes of each argument or result."""
    return [dict(entry.data) for entry in attrs] if attrs is not None else [{} for _ in range(count)]


def actions_of(module: ModuleOp) -> tuple[Action, ...] | None:
    """The actions that a module carries; None without the attribute. Raises IRError if the attribute holds anything else."""
    attr = module.attributes.get(ActionsAttr.KEY)
    if attr is None:
        return None
    if not isinstance(attr, ActionsAttr):
        raise IRError(error_text(f"{ActionsAttr.KEY} holds no actions", where=str(attr), hint=f"#{ActionsAttr.name}<...>"))
    try:
        return tuple(from_json({**action.fields, "kind": action.kind.data}) for action in attr.actions)
    except StrategyError as error:
        raise IRError(str(error)) from None


def fixed_read(entry: Attributes, mesh: Mesh, where: str) -> Fixed | None:
    """The axes that a result's dims are fixed to (None for a dim that is left open); None for a result that is not fixed."""
    axes, _ = axes_read(entry, mesh, where, FIXED)
    attr = entry.get(FIXED)
    if axes is None or not isinstance(attr, TensorShardingAttr):
        return None
    return tuple(own if own or dim.is_closed else None for own, dim in zip(axes, attr.dims, strict=True))


def axes_read(entry: Attributes, mesh: Mesh, where: str, key: str = SHARDING) -> tuple[list[Axes] | None, Axes]:
    """The axes of each dim and the replicated axes of a sharding attribute; (None, ()) if there is no such attribute.

    Raises IRError for one that cannot be read; `where` names the argument or result in the message.
    """
    attr = entry.get(key)
    if attr is None:
        return None, ()
    if not isinstance(attr, TensorShardingAttr):
        raise IRError(error_text(f"{key} of {where} is no sharding", where=str(attr)))
    if isinstance(attr.mesh, MeshShape) and attr.mesh.axes != mesh.axes:
        raise IRError(error_text(f"{where} is sharded over another mesh than the module's", where=str(attr)))
    refs = [ref for dim in attr.dims for ref in dim.axes] + list(attr.replicated)
    if attr.unreduced or any(ref.is_part for ref in refs):
        raise IRError(
            error_text(f"cannot read the sharding of {where}", where=str(attr), why="it has unreduced axes or parts of axes")
        )
    for ref in refs:
        mesh.check(ref.name)
    return [dim.names for dim in attr.dims], tuple(ref.name for ref in attr.replicated)


def _read_path(entry: Attributes) -> Path:
    attr = entry.get(PATH)
    if not isinstance(attr, ArrayAttr):
        return ()
    levels = cast("ArrayAttr[Attribute]", attr)
    return tuple(level.data for level in levels if isinstance(level, StringAttr))


def _role(text: str) -> Role:
    if text == "state" or text == "constant" or text == "input":
        return text
    raise IRError(error_text(f'an argument has the role "{text}"', why="roles are state, input and constant"))


def _dtype(type_: Attribute) -> str:
    try:
        return dtype_of(type_).name if isinstance(type_, TensorType) else str(type_)
    except KeyError:
        return str(type_)

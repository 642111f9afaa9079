"""Plan to Shardy: the global program with shardings on arguments and results, and nothing that MLIR does not know."""

from __future__ import annotations

from xdsl.dialects.builtin import ModuleOp
from xdsl.dialects.func import FuncOp

from partir.dialect.core import TagOp
from partir.dialect.sdy import MeshAttr, MeshOp
from partir.lowering.to_spmd import shardings
from partir.sharding.plan import Plan


def to_shardy(plan: Plan) -> ModuleOp:
    """A copy of the program for other tools: its ops and their sharding rules, without tags and origins."""
    main = plan.assignment.structure.program.main.clone()
    main.properties["arg_attrs"] = shardings(plan.arguments)
    main.properties["res_attrs"] = shardings(plan.outputs)
    _without_ours(main)
    return ModuleOp([MeshOp("mesh", MeshAttr.of(plan.assignment.mesh)), main])


def _without_ours(main: FuncOp) -> None:
    for op in list(main.walk()):
        if isinstance(op, TagOp):
            op.results[0].replace_all_uses_with(op.operands[0])
            op.detach()
            op.erase()
            continue
        for name in [name for name in op.attributes if name.startswith("partir.")]:
            del op.attributes[name]

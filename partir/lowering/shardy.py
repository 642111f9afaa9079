"""Exports a plan as Shardy: the global program with shardings on its arguments and results, in dialects that MLIR knows."""

from __future__ import annotations

from xdsl.dialects.builtin import ModuleOp
from xdsl.dialects.func import FuncOp

from partir.dialect.core import TagOp
from partir.dialect.sdy import MeshAttr, MeshOp
from partir.lowering.to_spmd import shardings
from partir.sharding.plan import Plan


def to_shardy(plan: Plan) -> ModuleOp:
    """A copy of the program for other tools, with `sdy.sharding` on arguments and results.

    Ops keep their sharding rules; tags and all `partir.` attributes are removed.
    """
    main = plan.assignment.structure.program.main.clone()
    main.properties["arg_attrs"] = shardings(plan.arguments)
    main.properties["res_attrs"] = shardings(plan.outputs)
    _remove_partir(main)
    return ModuleOp([MeshOp("mesh", MeshAttr.of(plan.assignment.mesh)), main])


def _remove_partir(main: FuncOp) -> None:
    """Remove what only partir understands."""
    for op in list(main.walk()):
        if isinstance(op, TagOp):
            op.results[0].replace_all_uses_with(op.operands[0])
            op.detach()
            op.erase()
            continue
        for name in [name for name in op.attributes if name.startswith("partir.")]:
            del op.attributes[name]

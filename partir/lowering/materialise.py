"""Plan to Core IR."""

from xdsl.dialects.builtin import ModuleOp

from partir.sharding.plan import Plan


def materialise(plan: Plan) -> ModuleOp:
    """The program as Core IR."""
    raise AssertionError(plan)

"""Loops that hold more than their op - rows picked by index, operands that count once - compared with what is written now."""

from __future__ import annotations

from xdsl.ir import Operation, SSAValue

from partir.dialect.core import LoopOp
from partir.errors import IRError, word
from partir.lowering.strip import Stripped, where_of
from partir.sharding.plan import Plan


def same(a: Operation, b: Operation) -> bool:
    """Whether two ops hold the same ops, connected alike; what they read from outside is not compared."""
    number: dict[SSAValue, int] = {}
    ops = list(zip(a.walk(), b.walk(), strict=False))
    if sum(1 for _ in a.walk()) != sum(1 for _ in b.walk()):
        return False
    for left, right in ops:
        if left.name != right.name or left.properties != right.properties or left.result_types != right.result_types:
            return False
        if [number.get(v) for v in left.operands] != [number.get(v) for v in right.operands]:
            return False
        for x, y in zip(left.results, right.results, strict=True):
            number[x] = number[y] = len(number)
        for one, other in zip(left.regions, right.regions, strict=True):
            for first, second in zip(one.blocks, other.blocks, strict=True):
                if first.arg_types != second.arg_types:
                    return False
                for x, y in zip(first.args, second.args, strict=True):
                    number[x] = number[y] = len(number)
    return True


def check_intricate(plan: Plan, stripped: Stripped) -> None:
    """Raise IRError where such a loop computes something else than `plan` has it compute."""
    from partir.lowering.materialise import materialise

    if not stripped.intricate:
        return
    again = {op: made for op, made in zip(stripped.program.body.ops, _top(materialise(plan)), strict=True)}
    for op in stripped.intricate:
        made = again[op]
        if not isinstance(made, LoopOp) or not same(made, stripped.loops[op]):
            raise IRError(
                word(
                    f"the loops around {op.name} compute something else than a tiling of it",
                    where=where_of(op),
                    why="masks or indices in them are not those that partir writes",
                )
            )


def _top(module: Operation) -> list[Operation]:
    from partir.lowering.boundary import main_of

    return list(main_of(module).body.blocks[0].ops)  # type: ignore[arg-type]

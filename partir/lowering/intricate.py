"""Loops that hold more than their op - rows picked by index, operands that count once - compared with what partir writes."""

from __future__ import annotations

from collections.abc import Iterator

from xdsl.ir import Block, Operation, SSAValue

from partir.dialect.core import LoopOp
from partir.errors import IRError, word
from partir.lowering import boundary
from partir.lowering.materialise import materialise
from partir.lowering.strip import Stripped, where_of
from partir.sharding.plan import Plan
from partir.sharding.tables import CONTROL


def _ops(block: Block) -> Iterator[Operation]:
    """The ops of a block in order, those inside control flow included."""
    for op in block.ops:
        yield op
        if op.name in CONTROL:
            for region in op.regions:
                for inner in region.blocks:
                    yield from _ops(inner)


def check_intricate(plan: Plan, stripped: Stripped) -> None:
    """Raise IRError where such loops compute something else than `plan` has them compute."""
    if not stripped.intricate:
        return
    written = boundary.main_of(materialise(plan)).body.blocks[0]
    again = dict(zip(_ops(stripped.program.body), _ops(written), strict=True))
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


def same(a: Operation, b: Operation) -> bool:
    """Whether two ops hold the same ops, connected alike; what they read from outside is not compared."""
    number: dict[SSAValue, int] = {}
    left, right = list(a.walk()), list(b.walk())
    if len(left) != len(right):
        return False
    for x, y in zip(left, right, strict=True):
        if x.name != y.name or x.properties != y.properties or x.result_types != y.result_types:
            return False
        if [number.get(v) for v in x.operands] != [number.get(v) for v in y.operands]:
            return False
        inner = [(p, q) for r, s in zip(x.regions, y.regions, strict=True) for p, q in zip(r.blocks, s.blocks, strict=True)]
        if any(p.arg_types != q.arg_types for p, q in inner):
            return False
        pairs = [
            *zip(x.results, y.results, strict=True),
            *(pair for p, q in inner for pair in zip(p.args, q.args, strict=True)),
        ]
        for one, other in pairs:
            number[one] = number[other] = len(number)
    return True

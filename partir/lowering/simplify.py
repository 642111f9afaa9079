"""Rewrites on SPMD IR that merge neighbouring collectives into cheaper ones (all-reduce + slice = reduce-scatter, and so on).

The planner already produces the merged forms: a test checks that these rewrites change nothing in its output. They are of use
on SPMD text that was written by hand.
"""

from __future__ import annotations

from dataclasses import dataclass

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import Operation, SSAValue
from xdsl.passes import ModulePass
from xdsl.pattern_rewriter import (
    GreedyRewritePatternApplier,
    PatternRewriter,
    PatternRewriteWalker,
    RewritePattern,
    op_type_rewrite_pattern,
)

from partir.dialect.spmd import AllGatherOp, AllReduceOp, AllSliceOp, AllToAllOp, AxesAttr, ReduceScatterOp


def _only_use(value: SSAValue) -> bool:
    return len(list(value.uses)) == 1


def _producer(value: SSAValue) -> Operation | None:
    owner = value.owner
    return owner if isinstance(owner, Operation) else None


class ReduceThenSlice(RewritePattern):
    """All-reduce followed by a slice over some of its axes is a reduce-scatter.

    before   %s = all_reduce add %x ["data"] ; %y = all_slice %s tile<0> ["data"]
    after    %y = reduce_scatter add %x tile<0> ["data"]
    when     %s has no other use
    """

    @op_type_rewrite_pattern
    def match_and_rewrite(self, op: AllSliceOp, rewriter: PatternRewriter) -> None:
        reduce = _producer(op.x)
        if not isinstance(reduce, AllReduceOp) or not _only_use(op.x):
            return
        cut, summed = dict(op.axes.data), dict(reduce.axes.data)
        if not cut.items() <= summed.items():
            return
        scatter = ReduceScatterOp(reduce.x, reduce.kind, op.tile, op.axes)
        rest = [axis for axis in reduce.axes.data if axis[0] not in cut]
        made: list[Operation] = [scatter]
        if rest:
            made.append(AllReduceOp(scatter.result, reduce.kind, AxesAttr.of(rest)))
        rewriter.replace(op, made)
        rewriter.erase(reduce)


class GatherThenSlice(RewritePattern):
    """All-gather followed by a slice over the same axes cancels out, or is an all-to-all if another dim is sliced.

    before   %g = all_gather %x tile<0> ["data"] ; %y = all_slice %g tile<1> ["data"]
    after    %y = all_to_all %x tile<0> -> tile<1> ["data"]
    when     %g has no other use
    """

    @op_type_rewrite_pattern
    def match_and_rewrite(self, op: AllSliceOp, rewriter: PatternRewriter) -> None:
        gather = _producer(op.x)
        if not isinstance(gather, AllGatherOp) or gather.axes != op.axes:
            return
        if gather.tile == op.tile:
            rewriter.replace(op, [], [gather.x])
        elif gather.tile.position != op.tile.position and _only_use(op.x):
            rewriter.replace(op, [AllToAllOp(gather.x, gather.tile, op.tile, op.axes)])
        else:
            return
        if not list(gather.result.uses):
            rewriter.erase(gather)


class GatherTwice(RewritePattern):
    """Two all-gathers of the same tile in a row, minor axes first, are one over all their axes.

    before   %g = all_gather %x tile<0> ["model"] ; %y = all_gather %g tile<0> ["data"]
    after    %y = all_gather %x tile<0> ["data", "model"]
    when     %g has no other use
    """

    @op_type_rewrite_pattern
    def match_and_rewrite(self, op: AllGatherOp, rewriter: PatternRewriter) -> None:
        inner = _producer(op.x)
        if not isinstance(inner, AllGatherOp) or inner.tile != op.tile or not _only_use(op.x):
            return
        axes = AxesAttr.of([*op.axes.data, *inner.axes.data])
        rewriter.replace(op, [AllGatherOp(inner.x, op.tile, axes)])
        rewriter.erase(inner)


class ReduceTwice(RewritePattern):
    """Two all-reduces of one kind in a row are one over all their axes.

    before   %s = all_reduce add %x ["model"] ; %y = all_reduce add %s ["data"]
    after    %y = all_reduce add %x ["model", "data"]
    when     %s has no other use
    """

    @op_type_rewrite_pattern
    def match_and_rewrite(self, op: AllReduceOp, rewriter: PatternRewriter) -> None:
        inner = _producer(op.x)
        if not isinstance(inner, AllReduceOp) or inner.kind != op.kind or not _only_use(op.x):
            return
        if {name for name, _ in inner.axes.data} & {name for name, _ in op.axes.data}:
            return
        axes = AxesAttr.of([*inner.axes.data, *op.axes.data])
        rewriter.replace(op, [AllReduceOp(inner.x, op.kind, axes)])
        rewriter.erase(inner)


PATTERNS = (ReduceThenSlice, GatherThenSlice, GatherTwice, ReduceTwice)


def simplify(module: ModuleOp) -> bool:
    """Apply the rewrites until none applies. Returns whether any did."""
    return PatternRewriteWalker(GreedyRewritePatternApplier([pattern() for pattern in PATTERNS])).rewrite_module(module)


@dataclass(frozen=True)
class SimplifyCollectivesPass(ModulePass):
    """Merge neighbouring collectives of SPMD IR into cheaper ones."""

    name = "spmd-simplify"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        simplify(op)

"""Finds gradient accumulators: state that sums gradients over several steps until an optimizer reads it.

Optimizer moments are sums of gradients, too, but they decay: the argument is multiplied by a constant factor before it comes
back as a result. An accumulator has no such factor.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from xdsl.dialects.builtin import IntegerType, TensorType
from xdsl.ir import OpResult, SSAValue

from partir.frontend.flow import SAME, Flow, handed_on, shape_of
from partir.program import origin_of


def accumulators(flow: Flow, pairs: Iterable[tuple[int, int]]) -> list[int]:
    """Of the state `pairs` (argument number, result number), the arguments that gradients are added to without any decay.

    found      `acc + g`; `acc + (g - acc) / (n + 1)`, a running mean; both also where they are reset every few steps
    not found  `0.9 * m + 0.1 * g`, `m + 0.1 * (g - m)`: averages that decay; `s + g ** 2`: not linear in the gradient
    """
    return [argument for argument, result in pairs if flow.rank(argument) and _accumulates(flow, argument, result)]


def _accumulates(flow: Flow, argument: int, result: int) -> bool:
    own = flow.block.args[argument]
    for value in _kept_from(flow, flow.returned[result]):
        if not isinstance(value, OpResult) or value.op.name != "stablehlo.add":
            continue
        for kept, added in (value.op.operands, reversed(value.op.operands)):
            if own in _kept_from(flow, kept) and _sums_gradients(flow, added, own):
                return True
    return False


def _kept_from(flow: Flow, value: SSAValue) -> set[SSAValue]:
    """The values that contribute to `value` with a factor of exactly one (or zero, in a step that resets the accumulator)."""
    found: set[SSAValue] = set()
    stack = [value]
    while stack:
        value = stack.pop()
        if value not in found:
            found.add(value)
            stack += _kept(flow, value)
    return found


def _kept(flow: Flow, value: SSAValue) -> Sequence[SSAValue]:
    """One step of `_kept_from`: the operands of the op that makes `value` which it keeps with a factor of one."""
    through = handed_on(value)
    if through or not isinstance(value, OpResult):
        return through
    op = value.op
    if op.name == "stablehlo.multiply":
        left, right = op.operands
        return [own for own, factor in ((left, right), (right, left)) if _is_gate(flow, factor)]
    if op.name in ("stablehlo.add", "stablehlo.subtract"):
        return op.operands if op.name == "stablehlo.add" else op.operands[:1]
    return ()


def _is_gate(flow: Flow, value: SSAValue) -> bool:
    """Whether a factor is a scalar computed by comparing step counters, so that it can only be one or zero (a reset)."""
    return _counts(flow, value) and any(
        isinstance(own, OpResult) and own.op.name == "stablehlo.compare" for own in flow.ancestors([value])
    )


def _counts(flow: Flow, value: SSAValue) -> bool:
    """Whether a factor is a scalar that is computed from integer arguments alone: these are step counters."""
    if not _is_one_number(value):
        return False
    given = [own.type for own in flow.ancestors([value]) if own in flow.number]
    integer = all(isinstance(type_, TensorType) and isinstance(type_.element_type, IntegerType) for type_ in given)
    return bool(given) and integer


def _is_one_number(value: SSAValue) -> bool:
    """Whether a value is a scalar, or a scalar broadcast to a shape."""
    while isinstance(value, OpResult) and shape_of(value):
        if value.op.name not in ("stablehlo.broadcast_in_dim", "stablehlo.convert", *SAME):
            return False
        value = value.op.operands[0]
    return not shape_of(value)


def _sums_gradients(flow: Flow, value: SSAValue, accumulator: SSAValue) -> bool:
    """Whether `value`, which is added to `accumulator`, is linear in gradients.

    It may contain the accumulator itself with a factor computed from step counters, as a running mean does; with any other
    factor the accumulator decays, and the answer is no.
    """
    has_gradient = False
    start: list[tuple[SSAValue, bool]] = [(value, False)]
    stack, seen = start, set(start)
    while stack:
        value, is_counted = stack.pop()
        if value is accumulator and not is_counted:
            return False
        terms = [(source, is_counted) for source in handed_on(value)]
        if not terms and _is_of_optimizer(flow, value):
            terms = _terms(flow, value, is_counted)
            if not terms:
                return False
        elif not terms:
            has_gradient |= flow.is_after_backward(value)
        stack += [term for term in terms if term not in seen]
        seen.update(terms)
    return has_gradient


def _is_of_optimizer(flow: Flow, value: SSAValue) -> bool:
    """Whether an op outside the backward pass computes a value from gradients: so does an optimizer."""
    forward = isinstance(value, OpResult) and origin_of(value.op).phase.data == "forward"
    return forward and flow.is_after_backward(value)


def _terms(flow: Flow, value: SSAValue, is_counted: bool) -> list[tuple[SSAValue, bool]]:
    """The operands that a value is linear in, each with whether a factor computed from step counters is on it by now.

    Empty where the value is not linear in its operands. `is_counted` is the flag of the value itself.
    """
    assert isinstance(value, OpResult)
    op = value.op
    if op.name in ("stablehlo.add", "stablehlo.subtract", "stablehlo.negate"):
        return [(operand, is_counted) for operand in op.operands]
    if op.name not in ("stablehlo.multiply", "stablehlo.divide"):
        return []
    left, right = op.operands
    for own, factor in ((left, right), (right, left)) if op.name == "stablehlo.multiply" else ((left, right),):
        if _is_one_number(factor) or not flow.is_after_backward(factor):
            return [(own, is_counted or _counts(flow, factor))]
    return []

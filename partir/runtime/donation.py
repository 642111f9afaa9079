"""Checks donated arguments: whose buffers no result can reuse, and arrays that are donated and passed a second time."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import jax
from jax.core import Tracer
from xdsl.ir import Attribute

from partir.errors import ProgramError, error_text, error_texts
from partir.program import Leaf, Program, item_bytes
from partir.sharding.layout import Layout, local_shape, spec_of
from partir.sharding.plan import Plan

SHOWN = 8
"""How many donated arguments a warning names."""


def unusable(plan: Plan) -> str:
    """A warning that names the donated arguments whose buffers no result can reuse; "" if there are none.

    As in XLA, a result can reuse any donated buffer with as many bytes on a device, whatever its shape. Each result takes one
    buffer; a result that is the next value of a state argument takes that argument's first.
    """
    program = plan.assignment.structure.program
    signature, sizes = program.signature, plan.assignment.mesh.axes
    returned = program.body.last_op
    assert returned is not None

    def bytes_of(type_: Attribute, layout: Layout) -> int:
        return math.prod(local_shape(layout, sizes)) * item_bytes(type_)

    types = [value.type for value in returned.operands]
    free = {result: bytes_of(types[result], layout) for result, layout in enumerate(plan.outputs)}  # results without a buffer
    donated = {
        argument: bytes_of(program.body.args[argument].type, plan.arguments[argument])
        for argument, leaf in enumerate(signature.arguments)
        if leaf.donated
    }
    for argument, result in signature.state:
        if argument in donated and free[result] == donated[argument]:
            del donated[argument], free[result]
    left: list[int] = []
    for argument, count in donated.items():
        taken = next((result for result, own in free.items() if own == count), None)
        if taken is None:
            left += [argument] if count else []
        else:
            del free[taken]
    if not left:
        return ""
    more = f"; and {len(left) - SHOWN} more" if len(left) > SHOWN else ""
    return error_text(
        f"Some donated buffers were not usable: {program.name} has no results to put into them",
        where="; ".join(_mismatch(plan, argument) for argument in left[:SHOWN]) + more,
        why="a result reuses a donated buffer if both have the same number of bytes on a device",
        hint="give results the shardings of the arguments, or leave these out of donate_argnums",
    )


def _mismatch(plan: Plan, argument: int) -> str:
    """A donated argument with its spec, and the results of its shape and dtype with theirs, for the warning."""
    signature = plan.assignment.structure.program.signature
    leaf = signature.arguments[argument]
    alike = [
        f"{result.name} is sharded as {_spec_text(layout, result)}"
        for result, layout in zip(signature.results, plan.outputs, strict=True)
        if (result.shape, result.dtype) == (leaf.shape, leaf.dtype)
    ]
    there = ", ".join(alike) or "no result has that shape and dtype"
    spec = _spec_text(plan.arguments[argument], leaf)
    return f"{leaf.name}, {leaf.dtype}{list(leaf.shape)}, is sharded as {spec}: {there}"


def _spec_text(layout: Layout, leaf: Leaf) -> str:
    return f"P({', '.join(map(repr, spec_of(layout[: len(leaf.shape)])))})"


def check_given_once(program: Program, flat: Sequence[Any]) -> None:
    """Raise ProgramError, naming both arguments, for an array that is passed as a donated argument and as another one."""
    leaves = program.signature.arguments
    seen: dict[int, int] = {}
    problems: list[str] = []
    for number, x in enumerate(flat):
        if not isinstance(x, jax.Array) or isinstance(x, Tracer):
            continue
        first = seen.setdefault(id(x), number)
        if first != number and (leaves[first].donated or leaves[number].donated):
            one, other = (leaves[i].name for i in (first, number))
            given = "both are" if leaves[first].donated and leaves[number].donated else "the first is"
            if not leaves[first].donated:
                given = "the second is"
            problems.append(
                error_text(
                    f"{program.name} was given one array as {one} and as {other}, and {given} donated",
                    why="a result overwrites the buffer of a donated argument",
                    hint=f"a copy for one of them (x.copy()), or do not donate {one if leaves[first].donated else other}",
                )
            )
    if problems:
        raise ProgramError(error_texts(problems))

"""Compares a Core IR module with the loops that its actions make, and reports the first difference; value names don't count."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import zip_longest

from xdsl.dialects.func import FuncOp
from xdsl.ir import Attribute, Block, Operation, SSAValue

from partir.coreir import boundary
from partir.coreir.erase_loops import Erased, where_of
from partir.coreir.materialise import PROPERTIES, LoopWriter, captured_by
from partir.coreir.nest import Nest, Nests
from partir.dialect.text import to_text
from partir.errors import IRError, error_text
from partir.sharding.plan import Plan, RowPlan

ANEW = "partir-erase-loops takes away what was decided; the passes that decide (partir-tile, ...) write actions and loops alike"

Types = tuple[Attribute, ...]
Entry = tuple[Operation, list[int | None], list[Attribute], list[Types]]
"""An op, the numbers of its operands, the types of its results, and the argument types of each block in it."""


def check_same(main: FuncOp, erased: Erased, plan: Plan) -> None:
    """Raise IRError, with both ops, if the loops or the shardings of a module differ from those of `plan`.

    A module may leave out sharding rules, and the shardings of arguments and results.
    """
    _check_loops(erased, plan)
    _check_shardings(main, plan)


def _check_loops(erased: Erased, plan: Plan) -> None:
    """Compare the loops of each op. (An op outside any loop was copied from the module to the program and cannot differ.)"""
    patterns = _Patterns(plan)
    text_of = {new: old for old, new in erased.values.items()}
    left = dict(erased.loops)
    for position, row in plan.assignment.structure.tables.each_row():
        nest, loop = patterns.nests.of(position, row), left.pop(row.op, None)
        if loop is None:
            if nest is not None:
                raise _differ(row.op, row.op, patterns.of(row.op, _reads(row.op), plan.rows[position], nest)[0][0])
        elif nest is None:
            raise _differ(loop, loop, row.op)
        else:
            reads = _reads(row.op)
            number = {text_of[value]: i for i, value in enumerate(reads)}
            expected = patterns.of(row.op, reads, plan.rows[position], nest)
            for text, made in zip_longest(_entries(loop, number), expected):
                why = "another number of ops" if text is None or made is None else _difference(text, made)
                if why:
                    raise _differ(loop, *(None if entry is None else entry[0] for entry in (text, made)), why=why)
    for op, loop in left.items():
        raise _differ(loop, loop, op)


class _Patterns:
    """The loops that a plan puts around ops, as entries to compare with.

    Equal attributes are one object, so that a repeated layer finds the entries of the first one by `id`.
    """

    def __init__(self, plan: Plan) -> None:
        self.nests = Nests(plan)
        self.writer = LoopWriter(plan)
        self.made: dict[object, list[Entry]] = {}

    def of(self, op: Operation, reads: list[SSAValue], plan: RowPlan, nest: Nest) -> list[Entry]:
        """The entries of the loops around one op that reads the values `reads`, made in a block of their own."""
        inputs = [nest, plan, *op.properties.values(), *(value.type for value in (*op.operands, *op.results))]
        key = (op.name, *op.properties, *map(id, inputs), *map(reads.index, op.operands))
        found = None if op.regions else self.made.get(key)
        if found is None:
            block = Block(arg_types=[value.type for value in reads])
            loop = self.writer.write(block, op, plan, nest, dict(zip(reads, block.args, strict=True)))
            found = self.made[key] = list(_entries(loop, {value: i for i, value in enumerate(block.args)}))
        return found


def _reads(op: Operation) -> list[SSAValue]:
    """The values that an op reads, each once."""
    return list(dict.fromkeys([*op.operands, *captured_by(op)]))


def _entries(loop: Operation, number: dict[SSAValue, int]) -> Iterator[Entry]:
    """The ops of a loop, outermost first. Values are compared by number: `number` has the outer and gets the inner ones."""
    for op in loop.walk():
        read = [number.get(value) for value in op.operands]
        types: list[Attribute] = []
        for value in op.results:
            number[value] = len(number)
            types.append(value.type)
        blocks: list[Types] = []
        if op.regions:
            for block in (block for region in op.regions for block in region.blocks):
                blocks.append(tuple(block.arg_types))
                for value in block.args:
                    number[value] = len(number)
        yield op, read, types, blocks


def _difference(text: Entry, made: Entry) -> str:
    """What two ops differ in, apart from their bodies; "" if they are equal."""
    a, b = text[0], made[0]
    if a.name != b.name:
        return "another op"
    if a.properties != b.properties:
        return (
            f"another {next(key for key in (*a.properties, *b.properties) if a.properties.get(key) != b.properties.get(key))}"
        )
    if a.attributes.get(PROPERTIES) != b.attributes.get(PROPERTIES):
        return f"another {PROPERTIES}"
    if text[1:] == made[1:]:
        return ""
    return "other operands" if text[1] != made[1] else "another type"


def _differ(at: Operation, text: Operation | None, made: Operation | None, why: str = "") -> IRError:
    """The error for the first ops that differ; `at` is the outermost loop."""
    what = "the loops are not those that the module's actions make"
    return IRError(
        error_text(
            f"{what}: {why}" if why else what,
            where=where_of(at),
            why=f"the text has      {_line(text)}\n{'':10}the actions make  {_line(made)}",
            hint=ANEW,
        )
    )


def _line(op: Operation | None) -> str:
    """The first line of an op."""
    if op is None:
        return "nothing more"
    line = to_text(op).splitlines()[0].removesuffix(" {")
    return line if len(line) <= 160 else line[:157] + "..."


def _check_shardings(main: FuncOp, plan: Plan) -> None:
    """Compare the shardings of the arguments and results that have one in the text."""
    signature, mesh = plan.assignment.structure.program.signature, plan.assignment.mesh
    arguments, results = boundary.shardings(plan)
    for what, leaves, attrs, made in (
        ("argument", signature.arguments, main.arg_attrs, arguments),
        ("result", signature.results, main.res_attrs, results),
    ):
        for said, by_actions, leaf in zip(boundary.entries(attrs, len(leaves)), made, leaves, strict=True):
            own, expected = (boundary.axes_read(entry, mesh, leaf.name) for entry in (said, by_actions))
            if boundary.SHARDING in said and own != expected:
                raise IRError(
                    error_text(
                        f"{what} {leaf.name} is not sharded as the module's actions make it",
                        where=f"the text has {said[boundary.SHARDING]}",
                        why=f"the actions make {by_actions[boundary.SHARDING]}",
                        hint=ANEW,
                    )
                )

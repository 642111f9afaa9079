"""One op of a program alone: what its sharding rule says of each factor, and whether running it in pieces bears that out.

`factors(op)` reads the rule; `cuts(op)` makes a program of the op alone, cuts each dim in two, runs the pieces one after the
other on one device, puts them together, and compares with the whole.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
from xdsl.dialects.builtin import ModuleOp, StringAttr, TensorType
from xdsl.dialects.func import FuncOp, ReturnOp
from xdsl.ir import Block, Operation, OpResult, Region, SSAValue

from partir.coreir.materialise import materialise
from partir.dialect.constants import dtype_of
from partir.dialect.kinds import happens_once
from partir.mesh import Mesh
from partir.program import Leaf, Program, Signature
from partir.runtime.interpret import interpret
from partir.sharding import plan
from partir.sharding.actions import Tile
from partir.sharding.assignment import Assignment
from partir.sharding.rule import rule_of, shape_of
from partir.sharding.structure import Structure

MESH = Mesh(data=2)
LARGEST = 1 << 16
"""Ops on tensors of more elements are not run: a smaller one of the same kind is."""

TOLERANCE = {"float64": 1e-9, "complex128": 1e-9, "float32": 1e-4, "complex64": 1e-4, "float16": 2e-2, "bfloat16": 1e-1}
"""Of the largest entry, by type: what sums in another order may differ by. Other types are compared exactly."""

ELSEWHERE = frozenset({"stablehlo.custom_call @LuDecomposition"})
"""Calls that the CPU has no implementation of."""

_MADE = frozenset(f"stablehlo.{name}" for name in ("constant", "iota", "broadcast_in_dim", "reshape"))


def label(op: Operation) -> str:
    """What the table calls an op: its name; a custom call also by its target."""
    target = op.properties.get("call_target_name")
    return f"{op.name} @{target.data}" if isinstance(target, StringAttr) else op.name


@dataclass(frozen=True)
class Factor:
    """One factor of a rule: the operands and results that have it, by name, and what cutting it owes."""

    operands: tuple[str, ...]
    results: tuple[str, ...]
    owes: str
    """`nothing`, `all_reduce(add)` and the like, or `gathered`."""

    def __str__(self) -> str:
        return f"{' + '.join(self.operands) or '.'} -> {' + '.join(self.results) or '.'}"


def factors(op: Operation) -> dict[int, Factor]:
    """What the rule of an op says of each factor of more than one element."""
    if happens_once(op):
        return {}
    rule = rule_of(op)
    operands, results = _names(op)
    found: dict[int, Factor] = {}
    for factor, size in enumerate(rule.sizes):
        if size < 2:
            continue
        reads = [name for name, dims in zip(operands, rule.operands, strict=True) if any(factor in d for d in dims)]
        makes = [name for name, dims in zip(results, rule.results, strict=True) if any(factor in d for d in dims)]
        owes = "gathered" if factor in rule.closed else f"all_reduce({rule.kind})" if factor in rule.reduction else "nothing"
        found[factor] = Factor(tuple(dict.fromkeys(reads)), tuple(dict.fromkeys(makes)), owes)
    return found


def _names(op: Operation) -> tuple[list[str], list[str]]:
    """The name of every operand and result; those of one list share a name."""
    definition = type(op).get_irdl_definition()  # pyright: ignore[reportAttributeAccessIssue]
    return tuple(_spread([n for n, _ in of], len(values)) for of, values in
                 ((definition.operands, op.operands), (definition.results, op.results)))  # fmt: skip


def _spread(names: list[str], count: int) -> list[str]:
    names = [name.rstrip("_") for name in names]
    if len(names) == 1:
        return names * count
    each, rest = divmod(count, len(names)) if names else (0, 0)
    return (
        [n for n in names for _ in range(each)] if not rest else names[: len(names) - 1] + names[-1:] * (count - len(names) + 1)
    )


def alone(op: Operation) -> Program | None:
    """A program of one op, with what was made from nothing (literals, iota) made again; None where a value is no tensor."""
    if (
        happens_once(op)
        or label(op) in ELSEWHERE
        or not all(isinstance(v.type, TensorType) for v in (*op.operands, *op.results))
    ):
        return None
    if any(int(np.prod(shape_of(v.type))) > LARGEST for v in (*op.operands, *op.results)):
        return None
    block = Block()
    values: dict[SSAValue, SSAValue] = {}
    for operand in dict.fromkeys([*op.operands, *_captured(op)]):
        if not _remade(operand, block, values):
            values[operand] = block.insert_arg(operand.type, len(block.args))
    copy = op.clone(values)
    block.add_ops([copy, ReturnOp(*copy.results)])
    types = [a.type for a in block.args], [r.type for r in copy.results]
    module = ModuleOp([FuncOp("main", types, Region(block), "public")])
    arguments, results = (
        tuple(Leaf((f"{stem}{k}",), shape_of(t), str(dtype_of(t))) for k, t in enumerate(own))
        for stem, own in zip("xr", types, strict=True)
    )
    return Program(module, Signature(arguments, results), label(op))


def _remade(value: SSAValue, block: Block, values: dict[SSAValue, SSAValue]) -> bool:
    if value in values:
        return True
    if not isinstance(value, OpResult) or value.op.name not in _MADE:
        return False
    if not all(_remade(operand, block, values) for operand in value.op.operands):
        return False
    block.add_op(value.op.clone(values))
    return True


def _captured(op: Operation) -> Iterator[SSAValue]:
    inner = {value for region in op.regions for body in region.blocks for value in body.args}
    walked = [o for region in op.regions for o in region.walk()]
    inner |= {value for o in walked for value in o.results}
    inner |= {value for o in walked for region in o.regions for body in region.blocks for value in body.args}
    yield from (value for o in walked for value in o.operands if value not in inner)


def draw(leaf: Leaf, rng: np.random.Generator) -> Any:
    """Normal numbers; small whole ones in integer types, so that they serve as indices."""
    dtype = np.dtype(leaf.dtype)
    if dtype == np.bool_:
        return rng.integers(2, size=leaf.shape).astype(bool)
    if dtype.kind == "c":
        return (rng.standard_normal(leaf.shape) + 1j * rng.standard_normal(leaf.shape)).astype(dtype)
    if jax.numpy.issubdtype(dtype, jax.numpy.floating):
        return np.asarray(rng.standard_normal(leaf.shape)).astype(dtype)
    return np.asarray(rng.integers(0, 7 if dtype.itemsize > 1 or leaf.dtype.endswith("int8") else 2, size=leaf.shape)).astype(
        dtype
    )


@dataclass(frozen=True)
class Cut:
    """A factor of an op that stands alone was cut in two and run; `wrong` says what differs, if anything does."""

    factor: int
    wrong: str = ""


def cuts(op: Operation, seen: Iterable[int] = ()) -> Iterator[Cut]:
    """Cut an op that stands alone along each factor that is the outermost of some even dim and not in `seen`; run the pieces
    in turn; compare with the op run whole, and what the plan owes with what the rule says."""
    program = alone(op)
    if program is None or not program.signature.results:
        return
    structure, rule, says, done = Structure.of(program), rule_of(op), factors(op), set(seen)
    arguments = [draw(leaf, np.random.default_rng(k)) for k, leaf in enumerate(program.signature.arguments)]
    for value, dim, factor in _dims(op, program, structure):
        if factor in done or structure.tables.shapes[value][dim] % MESH.size:
            continue
        made = plan.make(Assignment(structure, MESH, (Tile(structure.addresses.names[value], dim, "data"),)))
        position = _row(structure, op)
        if position is not None and factor not in rule.closed and factor not in _cut(made, position, rule.sizes):
            continue
        done.add(factor)
        owed = _owed(_inside(made), says[factor].owes, len(op.results))
        yield Cut(factor, owed or _compared(op, program, made, arguments))


def _dims(op: Operation, program: Program, structure: Structure) -> Iterator[tuple[int, int, int]]:
    """(value, dim, outermost factor) of every dim of the operands that are arguments, and of the results."""
    rule, last = rule_of(op), program.body.last_op
    assert last is not None
    copy = last.prev_op
    assert copy is not None
    slots = zip((*copy.operands, *copy.results), (*rule.operands, *rule.results), strict=True)
    for own, dims in slots:
        value = structure.tables.index_of.get(own)
        if value is None or structure.tables.view_of(own) is None:
            continue
        for dim, inside in enumerate(dims):
            outermost = next((f for f in inside if rule.sizes[f] > 1), None)
            if outermost is not None:
                yield value, dim, outermost


def _row(structure: Structure, op: Operation) -> int | None:
    """The row of the op itself; None where it is a view, looked through."""
    return next((k for k, row in enumerate(structure.tables.rows) if label(row.op) == label(op)), None)


def _cut(made: plan.Plan, position: int, sizes: Sequence[int]) -> set[int]:
    """The factors of a row that are cut; a factor may lie in several parts."""
    parts = iter(zip(made.assignment.structure.atoms.shapes[position].sizes, made.rows[position].factor_axes, strict=False))
    found: set[int] = set()
    for factor, size in enumerate(sizes):
        covered = 1
        while covered < size:
            part = next(parts, None)
            if part is None:
                return found
            covered *= part[0]
            if part[1]:
                found.add(factor)
    return found


def _inside(made: plan.Plan) -> Counter[str]:
    """The collectives of a plan, but for what brings a result into a form that a PartitionSpec can say."""
    steps = [s.steps for s in made.reductions.values()] + [r.steps for r in made.reshards.values() if r.row >= 0]
    return Counter(step.kind for own in steps for step in own)


def _owed(collectives: Mapping[str, int], owes: str, results: int) -> str:
    """What is wrong with the collectives of a plan, where the rule says that a cut `owes` this."""
    fits = {
        "nothing": not collectives,
        "gathered": set(collectives) <= {"all_gather"},
    }.get(owes, set(collectives) == {"all_reduce"} and collectives["all_reduce"] <= results)
    return "" if fits else f"owes {owes}, but the plan has {dict(collectives)}"


def _compared(op: Operation, program: Program, made: plan.Plan, arguments: Sequence[Any]) -> str:
    """Which result in pieces differs from that of the whole. What the program does not read is not compared: LAPACK leaves
    results that were not asked for as they were."""
    core = interpret(materialise(made), arguments)
    for k, (here, there) in enumerate(zip(core, interpret(program.module, arguments), strict=True)):
        if not list(op.results[k].uses):
            continue
        tolerance = TOLERANCE.get(str(there.dtype))
        if tolerance is None:
            same = np.array_equal(here, there)
        else:
            wide = np.complex128 if there.dtype.kind == "c" else np.float64
            here, there = here.astype(wide), there.astype(wide)
            scale = np.max(np.abs(there[np.isfinite(there)]), initial=1.0)
            same = np.allclose(here, there, rtol=tolerance, atol=tolerance * scale, equal_nan=True)
        if not same:
            return f"result {k} differs"
    return ""

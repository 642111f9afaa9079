"""Every op kind JAX emits, and what cutting it owes: read from the programs of a corpus, checked by running ops in pieces.

`docs/make_ops.py` makes the table of `docs/ops.md` of it, `frontend/test_coverage.py` holds it.
"""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
from op_programs_indexed import OPS
from op_programs_types import TYPES
from pieces import Factor, cuts, factors, label
from programs import PROGRAMS
from surface import SURFACE
from xdsl.ir import Operation

from partir.dialect.kinds import happens_once, is_pointwise
from partir.dialect.sdy import ManualComputationOp, OpShardingRuleAttr
from partir.errors import ProgramError
from partir.frontend.rules import rule_for
from partir.frontend.trace import trace
from partir.mesh import Mesh
from partir.program import Program
from partir.sharding.rule import rule_of
from partir.sharding.table_builder import CONTROL, RETURNS

Call = tuple[Callable[..., Any], tuple[Any, ...]]

MESH = Mesh(data=4, model=2)
"""What the corpus' own `shard_map`s are over."""

CHECKS = 1
"""How many different rules that agree on a factor are run in pieces."""

DIFFERENTIATED = ("lax", "lax.linalg", "nn", "numpy.linalg", "numpy.fft", "ops", "image", "scipy.linalg", "scipy.ndimage")
"""The modules whose functions' gradients are in the corpus: what other functions are made of."""

FRAME = RETURNS | {"builtin.module", "func.func", "sdy.return"}
"""Ops that hold others, and compute nothing."""


def gradient(fun: Callable[..., Any], args: tuple[Any, ...]) -> Call | None:
    """The gradient of the sum of a function's results with respect to its arguments of floats; None where there is none."""

    def loss(*args: Any) -> Any:
        leaves = [jnp.asarray(leaf) for leaf in jax.tree.leaves(fun(*args))]
        return sum(jnp.sum(jnp.real(leaf)) for leaf in leaves if jnp.issubdtype(leaf.dtype, jnp.inexact))

    numbers = tuple(k for k, x in enumerate(args) if jnp.issubdtype(x.dtype, jnp.floating))
    return (jax.grad(loss, numbers), args) if numbers else None


def functions() -> Iterator[tuple[str, Call]]:
    """JAX's public functions, and the programs of `op_programs` (other types, sizes and settings)."""
    yield from SURFACE.items()
    yield from OPS.items()
    yield from TYPES.items()


def backward() -> Iterator[tuple[str, Call]]:
    """Gradients of JAX's public functions, and training programs."""
    for name, (fun, args) in SURFACE.items():
        found = gradient(fun, args) if name.rsplit(".", 1)[0] in DIFFERENTIATED else None
        if found is not None:
            yield f"gradient of {name}", found
    for name, program in PROGRAMS.items():
        yield name, (program.fun, program.args)


def linear_algebra() -> Iterator[tuple[str, Program]]:
    """Linear algebra as JAX writes it for a TPU, ops where a CPU has calls of LAPACK; and of two matrices at once, for both."""
    calls = [(name, call) for name, call in SURFACE.items() if name.startswith("lax.linalg.")]
    pairs = [(f"vmap of {name}", (_twice(fun), args)) for name, (fun, args) in calls]
    yield from imported(iter(pairs), must=False)
    yield from imported(iter(calls + pairs), must=False, platform="tpu")


def _twice(fun: Callable[..., Any]) -> Callable[..., Any]:
    return lambda *args: jax.vmap(fun)(*(jnp.stack([x, x]) for x in args))


def imported(calls: Iterator[tuple[str, Call]], *, must: bool = True, platform: str = "cpu") -> Iterator[tuple[str, Program]]:
    """Programs imported one by one; what JAX refuses (to differentiate, on a TPU) is left out where it need not be there."""
    for name, (fun, args) in calls:
        try:
            yield name, trace(fun, args, {}, mesh=MESH, platform=platform)
        except (ProgramError, TypeError, ValueError, NotImplementedError):
            if must:
                raise


def ops_of(program: Program) -> Iterator[Operation]:
    """The ops that are rows or make values: not those inside reductions, sorts and the like, or a user's `shard_map`."""
    for op in program.module.walk():
        outer = op.parent_op()
        if op.name not in FRAME and outer is not None and (outer.name == "func.func" or outer.name in CONTROL):
            yield op


def kinds_of(program: Program) -> set[str]:
    """Every op kind of a program, whatever stands around it."""
    return {label(op) for op in program.module.walk() if op.name not in FRAME}


@dataclass
class Kind:
    """What is known of one op kind: where it occurs, whose rule it has, and for each factor how often it was run in pieces."""

    programs: dict[str, None] = field(default_factory=dict[str, None])
    sources: set[str] = field(default_factory=set[str])
    rules: set[str] = field(default_factory=set[str])
    roles: dict[Factor, int] = field(default_factory=lambda: defaultdict[Factor, int](int))
    shapes: dict[Factor, set[object]] = field(default_factory=lambda: defaultdict[Factor, set[object]](set))
    wrong: list[str] = field(default_factory=list[str])


def is_row(op: Operation) -> bool:
    """Whether an op has a rule that is asked. Control flow, a user's `shard_map`, what happens once and what is made where it
    is used have none."""
    if op.name in ("stablehlo.constant", "stablehlo.iota"):
        return False
    return op.name not in CONTROL and not isinstance(op, ManualComputationOp) and not happens_once(op)


def note(table: dict[str, Kind], source: str, name: str, program: Program, *, checks: int = CHECKS) -> None:
    """Put the ops of a program into the table, and run those in pieces whose factors were not run often enough."""
    for op in program.module.walk():
        if op.name not in FRAME:
            kind = table.setdefault(label(op), Kind())
            kind.programs[name] = None
            kind.sources.add(source)
    for op in ops_of(program):
        if not is_row(op):
            continue
        kind, roles, rule = table[label(op)], factors(op), rule_of(op)
        kind.rules.add(
            "partir" if rule_for(op) is not None else "Shardy" if OpShardingRuleAttr.KEY in op.attributes else "none"
        )
        for role in roles.values():
            kind.roles.setdefault(role, 0)
        shape = None if is_pointwise(op) else (rule.operands, rule.results, rule.closed, rule.reduction)
        todo = {f for f, role in roles.items() if kind.roles[role] < checks and shape not in kind.shapes[role]}
        if not todo:
            continue
        for cut in cuts(op, set(roles) - todo):
            role = roles[cut.factor]
            kind.roles[role] += 1
            kind.shapes[role].add(shape)
            if cut.wrong:
                kind.wrong.append(f"{name}: {role} owes {role.owes}: {cut.wrong}")


def report(done: int, name: str) -> None:
    """Progress on a terminal."""
    if sys.stderr.isatty():
        print(f"\r{done} {name:60.60}", end="", file=sys.stderr)

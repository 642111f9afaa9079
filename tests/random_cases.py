"""Random programs under random decisions on random meshes: what must hold of a case, and how a failing one is made small."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, replace
from random import Random
from typing import Any

import jax
import numpy as np
from equal import MESHES, assert_same, mesh_of
from random_actions import draw_actions, partitioned
from random_ops_indexed import OPS
from random_programs import NAMES, RandomProgram, random_program, read_by
from random_shardings import Asked, assert_laid, constrained, draw_asked, with_constraints

import partir
from partir.lowering.verify import count_collectives, verify_spmd
from partir.mesh import Mesh
from partir.runtime.interpret import interpret
from partir.sharding.actions import Action
from partir.sharding.assignment import Assignment


@dataclass(frozen=True, eq=False)
class RandomCase:
    """A program, a mesh, the seed of the decisions (or the decisions themselves), and what layouts are asked for, if any."""

    program: RandomProgram
    mesh: str
    seed: int
    actions: tuple[Action, ...] | None = None
    asked: Asked | None = None

    def __repr__(self) -> str:
        actions = "".join(f"\n#   {action!r}" for action in self.actions or ())
        asked = f"\n# {self.asked}" if self.asked is not None else ""
        return f"{self.program!r}\n# on {self.mesh}, actions of seed {self.seed}{actions}{asked}"


def random_case(random: Random) -> RandomCase:
    """A program, a mesh and decisions, all of one source of randomness."""
    program = random_program(random, OPS)
    return RandomCase(program, random.choice(sorted(MESHES)), random.getrandbits(32))


def asking_case(random: Random) -> RandomCase:
    """A case in which layouts are asked for: of arguments, of results, and by constraints in the program."""
    case = random_case(random)
    sizes = dict(Mesh.of(mesh_of(case.mesh)).axes)
    program = with_constraints(random, case.program, sizes)
    return replace(case, program=program, asked=draw_asked(random, program, sizes))


def traced_of(case: RandomCase) -> tuple[partir.Traced, list[Any]]:
    """The program imported for its mesh with what is asked for, and its arguments, some perhaps on the mesh already."""
    mesh, args = mesh_of(case.mesh), list(case.program.arguments.values())
    if case.asked is None:
        return partir.jit(case.program.fun, mesh=mesh).trace(*args), args
    results = jax.tree.structure(jax.eval_shape(case.program.fun, *args))
    args = case.asked.placed(args, mesh)
    shardings = {
        "in_shardings": case.asked.in_shardings(),
        "out_shardings": jax.tree.unflatten(results, case.asked.results),
    }
    with constrained():
        return partir.jit(case.program.fun, mesh=mesh, schedule=[], **shardings).trace(*args), args


def check(case: RandomCase, *, core: bool = False) -> partir.Partitioned:
    """Raise unless the partitioned program computes what one device computes, on every device, with the planned collectives.

    `core` also interprets its Core IR on the host. The error says the whole case.
    """
    said: list[Any] = [case]
    try:
        traced, args = traced_of(case)
        start = traced.partition([]).assignment if case.asked else Assignment(traced.structure, Mesh.of(traced.mesh))
        actions = case.actions
        if actions is None:
            actions = tuple(draw_actions(np.random.default_rng(case.seed), start))
            said[0] = replace(case, actions=actions)
        part = partitioned(traced, (*start.actions, *actions))
        if case.asked is not None:
            assert_as_asked(part, case.asked)
        expected = jax.jit(case.program.fun)(*case.program.arguments.values())
        results = part(*args)
        assert_same(results, expected)
        assert_devices_agree(results)
        verify_spmd(part.spmd)
        assert count_collectives(part.spmd) == part.collectives
        if core:
            flat = interpret(part.core, [*args, *traced.program.constants])
            assert_same(jax.tree.unflatten(jax.tree.structure(expected), flat), expected)
    except Exception as error:
        error.add_note(repr(said[0]))
        raise
    return part


def assert_as_asked(part: partir.Partitioned, asked: Asked) -> None:
    """Every argument and result lies as it was asked for."""
    ends = (
        (asked.arguments, part.program.signature.arguments, part.in_specs),
        (asked.results, part.program.signature.results, part.out_specs),
    )
    for wishes, leaves, specs in ends:
        flat = jax.tree.leaves(specs, is_leaf=lambda x: isinstance(x, jax.P))
        for wish, leaf, spec in zip(wishes, leaves, flat, strict=False):
            assert_laid(wish, spec, len(leaf.shape), leaf.name)


def assert_devices_agree(results: Any) -> None:
    """What is said to be whole is the same on every device that has it."""
    for result in jax.tree.leaves(results):
        first: dict[str, np.ndarray] = {}
        for shard in result.addressable_shards:
            here = np.asarray(shard.data)
            assert_same(here, first.setdefault(str(shard.index), here))


def minimised(case: RandomCase, *, core: bool = False) -> RandomCase:
    """The smallest case we find that fails in the same way: fewer results, lines and decisions; lines become arguments."""
    kind = _failure(case, core)
    assert kind is not None, "it does not fail"
    if case.actions is None:
        case = replace(case, actions=_drawn(case))
    smaller = True
    while smaller:
        smaller = False
        for candidate in _smaller(case):
            others = _redrawn(candidate) if candidate.program is not case.program else ()
            found = next((c for c in itertools.chain([candidate], others) if _failure(c, core) == kind), None)
            if found is not None:
                case, smaller = found, True
                break
    return case


def _failure(case: RandomCase, core: bool) -> str | None:
    try:
        check(case, core=core)
    except Exception as error:
        return type(error).__name__
    return None


def _drawn(case: RandomCase) -> tuple[Action, ...]:
    traced, _ = traced_of(case)
    return tuple(draw_actions(np.random.default_rng(case.seed), Assignment(traced.structure, Mesh.of(traced.mesh))))


def _redrawn(case: RandomCase) -> Iterator[RandomCase]:
    """The same program under other decisions: a line that is gone takes the names of its values with it."""
    if len(case.program.lines) <= 2:
        for seed in range(4):
            fresh = replace(case, seed=seed, actions=None)
            try:
                yield replace(fresh, actions=_drawn(fresh))
            except Exception:  # what is left is no program: a maximum of nothing, say
                return


def _smaller(case: RandomCase) -> Iterator[RandomCase]:
    program = case.program
    for result in program.results if len(program.results) > 1 else ():
        yield replace(case, program=_pruned(replace(program, results=(result,))))
    for number in reversed(range(len(program.lines))):
        yield replace(case, program=_without(program, number))
    if case.asked is not None:
        yield from _asking_less(case, case.asked)
    for number in range(len(case.actions or ())):
        assert case.actions is not None
        yield replace(case, actions=case.actions[:number] + case.actions[number + 1 :])


def _asking_less(case: RandomCase, asked: Asked) -> Iterator[RandomCase]:
    for field in ("arguments", "results"):
        wishes = getattr(asked, field)
        for number, wish in enumerate(wishes):
            if wish is not None:
                kept = asked.committed - {number} if field == "arguments" else asked.committed
                fewer = (*wishes[:number], None, *wishes[number + 1 :])
                yield replace(case, asked=replace(asked, committed=kept, **{field: fewer}))


def _without(program: RandomProgram, number: int) -> RandomProgram:
    """Without a line: what it makes is an argument, with the same numbers; what it read is a result."""
    scope: dict[str, Any] = NAMES | {name: jax.numpy.asarray(x) for name, x in program.arguments.items()}
    for text, _ in program.lines[: number + 1]:
        exec(text, scope)
    made = program.lines[number][1]
    lines = program.lines[:number] + program.lines[number + 1 :]
    inner = set().union(*(names for _, names in lines)) & read_by(program.lines[number : number + 1])
    results = dict.fromkeys([*(name for name in program.results if name not in made), *sorted(inner)])
    arguments = program.arguments | {name: np.asarray(scope[name]) for name in sorted(made)}
    return _pruned(replace(program, lines=lines, arguments=arguments, results=tuple(results)))


def _pruned(program: RandomProgram) -> RandomProgram:
    """Without lines and arguments that nothing reads."""
    lines = list(program.lines)
    for line in reversed(program.lines):
        later = lines[lines.index(line) + 1 :]
        if not line[1] & (read_by(later) | set(program.results)):
            lines.remove(line)
    read = read_by(lines) | set(program.results)
    arguments = {name: x for name, x in program.arguments.items() if name in read}
    return replace(program, lines=tuple(lines), arguments=arguments)

"""The stages between a function and its compiled form: `Traced` (imported) and `Partitioned` (with all shardings decided)."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any

import jax
from jax.sharding import AbstractMesh, AxisType, NamedSharding, PartitionSpec
from xdsl.dialects.builtin import ModuleOp

from partir.coreir.materialise import materialise
from partir.cost import estimate as estimate_
from partir.cost import registry as targets_
from partir.cost.estimate import Estimate
from partir.cost.target import Target
from partir.dialect.text import to_generic
from partir.errors import ProgramError, SearchError, TargetError, error_text
from partir.frontend.trace import Options, Trees, trace
from partir.lowering.shardy import to_shardy
from partir.lowering.to_spmd import to_spmd
from partir.mesh import Mesh
from partir.program import Leaf, Program, ScopeTree
from partir.runtime.devices import platform_of, target_of
from partir.runtime.donation import unusable
from partir.runtime.emit import Local, emit
from partir.runtime.execute import Executable, check_arguments, concrete_mesh
from partir.search import Environment
from partir.session import Session
from partir.setup import Schedule, Setup
from partir.sharding import plan as plan_
from partir.sharding.actions import Action, ReduceIn
from partir.sharding.assignment import Assignment
from partir.sharding.classes import ClassInfo
from partir.sharding.groups import Group
from partir.sharding.layout import spec_of
from partir.sharding.plan import Plan
from partir.sharding.strategy import Strategy
from partir.sharding.structure import Structure
from partir.tactics import AppliedTactic, Replay, Search, Tactic, run
from partir.tactics.committed import Kept, Layouts, committed, deciders, free_arguments, kept, layouts_of, lines, moved
from partir.tactics.follow import followed
from partir.tactics.memories import moves_memory, with_memories
from partir.tactics.pins import pins_of
from partir.tactics.replay import scheduled
from partir.tactics.tactic import Judging
from partir.verify.judge import judge_text
from partir.verify.real_compilers import TIMEOUT_SECONDS, Topology, compile_job, job_of
from partir.viz import report as report_
from partir.viz.costs import largest, priced_conflicts
from partir.viz.difference import difference
from partir.viz.explain import explanation
from partir.viz.sums import sums_lines
from partir.viz.table import Table
from partir.viz.verification import Verification

logger = logging.getLogger("partir")


class Traced:
    """A function imported for certain shapes: its arguments, scopes and dimension classes; `partition` decides its shardings.

    `layouts` are the shardings that arguments came in with.
    """

    def __init__(self, program: Program, setup: Setup, layouts: Layouts = ()) -> None:
        self.program = with_memories(program, layouts, setup.in_shardings, setup.out_shardings)
        self.setup = setup
        self.layouts = layouts
        self._warned: set[str] = set()

    @classmethod
    def of(
        cls, fun: Callable[..., Any], args: Any, kwargs: Any, *, options: Options, setup: Setup, leaves: Sequence[Any]
    ) -> Traced:
        """Import a function for these arguments; `leaves` are the leaves of the non-static ones, with their shardings."""
        mesh = Mesh.of(setup.mesh)
        program = trace(fun, args, kwargs, options, platform=platform_of(setup.mesh), mesh=mesh)
        return cls(program, setup, layouts_of(leaves))

    @property
    def mesh(self) -> Any:
        """The mesh to partition over, as the user gave it."""
        return self.setup.mesh

    @cached_property
    def structure(self) -> Structure:
        """The tables, atoms and classes of the program."""
        return Structure.of(self.program)

    @property
    def arguments(self) -> tuple[Leaf, ...]:
        """The path, shape, dtype and role of every argument."""
        return self.program.signature.arguments

    @property
    def scopes(self) -> ScopeTree:
        """The named scopes of the program as a tree."""
        return self.program.scopes

    @cached_property
    def classes(self) -> tuple[ClassInfo, ...]:
        """The dimension classes that have dims of arguments, by number."""
        classes = self.structure.classes()
        return tuple(
            ClassInfo(
                number,
                classes.size[number],
                tuple((self.arguments[argument].name, dim) for argument, dim, _ in members),
                len(classes.atoms_by_class[number]),
            )
            for number, members in enumerate(classes.arguments_by_class)
            if members
        )

    @property
    def groups(self) -> list[Group]:
        """The groups of classes that correspond to each other in repeated layers, and are decided together."""
        return self.structure.groups

    def partition(
        self, schedule: Schedule | None = None, *, mesh: Any = None, target: Target | str | None = None
    ) -> Partitioned:
        """Partition by a schedule over a mesh. `target`, a name or a `Target`, is the machine that `estimate` and `report` use.

        Each of the three defaults to that of `partir.jit`. Without any schedule one is searched for, if there is anything to
        shard. Warns, once, of donated arguments whose buffers no result can reuse.
        """
        part = self.decided(schedule, mesh=mesh, target=target)
        if any(leaf.donated for leaf in self.arguments):
            found = unusable(part.plan)
            if found and found not in self._warned:
                self._warned.add(found)
                warnings.warn(found, UserWarning, stacklevel=2)
        return part

    def decided(self, schedule: Schedule | None = None, *, mesh: Any = None, target: Target | str | None = None) -> Partitioned:
        """As `partition`, but without making a plan yet, and so without the warning about donated buffers."""
        chosen = schedule if schedule is not None else self.setup.schedule
        if chosen is None:
            chosen = self._searched(self.mesh if mesh is None else mesh)
        return self._run(scheduled([chosen] if isinstance(chosen, Tactic | Strategy | Action) else chosen), mesh, target)

    def _searched(self, mesh: Any) -> Schedule:
        """The schedule of a function without one: a search over all axes, or nothing if there is nothing to decide."""
        names = Mesh.of(mesh).names
        try:
            # Raises SearchError if there is nothing to decide, which does not depend on the target.
            Environment(self._start(mesh, fixed=True), targets_.get("cpu"), names)
        except SearchError:
            logger.warning(
                "no schedule for %s, and no dim of an argument is free and divides over %s: no more of it is cut",
                self.program.name,
                ", ".join(names),
            )
            return []
        logger.warning("no schedule for %s: searching one over %s", self.program.name, ", ".join(names))
        return [Search(names)]

    def session(self, *, mesh: Any = None, target: Target | str | None = None) -> Session[Partitioned]:
        """An interactive session on this function: decide step by step, look at the result, undo."""
        return Session(lambda schedule: self.decided(schedule, mesh=mesh, target=target))

    def replay(self, strategy: Strategy, free: frozenset[int] | None = None) -> Partitioned:
        """Replay all decisions of a strategy of this function, including those that in_shardings and constraints made.

        `free` are the numbers of the arguments that keep the sharding they come in with; None finds them.
        """
        start = self._start(self.mesh, fixed=False)
        applied = [AppliedTactic(Replay(strategy), start.apply(*strategy.actions_for(start)))]
        return self._partitioned(self.setup, start, applied, free)

    def imported_for(self, platform: str, mesh: Any, target: Target | None) -> Traced:
        """The same function, imported again for another platform ("tpu", "cuda", "cpu"), on which JAX emits other ops."""
        assert self.program.again is not None
        program = self.program.again(platform, None)
        return Traced(program, replace(self.setup, mesh=mesh, target=target), self.layouts)

    def arriving(self, layouts: Layouts) -> Traced:
        """The same function for arguments that come in with other shardings."""
        made = Traced(self.program, self.setup, layouts)
        if made.program.signature == self.program.signature:
            made.program, made.__dict__["structure"] = self.program, self.structure
        return made

    def _run(self, schedule: Sequence[Tactic], mesh: Any, target: Target | str | None) -> Partitioned:
        # Shardings over the function's own meshes were translated to one mesh on import; another one takes another import.
        if mesh is not None and not self._is_said_over(Mesh.of(mesh)):
            return self._imported_over(mesh)._run(schedule, None, target)
        mesh = self.mesh if mesh is None else mesh
        start = self._start(mesh, fixed=True)
        chosen = self.setup.target if target is None else targets_.get(target)
        if chosen is None and any(isinstance(tactic, Judging) and tactic.target is None for tactic in schedule):
            chosen = target_of(self.program.name, mesh)
        searched = any(isinstance(tactic, Judging) for tactic in schedule)
        setup = replace(self.setup, mesh=mesh, target=chosen)
        return self._partitioned(setup, start, run(schedule, start, chosen), frozenset[int]() if searched else None)

    def _partitioned(
        self, setup: Setup, start: Assignment, applied: list[AppliedTactic], free: frozenset[int] | None
    ) -> Partitioned:
        """Make the result: arguments that the schedule leaves free are pinned to the shardings that they came in with."""
        decided = applied[-1].assignment if applied else start
        if free is None and self.layouts:
            free = self.free_arguments(decided)
        if free and (last := kept(decided, self.layouts, free)).specs and (actions := last.actions(decided)):
            applied = [*applied, AppliedTactic(last, decided.apply(*actions))]
        return Partitioned(self, setup, start, applied, free)

    def free_arguments(self, decided: Assignment) -> frozenset[int]:
        """The arguments that neither `in_shardings` nor the decisions of an assignment shard or pin: they keep the sharding
        that they come in with."""
        return free_arguments(self._start(decided.mesh, fixed=True), decided, self.setup.in_shardings)

    def _is_said_over(self, mesh: Mesh) -> bool:
        said = self.program.said_over
        return said is None or (said == mesh and said.device_ids == mesh.device_ids)

    def _imported_over(self, mesh: Any) -> Traced:
        """The same function imported again, with shardings over its own meshes translated to the axes of another mesh."""
        assert self.program.again is not None
        program = self.program.again(self.program.platform, Mesh.of(mesh))
        return Traced(program, replace(self.setup, mesh=mesh), self.layouts)

    def _start(self, mesh: Any, *, fixed: bool) -> Assignment:
        """The assignment before any tactic: `out_shardings`, and with `fixed` also `in_shardings`, `reduce_dtype` and the
        sharding constraints in the user's code."""
        start = Assignment(self.structure, Mesh.of(mesh))
        pins = pins_of(start, self.setup.in_shardings, self.setup.out_shardings)
        start = replace(start, outputs=pins.outputs)
        if not fixed:
            return start
        dtype = self.setup.reduce_dtype
        sums = [] if dtype is None else [ReduceIn(axis, dtype) for axis in start.mesh.names]
        return start.apply(*sums, *pins.actions, *self.structure.wishes(start.mesh).actions)

    def __repr__(self) -> str:
        return (
            f"Traced {self.program.name}: {len(self.arguments)} arguments, {self.scopes.total} ops, "
            f"{len(self.classes)} dimension classes on arguments"
        )


class Partitioned:
    """A function with every sharding decided: its specs, collectives and costs, the reasons for them, and ways to run it."""

    def __init__(
        self,
        traced: Traced,
        setup: Setup,
        start: Assignment,
        applied: Sequence[AppliedTactic],
        free: frozenset[int] | None = None,
    ) -> None:
        self.traced = traced
        self.program = traced.program
        self.setup = setup
        self.start = start
        self.applied = tuple(applied)
        self._free = free
        self._known = set(traced.layouts)

    @property
    def mesh(self) -> Any:
        """The mesh it is partitioned over, as the user gave it."""
        return self.setup.mesh

    @property
    def decided(self) -> Assignment:
        """The decisions of the schedule: `assignment` without pins of arguments to the shardings that they came in with."""
        own = [step for step in self.applied if not isinstance(step.tactic, Kept)]
        return own[-1].assignment if own else self.start

    @cached_property
    def free(self) -> frozenset[int]:
        """The arguments that keep the sharding they come in with: neither `in_shardings` nor the schedule decides it."""
        return self.traced.free_arguments(self.decided) if self._free is None else self._free

    @property
    def assignment(self) -> Assignment:
        """All decisions, after the last tactic."""
        return self.applied[-1].assignment if self.applied else self.start

    @cached_property
    def plan(self) -> Plan:
        """The plan of the decisions: the layout of every value, and every reshard and reduction that this needs."""
        return plan_.make(self.assignment)

    @property
    def target(self) -> Target:
        """The machine that `estimate` prices on: the given target, else that of the mesh's devices. Raises TargetError if there
        is neither."""
        return self.setup.target or target_of(self.program.name, self.mesh)

    @property
    def has_target(self) -> bool:
        """Whether a target was given, or the mesh has devices of a known kind."""
        try:
            return bool(self.target)
        except TargetError:
            return False

    @cached_property
    def estimate(self) -> Estimate:
        """The predicted cost of one step on a device of `target`: seconds (step, compute, communication), peak bytes,
        operations and bytes sent, itemised by kernel, scope and collective. Raises TargetError without a target."""
        return estimate_.estimate(self.plan, self.target)

    @cached_property
    def strategy(self) -> Strategy:
        """The decisions as plain data that can be saved and replayed."""
        return Strategy.of(self.assignment)

    @property
    def collectives(self) -> dict[str, int]:
        """The number of collectives of one step, by kind."""
        return self.plan.collectives

    def collectives_by_scope(self) -> dict[str, dict[str, int]]:
        """The number of collectives of one step by kind, for each scope whose ops need them."""
        return report_.collectives_by_scope(self.plan)

    @property
    def in_specs(self) -> Any:
        """A PartitionSpec for each argument, in the trees of a call: `(args, kwargs)`, or `args` alone without kwargs."""
        return self._arguments([PartitionSpec(*spec_of(layout)) for layout in self.plan.arguments])

    @property
    def out_specs(self) -> Any:
        """A PartitionSpec for each result, in the tree of the results."""
        specs = [PartitionSpec(*spec_of(layout)) for layout in self.plan.outputs]
        return jax.tree.unflatten(self._trees.results, specs)

    @property
    def in_shardings(self) -> Any:
        """`in_specs` as NamedShardings on the mesh, with memory kinds."""
        specs = [PartitionSpec(*spec_of(layout)) for layout in self.plan.arguments]
        return self._arguments(list(map(self._named, specs, self.program.signature.arguments)))

    @property
    def out_shardings(self) -> Any:
        """`out_specs` as NamedShardings on the mesh, with memory kinds."""
        specs = [PartitionSpec(*spec_of(layout)) for layout in self.plan.outputs]
        return jax.tree.unflatten(self._trees.results, list(map(self._named, specs, self.program.signature.results)))

    def _named(self, spec: PartitionSpec, leaf: Leaf) -> NamedSharding:
        return NamedSharding(self._jax_mesh, spec, memory_kind=leaf.memory or None)

    @cached_property
    def _jax_mesh(self) -> Any:
        if isinstance(self.mesh, jax.sharding.Mesh | AbstractMesh):
            return self.mesh
        logical = Mesh.of(self.mesh)
        sizes = tuple(size for _, size in logical.axes)
        return AbstractMesh(sizes, logical.names, axis_types=(AxisType.Auto,) * len(sizes))

    def _arguments(self, leaves: Sequence[Any]) -> Any:
        tree = self._trees.arguments
        args, kwargs = jax.tree.unflatten(tree, leaves[: tree.num_leaves])
        return (args, kwargs) if kwargs else args

    @property
    def _trees(self) -> Trees:
        trees = self.program.trees
        assert isinstance(trees, Trees)
        return trees

    @property
    def conflicts(self) -> list[str]:
        """Where two dims wanted one axis: a line per scope with the dim that has it, those that do not, and how many ops."""
        return report_.conflict_lines(self.assignment)

    @property
    def replicated(self) -> list[str]:
        """What stayed replicated, or is gathered for an op that cannot work on shards, and why."""
        return report_.replicated_lines(self.plan)

    @property
    def sums(self) -> list[str]:
        """The dtype of sums over devices, if any is narrower than float32 or was requested."""
        return sums_lines(self.plan, self.target if self.has_target else None)

    @property
    def committed(self) -> list[str]:
        """For each argument that came in with a sharding: that sharding, its planned one, and whose decision that is."""
        specs = [spec_of(layout) for layout in self.plan.arguments]
        names = [report_.call_text(step.tactic) for step in self.applied]
        who = deciders(self.start, self.applied, names, self.setup.in_shardings)
        return lines(self.assignment, specs, self.traced.layouts, self.free, who)

    def report(self) -> Table:
        """A table with a row per tactic: sharded arguments and collectives so far, and with a target peak memory and step time.

        Notes below it have, with a target, the largest costs and the cost of deciding conflicts the other way; arguments that
        came in with a sharding or are kept in host memory; the dtype of narrow sums; what stayed replicated and why; and what
        was assumed about arguments.
        """
        came = report_.shortened(self.committed, "arguments that came in with a layout:") if self.traced.layouts else []
        kept = report_.shortened(report_.host_lines(self.plan), "kept in host memory:")
        assumed = report_.shortened(self.program.assumed, "assumed:")
        notes = [*came, *kept, *self.sums, *report_.shortened(self.replicated, "stayed replicated:"), *assumed]
        if self.setup.target is not None:
            names: dict[Action, str] = {}
            for step in reversed(self.applied):
                names.update(dict.fromkeys(step.assignment.actions, report_.call_text(step.tactic)))
            costs = ["the largest costs of a step:", *(f"  {line}" for line in largest(self.estimate, names))]
            notes = [*costs, *report_.shortened(priced_conflicts(self.estimate), "conflicts, the other way:"), *notes]
        return report_.tactics_table(self.program, self.history, notes, self.setup.target)

    @cached_property
    def history(self) -> list[tuple[str, Plan]]:
        """Each tactic as its user writes it, with the plan of the decisions up to it."""
        names = [report_.call_text(step.tactic) for step in self.applied]
        plans = [self._plan_after(step) for step in self.applied]
        return list(zip(names, plans, strict=True)) or [("(nothing)", self.plan)]

    def explain(self, path: str) -> Table:
        """How values got their sharding, and what each collective on them and on their gradients is for.

        `path` is a path pattern, a tag, or the address of an inner value. Raises PathError if it names nothing.
        """
        steps = [(report_.call_text(step.tactic), len(step.assignment.actions)) for step in self.applied]
        return explanation(self.plan, [("the program's own shardings", len(self.start.actions)), *steps], path)

    def follow(self, fun: Callable[..., Any], *args: Any, **kwargs: Any) -> Partitioned:
        """Partition another function with the same parameters (for evaluation, initialisation or serving), so that what the two
        functions share has the same sharding in both.

        Leaves are matched by the ends of their paths (see `partir.tactics.follow`). `args` and `kwargs` are the arguments of
        `fun`: arrays or ShapeDtypeStructs.
        """
        setup = replace(self.setup, schedule=None, in_shardings=None, out_shardings=None)
        traced = Traced.of(fun, args, kwargs, options=Options(), setup=setup, leaves=jax.tree.leaves((args, kwargs)))
        signature, mesh = self.program.signature, self.assignment.mesh
        known = list(zip(signature.arguments, self.plan.arguments, strict=True))
        known += list(zip(signature.results, self.plan.outputs, strict=True))
        theirs = traced.program.signature
        taken = [leaf for leaf in theirs.arguments if leaf.role != "constant"]
        trees = traced.program.trees
        assert isinstance(trees, Trees)

        def tree_of(structure: Any, leaves: Sequence[Leaf]) -> Any:
            specs = followed(leaves, known, mesh)
            return jax.tree.unflatten(structure, [None if spec is None else PartitionSpec(*spec) for spec in specs])

        positional, keywords = tree_of(trees.arguments, taken)
        names = [name for name in dict.fromkeys(leaf.path[0] for leaf in taken) if name not in keywords]
        shardings = dict(zip(names, positional, strict=False)) | keywords, tree_of(trees.results, theirs.results)
        setup = replace(setup, in_shardings=shardings[0], out_shardings=shardings[1])
        return Traced(traced.program, setup, traced.layouts).partition([])

    def specs(self) -> Table:
        """A table with a row per argument: dtype, shape, role and spec."""
        return report_.arguments_table(self.program, self.plan)

    def _plan_after(self, step: AppliedTactic) -> Plan:
        return self.plan if step is self.applied[-1] else plan_.make(step.assignment)

    @cached_property
    def core(self) -> ModuleOp:
        """The program as Core IR: with loops over mesh axes for the decisions, and computing the same as the original."""
        return materialise(self.plan)

    def core_after(self, tactic: Tactic | int) -> ModuleOp:
        """The Core IR of the decisions up to one tactic of the schedule (the tactic itself, or its number)."""
        for number, step in enumerate(self.applied):
            if number == tactic or step.tactic is tactic or step.tactic == tactic:
                return materialise(self._plan_after(step))
        raise ProgramError(
            error_text(f"{tactic!r} is not in the schedule", why=f"it has {', '.join(repr(s.tactic) for s in self.applied)}")
        )

    @cached_property
    def spmd(self) -> ModuleOp:
        """The device-local program with explicit collectives."""
        return to_spmd(self.plan)

    @cached_property
    def _local(self) -> Local:
        return emit(self.spmd, self.assignment.mesh)

    def stablehlo(self) -> str:
        """The device-local program as MLIR text, in which collectives have replica groups."""
        return self._local.text

    def shardy(self) -> str:
        """The global program as MLIR text with Shardy's shardings on arguments and results."""
        return to_generic(to_shardy(self.plan))

    @cached_property
    def executable(self) -> Executable:
        """The program, ready to run on the devices of the mesh. Raises MeshError if there are too few."""
        return Executable(
            self.program,
            self._local,
            concrete_mesh(self.mesh),
            tuple(self.plan.arguments),
            tuple(self.plan.outputs),
            self.setup.compiler_options,
        )

    def verify(self, topology: str, *, timeout_seconds: float = TIMEOUT_SECONDS) -> Verification:
        """Compile with the real compiler of a topology (which needs none of its devices), and compare `estimate` with the
        result.

        Topologies: `tpu:v5e:2x4`, `tpu:v4:2x2x2`, `gpu:h100:8`, `gpu:h100:2x8` (nodes x GPUs), `cpu:8`. The function is
        imported again for the platform, the decisions are replayed on it, and a process of its own compiles it. Raises
        MeshError for a topology of another number of devices; CompilerError for a compiler that is missing, refuses, aborts or
        takes too long; MemoryLimitError where it says that the program does not fit.
        """
        where = Topology.parse(topology)
        where.check(self.assignment.mesh)
        there = self._on(where)
        plan, options = there.plan, dict(self.setup.compiler_options)
        job = job_of(there.program, there._local, there.assignment.mesh, plan.arguments, plan.outputs, options)
        compilation = compile_job(job, where, timeout_seconds)
        judgement = judge_text(compilation, there.target, there.assignment.mesh)
        return Verification(str(where), there.estimate, judgement, plan.collectives, compilation)

    def _on(self, topology: Topology) -> Partitioned:
        """The same decisions for another machine. If the user's own target has that machine's name, its figures are used."""
        target = topology.target
        own = self.setup.target
        if own is not None and own.name == target.name:
            target = replace(own, torus=target.torus, node_devices=target.node_devices)
        if self.program.platform == topology.platform:
            return Partitioned(self.traced, replace(self.setup, target=target), self.start, self.applied, self._free)
        return self.traced.imported_for(topology.platform, self.mesh, target).replay(self.strategy, frozenset())

    def lower(self) -> Any:
        """The `jax.stages.Lowered`, for arguments with the planned shardings."""
        return self.executable.lower()

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run one step (without static arguments); arguments with another sharding are moved. Raises ProgramError for arguments
        whose structure, shapes or dtypes differ from those that were traced."""
        check_arguments(self.program, args, kwargs)
        self._moves(self._strangers(jax.tree.leaves((tuple(args), kwargs))))
        return self.run(args, kwargs)

    def takes(self, flat: Sequence[Any]) -> bool:
        """Whether this plan is right for these arguments.

        It is not, if an argument that keeps the sharding it comes in with now has another one than when this was planned.
        Arguments whose sharding is decided are moved on each call; that is logged once.
        """
        strangers = self._strangers(flat)
        leaves, decided = self.program.signature.arguments, self.setup.in_shardings
        if any(number in self.free or moves_memory(leaves, number, place, decided) for number, place in strangers):
            return False
        self._moves(strangers)
        return True

    def _strangers(self, flat: Sequence[Any]) -> Layouts:
        """The arguments that the caller put on devices with a sharding that is neither planned nor known from before."""
        found = ((number, committed(flat[number])) for number in self.executable.misplaced(flat))
        return tuple(entry for entry in found if entry[1] is not None and entry not in self._known)

    def _moves(self, strangers: Layouts) -> None:
        for number, sharding in strangers:
            leaf, mesh, spec = self.program.signature.arguments[number], self.assignment.mesh, self.executable.in_specs[number]
            logger.warning("%s: %s", self.program.name, moved(leaf, sharding, spec, mesh))
        self._known.update(strangers)

    def run(self, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        """Run one step on arguments that are known to have the right structure, shapes and dtypes."""
        return self.executable(args, kwargs)

    def __repr__(self) -> str:
        names = ", ".join(report_.call_text(step.tactic) for step in self.applied)
        return f"Partitioned {self.program.name} by [{names}]: {report_.counts_text(self.collectives)}"

    def _repr_html_(self) -> str:
        return self.report().to_html()


def diff(a: Partitioned, b: Partitioned) -> Table:
    """What differs between two partitionings of one function: specs, collectives, bytes, and (if both have targets) seconds."""
    return difference(a.plan, b.plan, (a.estimate, b.estimate) if a.has_target and b.has_target else None)

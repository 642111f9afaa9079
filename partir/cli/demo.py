"""`partir demo`: partitions a transformer's training step, runs it on virtual devices, and compares it with one device."""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
import time
from collections.abc import Generator, Iterable
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from partir.cli.environment import host_devices
from partir.cli.inputs import DEFAULT_MESH, mesh_of, schedule_of
from partir.errors import MeshError, ProgramError, error_text

if TYPE_CHECKING:
    from partir.mesh import Mesh
    from partir.search import Result
    from partir.stages import Partitioned, Schedule
    from partir.zoo import Example

STEPS = 3
ALLOWED = {"float32": 1e-5, "float64": 1e-9}
"""The largest relative difference that counts as agreement: of the loss in float32, of loss and parameters in float64."""
TARGET = "tpu_v3"
EPISODES = 100
"""The target and the budget of the search at the end of the demo."""
NUDGE = 0.02
"""The standard deviation of the noise that is added to every parameter before the first step (see `nudged`)."""


def add_to(commands: Any) -> None:
    """Declare the subcommand and its options."""
    parser: argparse.ArgumentParser = commands.add_parser(
        "demo",
        help="partition a transformer's training step, run it on virtual devices, compare it with one device",
        description="Partition a Haiku and Optax GPT training step by tactics, and then by search; run it on virtual CPU "
        "devices and, from the same start, unpartitioned on one device, and compare the two. Exit code 1 if they differ.",
    )
    parser.add_argument("--layers", type=int, default=4, metavar="N", help="layers of the transformer (4)")
    parser.add_argument("--mesh", default=DEFAULT_MESH, metavar="AXES", help=f"one or two mesh axes ({DEFAULT_MESH})")
    parser.add_argument("--schedule", metavar="TACTICS", help="tactics in place of data parallelism, Megatron, ZeRO, sequence")
    parser.add_argument("--json", action="store_true", help="one JSON document on stdout")
    parser.set_defaults(run=run)


@dataclass
class Clock:
    """The seconds that each stage of the demo took. A stage is announced on stderr when it begins."""

    seconds: dict[str, float] = field(default_factory=dict[str, float])

    @contextmanager
    def stage(self, name: str) -> Generator[None]:
        """Time what is done inside."""
        print(f"... {name}", file=sys.stderr, flush=True)
        start = time.perf_counter()
        yield
        self.seconds[name] = round(time.perf_counter() - start, 2)


@dataclass(frozen=True)
class Comparison:
    """Two runs from one start: the loss of each step, and the largest relative difference of a parameter at the end."""

    one_device: tuple[float, ...]
    partitioned: tuple[float, ...]
    parameters: float
    where: str

    @property
    def losses(self) -> float:
        """The largest relative difference of a loss."""
        pairs = zip(self.one_device, self.partitioned, strict=True)
        return max(abs(ours - theirs) / abs(theirs) for theirs, ours in pairs)


def run(options: argparse.Namespace) -> int:
    """Partition, run, compare and report; returns 0 if the two steps agree, else 1."""
    mesh = mesh_of(options.mesh)
    text = options.schedule or schedule_text(mesh)
    settings = settings_for(options.layers, mesh)
    host_devices(mesh.size)
    import jax

    from partir.cli.model import model_of

    clock = Clock()
    with clock.stage("importing and partitioning"):
        example = model_of("gpt", settings)
        part = partitioned(example, mesh, schedule_of(text))
        report = part.report()
    with clock.stage(f"compiling for {mesh.size} devices"):
        aliased = part.lower().compile().memory_analysis().alias_size_in_bytes
    with clock.stage(f"running {STEPS} steps in float32, and again on one device"):
        single = compare(example, part)
    with clock.stage(f"running {STEPS} steps in float64, and again on one device"), jax.enable_x64(True):
        wide = model_of("gpt", settings | {"dtype": "float64"})
        double = compare(wide, partitioned(wide, mesh, schedule_of(text)))
    with clock.stage(f"searching a strategy for {TARGET}, and running it in float64"):
        result = searched(part)
        actions = [action for decision in result.state for action in decision.actions]
        with jax.enable_x64(True):
            found = compare(wide, partitioned(wide, mesh, actions))
    agrees = single.losses <= ALLOWED["float32"] and all(
        run.losses <= ALLOWED["float64"] and run.parameters <= ALLOWED["float64"] for run in (double, found)
    )
    if options.json:
        record = _record(part, single, double, aliased) | {"search": _search_record(result, found)}
        record |= {"agrees": agrees, "settings": settings, "seconds": clock.seconds}
        print(json.dumps(record, indent=1))
        return 0 if agrees else 1
    print(f"\n{_model_line(example, settings)}\n")
    print(f"{report}\n\n{_arguments(part)}\n\n{_losses(single, mesh)}\n\n{_verdict(part, double, aliased, agrees)}")
    print(f"\n{_found(result, found)}")
    if agrees:
        print(f"\n{_onwards(settings, options.mesh, text)}")
    return 0 if agrees else 1


def schedule_text(mesh: Mesh) -> str:
    """The demo's tactics as text: for one axis (data), or for two (data, then model)."""
    if len(mesh.axes) > 2:
        raise MeshError(
            error_text(
                f"the demo has tactics for one or two mesh axes, not {len(mesh.axes)}",
                hint=f"--mesh {DEFAULT_MESH}, or --schedule for the tactics you want",
            )
        )
    data = mesh.names[0]
    if len(mesh.axes) == 1:
        return f"DataParallel({data!r}), ZeRO({data!r}, stage=3)"
    model = mesh.names[1]
    return f"DataParallel({data!r}), Megatron({model!r}), ZeRO({data!r}, stage=3), SequenceParallel({model!r})"


def settings_for(layers: int, mesh: Mesh) -> dict[str, Any]:
    """The sizes of the transformer: small enough for two CPU cores, with a batch that divides over the first axis."""
    if layers < 1:
        raise ProgramError(error_text(f"a transformer of {layers} layers", hint="--layers 4"))
    sizes = {"layers": layers, "d_model": 128, "heads": 8, "batch": 8}
    data = mesh.axes[0][1]
    return sizes | ({"batch": data * -(-8 // data)} if 8 % data else {})


def partitioned(example: Example, mesh: Mesh, schedule: Schedule) -> Partitioned:
    """The example's function, imported and partitioned."""
    from partir.api import jit

    step = jit(example.fun, mesh=mesh, donate_argnums=example.donate_argnums)
    return step.trace(*example.args).partition(schedule)


def searched(part: Partitioned) -> Result:
    """The result of a search for the same function, without tactics."""
    from partir.search import MCTS
    from partir.tactics import Search

    environment = Search(part.assignment.mesh.names, target=TARGET).environment(part.start)
    return MCTS(EPISODES).search(environment)


def compare(example: Example, part: Partitioned) -> Comparison:
    """Run the partitioned step and the plain one from the same parameters on the same batch."""
    import jax
    import numpy as np

    start = nudged(*example.concrete())
    runs: list[tuple[Any, list[float]]] = []
    for step in (jax.jit(example.fun), part):
        params, opt_state, batch = start
        losses: list[float] = []
        for _ in range(STEPS):
            params, opt_state, loss = step(params, opt_state, batch)
            losses.append(float(loss))
        runs.append((params, losses))
    (theirs, one), (ours, many) = runs
    named = zip(example_paths(theirs), jax.tree.leaves(theirs), jax.tree.leaves(ours), strict=True)
    worst, where = max((difference(np.asarray(a), np.asarray(b)), path) for path, a, b in named)
    return Comparison(tuple(one), tuple(many), worst, where)


def nudged(params: Any, *rest: Any) -> tuple[Any, ...]:
    """The parameters with noise added. Haiku starts biases at zero: a bias that was wrongly added twice would go unnoticed."""
    import jax
    import numpy as np

    noise = np.random.default_rng(0)
    return (jax.tree.map(lambda x: (x + NUDGE * noise.standard_normal(x.shape)).astype(x.dtype), params), *rest)


def difference(expected: Any, found: Any) -> float:
    """The largest difference of two tensors, relative to the largest entry of the first."""
    import numpy as np

    return float(np.max(np.abs(found - expected)) / np.max(np.abs(expected)))


def example_paths(tree: Any) -> Iterable[str]:
    """Paths of the parameters as partir names them."""
    from partir.frontend.signature import paths_of

    return ("/".join(path) for path, _ in paths_of(tree, ("params",)))


def _model_line(example: Example, settings: dict[str, Any]) -> str:
    import math

    import jax

    leaves = jax.tree.leaves(example.args[0])
    count = sum(math.prod(leaf.shape) for leaf in leaves)
    return (
        f"a GPT training step in Haiku and Optax: {settings['layers']} layers, {count:,} parameters in {len(leaves)} tensors, "
        f"Adam, batch {' x '.join(map(str, example.args[2]['tokens'].shape))} tokens"
    )


def _arguments(part: Partitioned) -> str:
    """The specs of parameters and batch. (The optimizer's moments are sharded like their parameters.)"""
    from dataclasses import replace

    from partir.viz.report import arguments_table

    table = arguments_table(part.program, part.plan, brief=True)
    rows = tuple(row for row in table.rows if not row[0].startswith("opt_state"))
    left = sum(leaf.path[0] == "opt_state" for leaf in part.program.signature.arguments)
    note = f"and {left} of the optimizer: each moment is sharded like its parameter"
    return str(replace(table, title="how the arguments are sharded", rows=rows, notes=(note,)))


def _losses(single: Comparison, mesh: Mesh) -> str:
    from partir.viz.table import Table

    columns = ("step", "loss on one device", f"loss on {mesh.size} devices")
    rows = tuple(
        (str(i + 1), f"{theirs:.6f}", f"{ours:.6f}")
        for i, (theirs, ours) in enumerate(zip(single.one_device, single.partitioned, strict=True))
    )
    return str(Table("losses from the same start and on the same batch, in float32", columns, rows, right=frozenset(columns)))


def _verdict(part: Partitioned, double: Comparison, aliased: int, agrees: bool) -> str:
    from partir.viz.report import argument_bytes

    donated = argument_bytes(part.plan, donated=True)
    return "\n".join(
        [
            f"donation: each device updates {aliased:,} of the {donated:,} bytes of its state in place",
            f"in float64, after {STEPS} steps: losses differ by {double.losses:.1e}, parameters by up to "
            f"{double.parameters:.1e} ({double.where}); allowed {ALLOWED['float64']:.0e}",
            "the partitioned step computes what the unpartitioned step computes"
            if agrees
            else "THE PARTITIONED STEP DIFFERS FROM THE UNPARTITIONED STEP",
        ]
    )


def _found(result: Result, run: Comparison) -> str:
    from partir.viz.found import decisions_table

    return (
        f"without tactics, by search: {decisions_table(result)}\n"
        f"run in float64 as well: losses differ by {run.losses:.1e}, parameters by up to {run.parameters:.1e}"
    )


def _search_record(result: Result, run: Comparison) -> dict[str, Any]:
    from partir.viz.found import record_of

    return record_of(result) | {"loss_difference": run.losses, "parameter_difference": run.parameters}


def _onwards(settings: dict[str, Any], mesh: str, schedule: str) -> str:
    words = " ".join(f"{name}={value}" for name, value in settings.items())
    # After `make demo` the command is in .venv/bin, which is usually not on the path.
    command = "partir" if shutil.which("partir") or os.path.basename(sys.argv[0]) != "partir" else sys.argv[0]
    return "\n".join(
        [
            "to go on:",
            f"  {command} show gpt --set {words} --mesh {mesh} \\",
            f'    --schedule "{schedule}"',
            "      its scopes, dimension classes, and collectives by scope; with --ir spmd the program of one device",
            f"  {command} show yours:step --schedule ...",
            "      the same for your own model: a function that returns (function, arguments)",
        ]
    )


def _record(part: Partitioned, single: Comparison, double: Comparison, aliased: int) -> dict[str, Any]:
    from partir.viz.record import arguments_record, tactics_record
    from partir.viz.report import argument_bytes

    return {
        "program": part.program.name,
        "mesh": dict(part.assignment.mesh.axes),
        "tactics": tactics_record(part.history),
        "arguments": arguments_record(part.plan),
        "steps": STEPS,
        "losses": {"one_device": single.one_device, "partitioned": single.partitioned},
        "float32": {"loss_difference": single.losses, "allowed": ALLOWED["float32"]},
        "float64": {
            "loss_difference": double.losses,
            "parameter_difference": double.parameters,
            "where": double.where,
            "allowed": ALLOWED["float64"],
        },
        "donated_bytes_per_device": argument_bytes(part.plan, donated=True),
        "aliased_bytes_per_device": aliased,
    }

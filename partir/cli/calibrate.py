"""`partir calibrate`: fits a target's efficiency to times measured on this machine's device, or to those of a real compiler."""

from __future__ import annotations

import argparse
import json
import math
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from datetime import date
from typing import TYPE_CHECKING, Any

from partir.cli.environment import host_devices
from partir.cli.inputs import settings_of, target_of
from partir.errors import ProgramError, TargetError, error_text

if TYPE_CHECKING:
    from partir.cost.calibrate import Sample
    from partir.cost.target import Target
    from partir.zoo import Example

SHARES = (1 / 16, 1 / 4, 1.0)
"""The times of programs at the datasheet's peak rates, as fractions of --milliseconds."""
ROUNDS = 16
"""The length of a chain of elementwise ops: enough to make it bound by the vector unit, not by memory."""
RUNS = 9
SECONDS = 2.0
"""A program is timed `RUNS` times, or fewer if that takes longer than `SECONDS`."""
DISPATCH = 3.0
"""A program counts only if it takes at least this many times as long as an empty one: estimates leave out the host's time to
start it."""


def add_to(commands: Any) -> None:
    """Declare the subcommand and its options."""
    parser: argparse.ArgumentParser = commands.add_parser(
        "calibrate",
        help="fit a target's efficiency to measured times, or to a compiler's figures",
        description="Run matrix products, elementwise chains, reductions and a training step on JAX's default device, and fit "
        "the fraction of the datasheet's peak rates that the machine reaches. With --topology the times are those of a real "
        "compiler, and no device is needed. Estimates and search use the fit; partir.judge uses datasheets only.",
        epilog="""examples:
  partir calibrate --out mine.json
  partir calibrate --target h200 --model gpt --set layers=4 d_model=2048 heads=16 seq=1024
  partir calibrate --topology tpu:v5e:2x4
  partir search gpt --target mine.json""",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--target", metavar="TARGET", help="the machine, by name or file (default: found by JAX's device)")
    parser.add_argument(
        "--topology", metavar="TOPOLOGY", help="use the compiler of this machine instead: tpu:v5e:2x4, gpu:h100:8"
    )
    parser.add_argument(
        "--model", default="gpt", metavar="MODEL", help="the training step: a zoo model, or module:function (gpt)"
    )
    parser.add_argument(
        "--set", nargs="+", action="extend", default=[], metavar="NAME=VALUE", help="its settings (default: a size that fits)"
    )
    parser.add_argument(
        "--milliseconds", type=float, default=2.0, metavar="MS", help="the time of the largest programs at peak rates (2)"
    )
    parser.add_argument("--out", metavar="FILE", help="save the fitted target, for partir.targets.load and --target")
    parser.add_argument("--json", action="store_true", help="one JSON document on stdout")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Time (or compile) the programs, fit the target, save it, and print a table."""
    if not (options.milliseconds > 0 and math.isfinite(options.milliseconds)):
        raise TargetError(error_text(f"programs of {options.milliseconds:g} milliseconds", hint="--milliseconds 2"))
    if options.topology:
        host_devices(1)
    from partir.cost import calibrate
    from partir.cost.target import Efficiency
    from partir.targets import save

    target, where = _machine(options)
    plain = replace(target, efficiency=Efficiency(link=target.efficiency.link))
    examples = [*programs(plain, options.milliseconds / 1e3), _step(options, plain)]
    if options.topology:
        samples, notes = compiled(examples, options.topology), []
        bounds, how = calibrate.BOUNDS, f"the compiler's figures for {where}"
    else:
        samples, notes = measured(examples, plain)
        bounds, how = calibrate.MEASURED_BOUNDS, f"times on {where}"
    found = calibrate.fit(samples, f"{len(samples)} programs, {how}, by partir calibrate on {date.today()}", bounds)
    fitted = replace(plain, efficiency=replace(found, link=target.efficiency.link))
    if options.out:
        save(fitted, options.out)
        print(f"target {fitted.name} saved to {options.out}", file=sys.stderr)
    code = code_of(fitted, options.target or target.name)
    print(json.dumps(_record(fitted, samples, notes, code), indent=1) if options.json else _text(fitted, samples, notes, code))
    return 0


def programs(target: Target, seconds: float) -> Iterator[Example]:
    """Matrix products, additions, elementwise chains and reductions that take up to `seconds` at a target's peak rates."""
    import jax
    import jax.numpy as jnp

    from partir.cost.compute import TRANSCENDENTAL_OPS
    from partir.zoo import Example

    def chain(x: Any) -> Any:
        for _ in range(ROUNDS):
            x = jnp.tanh(x)
        return x

    def example(name: str, fun: Callable[..., Any], side: int, *, dtype: str = "float32", operands: int = 1) -> Example:
        shape = (side, side)

        def init(_: Any) -> tuple[Any, ...]:
            rows, columns = (jax.lax.broadcasted_iota("float32", shape, dim) for dim in (0, 1))
            return (jnp.sin(rows + 1.1 * columns).astype(dtype),) * operands

        arguments = (jax.ShapeDtypeStruct(shape, dtype),) * operands
        return Example(fun, arguments, name=f"{name} {dtype}[{side}, {side}]", init=init)

    for share in SHARES:
        for dtype, element in (("float32", "f32"), ("bfloat16", "bf16")):
            flops = target.peak_flops_per_second(element) * share * seconds
            yield example("matmul", lambda x, y: x @ y, _side((flops / 2) ** (1 / 3)), dtype=dtype, operands=2)
    for share in SHARES[1:]:
        floats = target.hbm_bytes_per_second * share * seconds / 4
        rounds = target.vector_flops_per_second * share * seconds / TRANSCENDENTAL_OPS
        yield example("add", lambda x, y: x + y, _side(math.sqrt(floats / 3)), operands=2)
        yield example("sum", lambda x: x.sum(axis=1), _side(math.sqrt(floats)))
        yield example("softmax", jax.nn.softmax, _side(math.sqrt(floats / 2)))
        yield example("tanh chain", chain, _side(math.sqrt(rounds / ROUNDS)))


def measured(examples: Sequence[Example], target: Target) -> tuple[list[Sample], list[str]]:
    """For each program its time on JAX's default device, less that of an empty program, and its estimate; and notes."""
    import jax
    import numpy as np

    from partir.cost.calibrate import Sample

    empty = median_seconds(jax.jit(lambda x: x + 1), (jax.device_put(np.float32(0)),))
    notes = [f"an empty program takes {empty * 1e6:.0f} us, which is taken off"]
    samples: list[Sample] = []
    for example in examples:
        print(f"... {example.name}", file=sys.stderr, flush=True)
        seconds = median_seconds(jax.jit(example.fun), jax.device_put(_concrete(example)))
        if seconds > DISPATCH * empty:
            samples.append(Sample.of(example.name, seconds - empty, _partitioned(example, 1, target).estimate))
        else:
            notes.append(f"left out, since it takes hardly longer: {example.name}")
    return samples, notes


def median_seconds(fun: Callable[..., Any], args: tuple[Any, ...]) -> float:
    """The median time in seconds of a call until its results are ready, after two calls to warm up."""
    import jax

    times: list[float] = []
    for _ in range(2):
        jax.block_until_ready(fun(*args))
    start = time.perf_counter()
    while len(times) < RUNS and (not times or time.perf_counter() - start < SECONDS):
        before = time.perf_counter()
        jax.block_until_ready(fun(*args))
        times.append(time.perf_counter() - before)
    return statistics.median(times)


def compiled(examples: Sequence[Example], topology: str) -> list[Sample]:
    """For each program (which every device of a topology runs in full) the compiler's compute time, and its estimate."""
    from partir.cost.calibrate import Sample
    from partir.verify.real_compilers import Topology

    samples: list[Sample] = []
    for example in examples:
        print(f"... compiling {example.name}", file=sys.stderr, flush=True)
        found = _partitioned(example, Topology.parse(topology).devices, None).verify(topology)
        samples.append(Sample.of(example.name, found.judgement.compute_seconds, found.estimate))
    return samples


def code_of(target: Target, name: str) -> str:
    """A fitted target as a Python expression."""
    base = f"partir.targets.load({name!r})" if name.endswith(".json") else f"partir.targets.get({name!r})"
    efficiency = ", ".join(
        f"{key}={value:.4g}" if isinstance(value, float) else f"{key}={value!r}"
        for key, value in vars(target.efficiency).items()
    )
    return f"dataclasses.replace({base}, efficiency=partir.targets.Efficiency({efficiency}))"


def _machine(options: argparse.Namespace) -> tuple[Target, str]:
    """The target to fit, and the name of the device or compiler that it is fitted to."""
    from partir.cost import registry as targets

    if options.topology:
        from partir.verify.real_compilers import Topology

        if options.target:
            raise TargetError(error_text(f"two machines: {options.target} and {options.topology}", hint="one of the two"))
        return targets.get(Topology.parse(options.topology).target.name), options.topology
    import jax

    kind = str(jax.devices()[0].device_kind)
    found = target_of(options.target) if options.target else targets.of_device(kind)
    if found is None:
        raise TargetError(
            error_text(f'no target is known for "{kind}"', hint="--target NAME, or a file of partir.targets.save")
        )
    return found, f"{kind} (jax {jax.__version__})"


def _step(options: argparse.Namespace, target: Target) -> Example:
    """The training step: MODEL with its settings, or a transformer with as many operations as the largest matrix product."""
    from partir.cli.model import model_of

    settings = settings_of(options.set)
    if options.model == "gpt" and not settings:
        # With D = d_model, 2 layers, a vocabulary of 8 D and 4 D tokens, a step is some 770 D^3 operations.
        width = _side((target.peak_flops_per_second("f32") * options.milliseconds / 1e3 / 770) ** (1 / 3))
        settings = {"layers": 2, "d_model": width, "heads": width // 64, "vocab": 8 * width, "seq": width, "batch": 4}
    example = model_of(options.model, settings)
    return replace(example, name=" ".join([f"{options.model} step", *(f"{key}={value}" for key, value in settings.items())]))


def _concrete(example: Example) -> tuple[Any, ...]:
    try:
        return example.concrete()
    except ValueError as error:  # worded for the user already
        raise ProgramError(str(error)) from None


def _partitioned(example: Example, devices: int, target: Target | None) -> Any:
    """The program on a mesh of `devices`, replicated."""
    from partir.api import jit
    from partir.mesh import Mesh

    step = jit(example.fun, mesh=Mesh(one=devices), donate_argnums=example.donate_argnums)
    return step.trace(*example.args).partition([], target=target)


def _side(size: float, unit: int = 64) -> int:
    """The side of a matrix: `size` rounded to a multiple of `unit`, at least one unit."""
    return max(1, round(size / unit)) * unit


def _predictions(fitted: Target, samples: Sequence[Sample]) -> list[tuple[str, float, float, float]]:
    """For each program: name, measured seconds, seconds predicted at the datasheet's rates, and predicted with the fit."""
    from partir.cost.target import Efficiency

    plain = Efficiency()
    return [(s.name, s.seconds, s.predicted(plain), s.predicted(fitted.efficiency)) for s in samples]


def _record(fitted: Target, samples: Sequence[Sample], notes: Sequence[str], code: str) -> dict[str, Any]:
    names = ("program", "seconds", "datasheet_seconds", "fitted_seconds")
    rows = _predictions(fitted, samples)
    return {
        "target": fitted.name,
        "efficiency": vars(fitted.efficiency),
        "programs": [dict(zip(names, row, strict=True)) for row in rows],
        "median_error": dict(zip(("datasheet", "fitted"), _medians(rows), strict=True)),
        "notes": list(notes),
        "code": code,
    }


def _medians(rows: Sequence[tuple[str, float, float, float]]) -> tuple[float, float]:
    """The median relative error of the predictions at the datasheet's rates, and with the fit."""
    from partir.cost.calibrate import off_by

    return statistics.median(off_by(p, s) for _, s, p, _ in rows), statistics.median(off_by(p, s) for _, s, _, p in rows)


def _text(fitted: Target, samples: Sequence[Sample], notes: Sequence[str], code: str) -> str:
    from partir.viz.report import seconds_text
    from partir.viz.table import Table

    rows = _predictions(fitted, samples)
    headings = ("program", "takes", "at datasheet rates", "", "with the fit", " ")
    cells = tuple(
        (name, seconds_text(took), seconds_text(plain), _signed(plain / took), seconds_text(fit), _signed(fit / took))
        for name, took, plain, fit in rows
    )
    plain, fit = _medians(rows)
    notes = [
        *notes,
        f"median error, as a factor: {1 + plain:.2f} at datasheet rates, {1 + fit:.2f} with the fit (on what it was fitted to)",
    ]
    title = f"{fitted.name}: {fitted.efficiency.fitted_on}"
    return f"{Table(title, headings, cells, tuple(notes), frozenset(headings[1:]))}\n\n{code}"


def _signed(ratio: float) -> str:
    return f"{(ratio - 1) * 100:+.0f} %"

"""`partir show`: what a model is made of and how a schedule partitions it; its IR; its strategy as a file. Needs no devices."""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from partir.cli.environment import host_devices
from partir.cli.inputs import DEFAULT_MESH, mesh_of, schedule_of, settings_of, target_of
from partir.errors import ProgramError, word

if TYPE_CHECKING:
    from partir.sharding.strategy import Strategy
    from partir.stages import Partitioned

IRS = ("core", "spmd", "stablehlo", "shardy")


def add_to(commands: Any) -> None:
    """Declare the subcommand and its options."""
    parser: argparse.ArgumentParser = commands.add_parser(
        "show",
        help="arguments with specs, scopes, dimension classes, collectives, IR",
        description="Show what a model is made of, and what a schedule makes of it.",
        epilog="""examples:
  partir show gpt
  partir show gpt --set layers=4 --schedule "DataParallel('data'), Megatron('model')" --out s.json
  partir show s.json --ir spmd
  partir show mymodels:train_step --strategy s.json --mesh data=8,model=2""",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("model", metavar="MODEL", help="a model of the zoo, module:function, or a strategy file")
    parser.add_argument(
        "--set", nargs="+", action="extend", default=[], metavar="NAME=VALUE", help="settings of the model: layers=4 tied=True"
    )
    parser.add_argument("--mesh", metavar="AXES", help=f"mesh axes, major first ({DEFAULT_MESH}; a strategy brings its own)")
    parser.add_argument("--schedule", default="", metavar="TACTICS", help="tactics in order: \"DataParallel('data'), ...\"")
    parser.add_argument("--strategy", metavar="FILE", help="a saved strategy, replayed before the schedule")
    parser.add_argument("--target", metavar="TARGET", help="the machine that costs are of: tpu_v3, h100, ..., or a target file")
    parser.add_argument("--out", metavar="FILE", help="save the strategy")
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--ir", choices=IRS, help="print this form of the program instead of the tables")
    form.add_argument("--all", action="store_true", help="every argument and class in a row of its own")
    parser.add_argument("--json", action="store_true", help="one JSON document on stdout")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Import, partition, save the strategy, print."""
    host_devices(1)
    from partir.viz.record import record_of

    mesh = mesh_of(options.mesh) if options.mesh else None
    needs_program = bool(options.schedule or options.ir or options.out or options.set or options.target)
    words, strategy = subject_of(options, needs_program=needs_program)
    if not words:
        assert strategy is not None
        print(json.dumps(strategy.to_json(), indent=1) if options.json else _held(strategy, options.model))
        return 0
    schedule: list[Any] = list(schedule_of(options.schedule))
    if strategy is not None:
        schedule.insert(0, strategy)
    if mesh is None:
        mesh = strategy.mesh if strategy is not None else mesh_of(DEFAULT_MESH)
    target = target_of(options.target) if options.target else None
    part = partitioned(words, schedule, mesh, target)
    text = _ir(part, options.ir) if options.ir else ""
    if options.out:
        dataclasses.replace(part.strategy, model=words).save(options.out)
        print(f"strategy of {len(part.strategy.actions)} actions saved to {options.out}", file=sys.stderr)
    if options.json:
        record = {"ir": options.ir, "text": text} if options.ir else record_of(part.history, target)
        print(json.dumps(record | {"actions": part.strategy.to_json()["actions"]}, indent=1))
    else:
        print(text if options.ir else _tables(part, every=options.all))
    return 0


def subject_of(options: argparse.Namespace, *, needs_program: bool) -> tuple[tuple[str, ...], Strategy | None]:
    """The words that name the model, and the strategy to replay. No words: a strategy that does not name a model of the zoo,
    which is an error where its program is needed."""
    from partir.sharding.strategy import load_strategy
    from partir.zoo import MODELS

    is_file = options.model.endswith(".json") or (":" not in options.model and Path(options.model).is_file())
    if not is_file:
        strategy = load_strategy(options.strategy) if options.strategy else None
        return (options.model, *options.set), strategy
    if options.strategy:
        raise ProgramError(
            word(f"two strategies: {options.model} and {options.strategy}", hint="name a model and one --strategy")
        )
    strategy = load_strategy(options.model)
    # A strategy file is data: only models of the zoo are made from its words, never a module imported.
    words = strategy.model if strategy.model and strategy.model[0] in MODELS else ()
    if not words and needs_program:
        raise ProgramError(
            word(
                f"the strategy {options.model} does not say how to make its program",
                why=f"it was made for {' '.join(strategy.model)}" if strategy.model else "it was not saved by partir show",
                hint=_again(strategy, options.model, options.command),
            )
        )
    return (*words, *options.set) if words else (), strategy


def partitioned(words: tuple[str, ...], schedule: list[Any], mesh: Any, target: Any = None) -> Partitioned:
    """The model that the words name, partitioned; its report has costs where a target is given."""
    from partir.api import jit
    from partir.cli.model import model_of

    example = model_of(words[0], settings_of(words[1:]))
    return (
        jit(example.fun, mesh=mesh, donate_argnums=example.donate_argnums)
        .trace(*example.args)
        .partition(schedule, target=target)
    )


def _held(strategy: Strategy, path: str) -> str:
    """What a strategy file says when the program is not at hand."""
    from partir.viz.report import mesh_text

    actions = "\n".join(f"  {action}" for action in strategy.actions)
    made_for = f" ({' '.join(strategy.model)})" if strategy.model else ""
    return (
        f"{path}: a strategy for {strategy.name}{made_for} on mesh {mesh_text(strategy.mesh)}, "
        f"{len(strategy.arguments)} arguments\n{actions}\n"
        f"to see what it does: {_again(strategy, path)}"
    )


def _again(strategy: Strategy, path: str, command: str = "show") -> str:
    """The command that shows (or verifies) a strategy on its program."""
    model, *settings = strategy.model or ("MODEL",)
    return f"partir {command} {model} {'--set ' + ' '.join(settings) + ' ' if settings else ''}--strategy {path}"


def _ir(part: Partitioned, name: str) -> str:
    from partir.dialect.text import to_text

    if name == "core":
        return to_text(part.core)
    if name == "spmd":
        return to_text(part.spmd)
    return part.stablehlo() if name == "stablehlo" else part.shardy()


def _tables(part: Partitioned, *, every: bool) -> str:
    from partir.viz import inventory, report

    tables = [
        part.report(),
        report.arguments_table(part.program, part.plan, brief=not every),
        inventory.scopes_table(part.traced.scopes),
        inventory.classes_table(part.assignment, brief=not every),
        inventory.scope_collectives_table(part.plan),
    ]
    conflicts = report.shortened(part.conflicts, "conflicts: where two dims wanted one axis")
    return "\n\n".join([*map(str, tables), *(["\n".join(conflicts)] if conflicts else [])])

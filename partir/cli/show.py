"""`partir show`: shows a model and how a schedule partitions it, prints its IR, saves its strategy; needs no devices."""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
from typing import TYPE_CHECKING, Any

from partir.cli.environment import host_devices
from partir.cli.inputs import target_of
from partir.cli.subject import add_partitioning, again, partitioned, partitioning_of, subject_of

if TYPE_CHECKING:
    from partir.sharding.strategy import Strategy
    from partir.stages import Partitioned

IRS = ("core", "spmd", "stablehlo", "shardy")


def add_to(commands: Any) -> None:
    """Declare the subcommand and its options."""
    parser: argparse.ArgumentParser = commands.add_parser(
        "show",
        help="arguments with specs, scopes, dimension classes, collectives, IR",
        description="Show a model's arguments, scopes and dimension classes, and how a schedule partitions it.",
        epilog="""examples:
  partir show gpt
  partir show gpt --set layers=4 --schedule "DataParallel('data'), Megatron('model')" --out s.json
  partir show s.json --ir spmd
  partir show mymodels:train_step --strategy s.json --mesh data=8,model=2""",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("model", metavar="MODEL", help="a model of the zoo, module:function, or a strategy file")
    add_partitioning(parser)
    parser.add_argument("--target", metavar="TARGET", help="the machine to price it on: tpu_v3, h100, ..., or a target file")
    parser.add_argument("--out", metavar="FILE", help="save the strategy")
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--ir", choices=IRS, help="print this form of the program instead of the tables")
    form.add_argument("--all", action="store_true", help="every argument and class in a row of its own")
    parser.add_argument("--json", action="store_true", help="one JSON document on stdout")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Import the model, partition it, save the strategy, and print tables or IR."""
    host_devices(1)
    from partir.viz.record import record_of

    needs_program = bool(options.schedule or options.ir or options.out or options.set or options.target)
    words, strategy = subject_of(options, needs_program=needs_program)
    if not words:
        assert strategy is not None
        print(json.dumps(strategy.to_json(), indent=1) if options.json else _strategy_text(strategy, options.model))
        return 0
    mesh, schedule = partitioning_of(options, strategy)
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


def _strategy_text(strategy: Strategy, path: str) -> str:
    """The contents of a strategy file, for when its program is not known."""
    from partir.viz.report import mesh_text

    actions = "\n".join(f"  {action}" for action in strategy.actions)
    made_for = f" ({' '.join(strategy.model)})" if strategy.model else ""
    return (
        f"{path}: a strategy for {strategy.name}{made_for} on mesh {mesh_text(strategy.mesh)}, "
        f"{len(strategy.arguments)} arguments\n{actions}\n"
        f"to see what it does: {again(strategy, path)}"
    )


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

"""What a subcommand works on: the model that its options name, and the strategy, mesh and schedule that come with it."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from partir.cli.inputs import DEFAULT_MESH, mesh_of, schedule_of, settings_of
from partir.errors import ProgramError, error_text

if TYPE_CHECKING:
    from partir.mesh import Mesh
    from partir.sharding.strategy import Strategy
    from partir.stages import Partitioned, Traced


def add_settings(parser: argparse.ArgumentParser) -> None:
    """Declare --set."""
    parser.add_argument(
        "--set", nargs="+", action="extend", default=[], metavar="NAME=VALUE", help="settings of the model: layers=4 tied=True"
    )


def add_partitioning(parser: argparse.ArgumentParser) -> None:
    """Declare what partitions a model: --set, --mesh, --schedule and --strategy."""
    add_settings(parser)
    parser.add_argument("--mesh", metavar="AXES", help=f"mesh axes, major first ({DEFAULT_MESH}; a strategy brings its own)")
    parser.add_argument("--schedule", default="", metavar="TACTICS", help="tactics in order: \"DataParallel('data'), ...\"")
    parser.add_argument("--strategy", metavar="FILE", help="a saved strategy, replayed before the schedule")


def partitioning_of(options: argparse.Namespace, strategy: Strategy | None) -> tuple[Mesh, list[Any]]:
    """The mesh and the schedule that options name; a strategy comes first, and brings its mesh where none is named."""
    mesh = mesh_of(options.mesh) if options.mesh else strategy.mesh if strategy is not None else mesh_of(DEFAULT_MESH)
    return mesh, [*([strategy] if strategy is not None else []), *schedule_of(options.schedule)]


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
            error_text(f"two strategies: {options.model} and {options.strategy}", hint="name a model and one --strategy")
        )
    strategy = load_strategy(options.model)
    # A strategy file is data: only models of the zoo are made from its words, never a module imported.
    words = strategy.model if strategy.model and strategy.model[0] in MODELS else ()
    if not words and needs_program:
        raise ProgramError(
            error_text(
                f"the strategy {options.model} does not say how to make its program",
                why=f"it was made for {' '.join(strategy.model)}" if strategy.model else "it was not saved by partir show",
                hint=again(strategy, options.model, options.command),
            )
        )
    return (*words, *options.set) if words else (), strategy


def traced_of(words: tuple[str, ...], mesh: Any) -> Traced:
    """The model that the words name, imported."""
    from partir.api import jit
    from partir.cli.model import model_of

    example = model_of(words[0], settings_of(words[1:]))
    return jit(example.fun, mesh=mesh, donate_argnums=example.donate_argnums).trace(*example.args)


def partitioned(words: tuple[str, ...], schedule: list[Any], mesh: Any, target: Any = None) -> Partitioned:
    """The model that the words name, partitioned; its report has costs where a target is given."""
    return traced_of(words, mesh).partition(schedule, target=target)


def again(strategy: Strategy, path: str, command: str = "show") -> str:
    """The command that shows (or verifies) a strategy on its program."""
    model, *settings = strategy.model or ("MODEL",)
    return f"partir {command} {model} {'--set ' + ' '.join(settings) + ' ' if settings else ''}--strategy {path}"

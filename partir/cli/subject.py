"""Finds what a subcommand works on: the model that its options name, with its strategy, mesh and schedule."""

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
    """Declare the option --set."""
    parser.add_argument(
        "--set", nargs="+", action="extend", default=[], metavar="NAME=VALUE", help="settings of the model: layers=4 tied=True"
    )


def add_partitioning(parser: argparse.ArgumentParser) -> None:
    """Declare the options that say how to partition a model: --set, --mesh, --schedule and --strategy."""
    add_settings(parser)
    parser.add_argument("--mesh", metavar="AXES", help=f"mesh axes, major first ({DEFAULT_MESH}, or the strategy's mesh)")
    parser.add_argument("--schedule", default="", metavar="TACTICS", help="tactics in order: \"DataParallel('data'), ...\"")
    parser.add_argument("--strategy", metavar="FILE", help="a saved strategy, replayed before the schedule")


def partitioning_of(options: argparse.Namespace, strategy: Strategy | None) -> tuple[Mesh, list[Any]]:
    """The mesh and the schedule that options name. A strategy is first in the schedule; its mesh is the default."""
    mesh = mesh_of(options.mesh) if options.mesh else strategy.mesh if strategy is not None else mesh_of(DEFAULT_MESH)
    return mesh, [*([strategy] if strategy is not None else []), *schedule_of(options.schedule)]


def subject_of(options: argparse.Namespace, *, needs_program: bool) -> tuple[tuple[str, ...], Strategy | None]:
    """The words that name the model (its name, and settings), and the strategy to replay.

    There are no words if MODEL is a strategy file that names no model of the zoo. Raises ProgramError for that if
    `needs_program`.
    """
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
    # A strategy file is data, perhaps from somebody else: its words may name a model of the zoo, but never import a module.
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
    """Import the model that the words name."""
    from partir.api import jit
    from partir.cli.model import model_of

    example = model_of(words[0], settings_of(words[1:]))
    return jit(example.fun, mesh=mesh, donate_argnums=example.donate_argnums).trace(*example.args)


def partitioned(words: tuple[str, ...], schedule: list[Any], mesh: Any, target: Any = None) -> Partitioned:
    """Import and partition the model that the words name. With a target its report has costs."""
    return traced_of(words, mesh).partition(schedule, target=target)


def again(strategy: Strategy, path: str, command: str = "show") -> str:
    """The command line that shows (or verifies) a strategy on its program, for messages."""
    model, *settings = strategy.model or ("MODEL",)
    return f"partir {command} {model} {'--set ' + ' '.join(settings) + ' ' if settings else ''}--strategy {path}"

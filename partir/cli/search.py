"""`partir search`: finds a strategy for a model and shows why it is good; needs no devices."""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
from typing import TYPE_CHECKING, Any

from partir.cli.environment import host_devices
from partir.cli.inputs import DEFAULT_MESH, mesh_of, near, schedule_of, target_of
from partir.cli.subject import add_settings, traced_of
from partir.errors import SearchError, error_text

if TYPE_CHECKING:
    from partir.search import Result, Searcher
    from partir.stages import Partitioned

ALGORITHMS = ("mcts", "beam", "random", "exhaustive")


def add_to(commands: Any) -> None:
    """Declare the subcommand and its options."""
    parser: argparse.ArgumentParser = commands.add_parser(
        "search",
        help="find a strategy, and say why it is good",
        description="Search for the strategy with the fastest estimated step that fits into memory, on a mesh and a target.",
        epilog="""examples:
  partir search gpt --set layers=24 --mesh data=4,model=2 --target tpu_v3
  partir search gpt --schedule "DataParallel('data')" --axes model --out s.json
  partir search moe --target h100 --algorithm beam --json
  partir search gpt --set layers=2 --target tpu_v5e --topology tpu:v5e:2x4""",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("model", metavar="MODEL", help="a model of the zoo, or module:function")
    add_settings(parser)
    parser.add_argument("--mesh", default=DEFAULT_MESH, metavar="AXES", help=f"mesh axes, major first ({DEFAULT_MESH})")
    parser.add_argument("--target", required=True, metavar="TARGET", help="the machine: tpu_v3, h100, ..., or a target file")
    parser.add_argument("--schedule", default="", metavar="TACTICS", help="tactics before the search, which it does not change")
    parser.add_argument("--axes", metavar="AXES", help="the mesh axes to decide on: data,model (default: all)")
    parser.add_argument("--scopes", metavar="SCOPES", help="decide only within these named scopes: attention-block,mlp-block")
    parser.add_argument("--algorithm", choices=ALGORITHMS, default="mcts", help="the searcher (mcts)")
    parser.add_argument("--episodes", type=int, metavar="N", help="its budget in episodes (500)")
    parser.add_argument("--seconds", type=float, metavar="S", help="its budget in seconds")
    parser.add_argument(
        "--patience",
        type=int,
        metavar="N",
        help="stop after N episodes without improvement (100, more for large models; 0, or with --seconds: never)",
    )
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="the seed of random choices (0)")
    parser.add_argument(
        "--topology",
        metavar="TOPOLOGY",
        help="compile the best and its alternatives with the real compiler (tpu:v3:2x2, gpu:h100:8) and take the fastest",
    )
    parser.add_argument("--out", metavar="FILE", help="save the strategy")
    parser.add_argument("--json", action="store_true", help="one JSON document on stdout")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Import the model, search, save the strategy, and print tables."""
    host_devices(1)
    from partir.cli.compiled import compiled, compiled_table, records
    from partir.tactics import Search
    from partir.verify.real_compilers import Topology
    from partir.viz.found import record_of
    from partir.viz.progress import bar
    from partir.viz.record import record_of as tactics_record

    mesh = mesh_of(options.mesh)
    target = target_of(options.target)
    if options.topology:
        Topology.parse(options.topology).check(mesh)
    axes = options.axes.split(",") if options.axes else list(mesh.names)
    scopes = options.scopes.split(",") if options.scopes else None
    with bar(f"searching on {target.name}") as show:
        search = Search(tuple(axes), searcher_of(options), scopes, target=target, show=show)
        words = (options.model, *options.set)
        traced = traced_of(words, mesh)
        part = traced.partition([*schedule_of(options.schedule), search], target=target)
    result = search.result
    assert result is not None
    tried = compiled(traced, result, options.topology) if options.topology else []
    if tried and tried[0].part.strategy.actions != part.strategy.actions:
        state, part = tried[0].state, tried[0].part
        result = dataclasses.replace(result, state=state, price=result.environment.price(state))
    if options.out:
        dataclasses.replace(part.strategy, model=words).save(options.out)
        print(f"strategy of {len(part.strategy.actions)} actions saved to {options.out}", file=sys.stderr)
    if options.json:
        found = tactics_record(part.history, target) | {"search": record_of(result)}
        found |= {"compiled": records(tried)} if tried else {}
        print(json.dumps(found | {"actions": part.strategy.to_json()["actions"]}, indent=1))
    else:
        print(_tables(part, result))
        if tried:
            print(f"\n{compiled_table(tried, options.topology)}")
    return 0


def searcher_of(options: argparse.Namespace) -> Searcher:
    """The searcher that --algorithm, --episodes, --seconds, --patience and --seed name."""
    from partir.search import MCTS, Beam, Exhaustive, Random

    if options.episodes is not None and options.episodes < 1:
        raise SearchError(error_text(f"a budget of {options.episodes} episodes", hint="--episodes 500"))
    if options.seconds is not None and options.seconds <= 0:
        raise SearchError(error_text(f"a budget of {options.seconds:g} seconds", hint="--seconds 30"))
    if options.patience is not None and options.patience < 0:
        raise SearchError(
            error_text(f"a patience of {options.patience} episodes", hint="--patience 100, or 0 to use the whole budget")
        )
    many = sys.maxsize if options.seconds is not None else 500
    episodes = options.episodes if options.episodes is not None else many
    if options.algorithm == "mcts":
        patience = MCTS.patience if options.seconds is None else None
        if options.patience is not None:
            patience = options.patience or None
        return MCTS(episodes, options.seconds, options.seed, patience=patience)
    if options.algorithm == "random":
        return Random(episodes, options.seconds, options.seed)
    if options.algorithm == "beam":
        return Beam(episodes=options.episodes, seconds=options.seconds)
    if options.episodes is not None or options.seconds is not None:
        raise SearchError(error_text("exhaustive search has no budget", hint=f"--algorithm {near('mcts', ALGORITHMS[:2])}"))
    return Exhaustive()


def _tables(part: Partitioned, result: Result) -> str:
    from partir.viz import found, report

    return "\n\n".join(
        str(table)
        for table in (
            part.report(),
            report.arguments_table(part.program, part.plan, brief=True),
            found.decisions_table(result),
            found.rejected_table(result),
            found.trace_table(result),
        )
    )

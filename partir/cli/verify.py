"""`partir verify`: compares a prediction with the real compiler of a machine that this computer does not have."""

from __future__ import annotations

import argparse
import json
import sys
from typing import Any

from partir.cli.environment import host_devices
from partir.cli.subject import add_partitioning, partitioned, partitioning_of, subject_of


def add_to(commands: Any) -> None:
    """Declare the subcommand and its options."""
    parser: argparse.ArgumentParser = commands.add_parser(
        "verify",
        help="compile with the real TPU or GPU compiler and compare it with the prediction",
        description="Compile a partitioned model with the real compiler of a machine, in a child process, and compare the "
        "result with the prediction. Needs no TPU or GPU, only the compiler: pip install 'partir[tpu]' or 'partir[gpu]'.",
        epilog="""examples:
  partir verify s.json --topology tpu:v3:2x2
  partir verify gpt --set layers=2 --schedule "DataParallel('data'), Megatron('model')" --topology gpu:h100:8
  partir verify mymodels:train_step --strategy s.json --topology tpu:v5e:4x4

topologies: tpu:KIND:2x4 (v2 v3 v4 v5e v5p v6e; chips in each direction), gpu:KIND:8 or gpu:KIND:NODESxGPUS
(v100 a100 h100 h200 b200), cpu:8; the mesh must have as many devices.""",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("model", metavar="STRATEGY", help="a strategy file, a model of the zoo, or module:function")
    parser.add_argument(
        "--topology", required=True, metavar="TOPOLOGY", help="the machine to compile for: tpu:v3:2x2, gpu:h100:8"
    )
    add_partitioning(parser)
    parser.add_argument("--timeout", type=float, default=1800.0, metavar="SECONDS", help="stop the compiler after this (1800)")
    parser.add_argument("--json", action="store_true", help="one JSON document on stdout")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Import the model, partition it, compile it, and print the comparison."""
    host_devices(1)
    from partir.verify.real_compilers import Topology

    topology = Topology.parse(options.topology)
    words, strategy = subject_of(options, needs_program=True)
    mesh, schedule = partitioning_of(options, strategy)
    topology.check(mesh)
    part = partitioned(words, schedule, mesh)
    print(f"... compiling {part.program.name} for {topology}", file=sys.stderr, flush=True)
    found = part.verify(str(topology), timeout_seconds=options.timeout)
    print(json.dumps(found.record(), indent=1) if options.json else found)
    return 0

"""The command `partir`: finds the subcommand and runs it. Exit codes: 0 done, 1 an error or a failed check, 2 wrong usage."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence

import partir
from partir.cli import calibrate, demo, search, show, sweep, verify
from partir.errors import PartirError


def parser() -> argparse.ArgumentParser:
    """The parser of the whole command line. Building it does not import JAX, so that --help is fast."""
    top = argparse.ArgumentParser(prog="partir", description="Partition JAX programs over device meshes.")
    top.add_argument("--version", action="version", version=f"partir {partir.__version__}")
    commands = top.add_subparsers(dest="command", required=True, metavar="COMMAND")
    demo.add_to(commands)
    show.add_to(commands)
    search.add_to(commands)
    sweep.add_to(commands)
    verify.add_to(commands)
    calibrate.add_to(commands)
    commands.add_parser("opt", add_help=False, help="read IR, run passes over it, print it (partir opt --help)")
    return top


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command line; returns the exit code."""
    argv = sys.argv[1:] if argv is None else list(argv)
    if argv[:1] == ["opt"]:  # its options are xDSL's
        from partir.cli import opt

        return opt.main(argv[1:])
    try:
        options = parser().parse_args(argv)
        return options.run(options)
    except PartirError as error:
        print(error, file=sys.stderr)
        return 1
    except BrokenPipeError:  # `partir show ... | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except SystemExit as leaving:  # argparse: 0 after --help, 2 after a usage error
        return leaving.code if isinstance(leaving.code, int) else 2


if __name__ == "__main__":
    sys.exit(main())

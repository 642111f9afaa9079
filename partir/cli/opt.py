"""`partir opt`: reads IR, runs passes and prints IR. It is xDSL's `xdsl-opt` with our dialects and our parser of literals."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from typing import IO

from xdsl.dialects.builtin import ModuleOp
from xdsl.universe import XDSL_UNIVERSE
from xdsl.utils.exceptions import DiagnosticException, ParseError
from xdsl.xdsl_opt_main import xDSLOptMain

from partir.dialect.text import DIALECTS, ModuleParser
from partir.errors import PartirError
from partir.universe import PARTIR_UNIVERSE


class OptMain(xDSLOptMain):
    """xDSL's driver with our dialects before its own, and without plug-ins: it is the same if partir is not installed."""

    def register_all_dialects(self) -> None:
        for dialect in DIALECTS:
            self.ctx.load_dialect(dialect)
        for name, factory in XDSL_UNIVERSE.all_dialects.items():
            if name not in self.ctx.registered_dialect_names:
                self.ctx.register_dialect(name, factory)

    def register_all_passes(self) -> None:
        for name, factory in (XDSL_UNIVERSE.all_passes | PARTIR_UNIVERSE.all_passes).items():
            self.register_pass(name, factory)

    def register_all_targets(self) -> None:
        self.available_targets.update(XDSL_UNIVERSE.all_targets)

    def register_all_frontends(self) -> None:
        def read(text: IO[str]) -> ModuleOp:
            return ModuleParser(self.ctx, text.read(), self.get_input_name()).parse_module(not self.args.no_implicit_module)

        self.available_frontends["mlir"] = read

    def register_all_arguments(self, arg_parser: argparse.ArgumentParser) -> None:
        super().register_all_arguments(arg_parser)
        arg_parser.add_argument(
            "--generic",
            dest="print_op_generic",
            default=False,
            action="store_true",
            help="print the generic form, which MLIR reads (as --print-op-generic)",
        )


def main(argv: Sequence[str] | None = None) -> int:
    """Run the driver on `argv` (without the program's name). Returns 0 when done, 1 for wrong input, 2 for wrong usage."""
    try:
        OptMain("Read IR from a file or stdin, run passes over it, and print it.", args=argv).run()
    except ParseError as error:
        print(error, file=sys.stderr)
    except (DiagnosticException, PartirError, OSError, ValueError) as error:
        print("\n".join([str(error), *getattr(error, "__notes__", ())]), file=sys.stderr)
    except SystemExit as leaving:  # argparse
        return leaving.code if isinstance(leaving.code, int) else 2
    else:
        return 0
    return 1


if __name__ == "__main__":
    sys.exit(main())

"""Text in, text out: each `.mlir` file says how to run it: `// RUN: partir opt %s -p … | filecheck %s`."""

import os
import sys
from pathlib import Path

import lit.formats

ROOT = Path(__file__).parents[2]

config.name = "partir"  # noqa: F821 (lit runs this file with `config` and `lit_config` set)
config.test_format = lit.formats.ShTest(execute_external=False)  # noqa: F821
config.suffixes = [".mlir"]  # noqa: F821
config.test_source_root = str(Path(__file__).parent)  # noqa: F821
# What is in this checkout, installed or not, without the rest of the command line.
config.substitutions.append(("partir opt", f"{sys.executable} -m partir.cli.opt"))  # noqa: F821
config.environment["PYTHONPATH"] = str(ROOT)  # noqa: F821
config.environment["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])  # noqa: F821
config.environment["JAX_PLATFORMS"] = "cpu"  # noqa: F821

"""ZeRO-3 in the compiled program: every parameter is gathered once per phase that uses it, and not kept in between."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.jax, pytest.mark.slow]


def test_zero_3_does_not_keep_gathered_parameters() -> None:
    script = Path(__file__).parent / "zero_memory.py"
    paths = [str(script.parents[1]), os.environ.get("PYTHONPATH", "")]

    out = subprocess.run(
        [sys.executable, str(script)],
        check=True,
        capture_output=True,
        text=True,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(paths)},
    ).stdout
    found = json.loads(out.splitlines()[-1])
    whole, sharded, parameters = found["data_parallel"], found["zero_3"], found["parameters"]

    assert sharded["compiled"]["all_gather"] == sharded["planned"]["all_gather"]
    assert whole["temporary"] > parameters
    assert sharded["temporary"] < 0.5 * parameters
    assert sharded["arguments"] < whole["arguments"] / 7

"""`partir demo`, small."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from partir.cli import demo
from partir.cli.demo import Comparison, difference, schedule_text, settings_for
from partir.cli.main import main
from partir.errors import MeshError
from partir.mesh import Mesh

ROOT = Path(__file__).parents[2]


@pytest.mark.jax
@pytest.mark.slow
def test_demo_agrees_and_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    code = main(["demo", "--layers", "1", "--mesh", "data=2,model=2"])

    captured = capsys.readouterr()
    assert code == 0
    assert "the partitioned step computes what the unpartitioned step computes" in captured.out
    assert [line.split("(")[0] for line in captured.out.splitlines() if re.match(r"[A-Z]\w+\('", line)] == [
        "DataParallel",
        "Megatron",
        "ZeRO",
        "SequenceParallel",
    ]
    assert "params/layer_0/attention/query/w" in captured.out
    assert "partir show gpt --set layers=1" in captured.out
    assert captured.err.startswith("... importing")


@pytest.mark.jax
@pytest.mark.slow
def test_demo_in_a_process_of_its_own_has_the_devices_of_its_mesh() -> None:
    clean = {key: value for key, value in os.environ.items() if key != "JAX_PLATFORMS"}
    clean["XLA_FLAGS"] = " ".join(flag for flag in os.environ["XLA_FLAGS"].split() if "device_count" not in flag)
    command = [sys.executable, "-m", "partir", "demo", "--layers", "1", "--mesh", "data=3", "--json"]
    command += ["--schedule", "DataParallel('data')"]

    done = subprocess.run(command, capture_output=True, text=True, env=clean | {"PYTHONPATH": str(ROOT)}, cwd=ROOT, check=False)

    assert done.returncode == 0, done.stderr
    record = json.loads(done.stdout)
    assert record["agrees"] is True
    assert record["settings"]["batch"] == 9
    assert record["donated_bytes_per_device"] == record["aliased_bytes_per_device"] > 0
    assert record["float64"]["parameter_difference"] <= 1e-9
    assert record["search"]["parameter_difference"] <= 1e-9
    assert record["search"]["step_seconds"] > 0
    assert record["tactics"][0]["collectives"] == {"all_reduce": 22}
    assert {argument["path"]: argument["spec"] for argument in record["arguments"]}["batch/tokens"] == ["data"]


@pytest.mark.jax
@pytest.mark.slow
def test_a_difference_is_exit_1(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(demo, "compare", lambda *_: Comparison((1.0,), (1.0,), 1e-3, "params/w"))

    assert main(["demo", "--layers", "1", "--mesh", "data=2"]) == 1

    out = capsys.readouterr().out
    assert "DIFFERS" in out
    assert "1.0e-03 (params/w)" in out


@pytest.mark.core
def test_schedule_for_the_axes_there_are() -> None:
    assert schedule_text(Mesh(x=4)) == "DataParallel('x'), ZeRO('x', stage=3)"
    assert schedule_text(Mesh(x=4, y=2)).startswith("DataParallel('x'), Megatron('y'), ZeRO('x', stage=3)")
    with pytest.raises(MeshError, match="one or two mesh axes, not 3"):
        schedule_text(Mesh(x=2, y=2, z=2))


@pytest.mark.core
@pytest.mark.parametrize(("devices", "batch"), [(1, 8), (3, 9), (4, 8), (8, 8), (12, 12)])
def test_the_batch_divides(devices: int, batch: int) -> None:
    assert settings_for(2, Mesh(data=devices))["batch"] == batch


@pytest.mark.core
def test_difference_is_relative_to_the_largest_entry() -> None:
    assert difference(np.array([1.0, -4.0]), np.array([1.0, -4.0 + 4e-6])) == pytest.approx(1e-6)


@pytest.mark.jax
@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--layers", "0"], "0 layers"),
        (["--mesh", "data=2,model=2,pipe=2"], "one or two mesh axes"),
        (["--schedule", "Megatron('x')", "--layers", "1"], 'no mesh axis "x"'),
        (["--mesh", "data=64", "--layers", "1"], "needs 64 devices"),
    ],
)
def test_what_a_user_got_wrong_is_exit_1(arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["demo", *arguments]) == 1
    captured = capsys.readouterr()
    assert said in captured.err
    assert captured.out == ""

"""`partir verify`, with the host's compiler."""

import json
from pathlib import Path

import pytest

from partir.cli.main import main

pytestmark = pytest.mark.jax

MLP = ["mlp", "--set", "widths=(16,32,8)", "batch=8"]


def test_a_saved_strategy_is_compiled_and_compared(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = str(tmp_path / "s.json")
    assert main(["show", *MLP, "--schedule", "DataParallel('data')", "--mesh", "data=8", "--out", file]) == 0
    capsys.readouterr()

    assert main(["verify", file, "--topology", "cpu:8", "--json"]) == 0

    record = json.loads(capsys.readouterr().out)
    assert record["topology"] == "cpu:8"
    assert record["predicted"]["collectives"] == record["compiler"]["collectives"] == {"all_reduce": 5}
    assert record["compiler"]["memory"]["argument"] == record["predicted"]["memory"]["argument"]
    assert set(record["errors"]) >= {"peak_bytes", "compute_seconds", "step_seconds"}


def test_a_model_with_a_schedule_prints_a_table(capsys: pytest.CaptureFixture[str]) -> None:
    code = main(["verify", *MLP, "--schedule", "DataParallel('data')", "--mesh", "data=2", "--topology", "cpu:2"])

    captured = capsys.readouterr()
    rows = [line.split() for line in captured.out.splitlines()]
    assert code == 0
    assert captured.out.startswith("train_step compiled for cpu:2, per device and step\n")
    assert ["all_reduce", "5", "5", "equal"] in rows
    assert captured.err == "... compiling train_step for cpu:2\n"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["mlp", "--topology", "cpu:4"], "the mesh data=4, model=2 does not fill cpu:4"),
        (["mlp", "--topology", "tpu"], 'cannot read the topology "tpu"'),
        (["nothing.json", "--topology", "cpu:8"], "no strategy file nothing.json"),
        (["mlp", "--topology", "cpu:8", "--timeout", "0.01"], "still compiling after 0.01 seconds"),
    ],
)
def test_what_went_wrong_is_exit_1_and_nothing_on_stdout(
    arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    code = main(["verify", *arguments])

    captured = capsys.readouterr()
    assert code == 1
    assert said in captured.err
    assert captured.out == ""


def test_a_topology_is_needed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["verify", "mlp"]) == 2
    assert "--topology" in capsys.readouterr().err

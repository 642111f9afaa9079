"""`partir search` and `partir sweep`, as a user starts them."""

import csv
import json
import os
import random
import signal
import subprocess
import sys
import time

import pytest

from partir.cli import cases
from partir.cli.main import main
from partir.errors import ProgramError

pytestmark = pytest.mark.jax

SMALL = ["--set", "widths=(1024,4096,1024)", "batch=4096", "--mesh", "data=2,model=2", "--target", "tpu_v3", "--episodes", "30"]

SWEEP = """
[[models]]
name = "mlp"
widths = [[16, 32, 16], [16, 64, 16]]
batch = [8, 16]

[sweep]
devices = 4
axes = ["data", "model"]
targets = ["tpu_v3"]

[schedules]
batch = "DataParallel('data')"
found = "Search(('data', 'model'), MCTS(20))"
"""


def test_search_prints_the_strategy_and_why(capsys):
    assert main(["search", "mlp", *SMALL]) == 0

    out = capsys.readouterr().out
    assert "found on tpu_v3:" in out
    assert "step without it" in out
    assert "rejected decisions, the best first" in out
    assert "best so far" in out


def test_search_compiles_its_best_and_the_alternatives_and_takes_the_fastest(tmp_path, capsys):
    path = str(tmp_path / "s.json")

    assert main(["search", "mlp", *SMALL, "--topology", "cpu:4", "--out", path, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)

    seconds = [one["step_seconds"] for one in found["compiled"]]
    assert len(seconds) > 1
    assert all(second > 0 for second in seconds)
    assert seconds == sorted(seconds)
    taken = found["compiled"][0]
    assert [d["decision"] for d in found["search"]["decisions"]] == taken["decisions"]
    assert main(["verify", path, "--topology", "cpu:4", "--json"]) == 0
    again = json.loads(capsys.readouterr().out)
    assert again["compiler"]["step_seconds"] == pytest.approx(taken["step_seconds"])


def test_a_topology_is_looked_at_before_the_search(capsys):
    assert main(["search", "mlp", *SMALL, "--topology", "cpu:8"]) == 1

    captured = capsys.readouterr()
    assert "8" in captured.err
    assert "searching" not in captured.err


def test_search_saves_a_strategy_that_show_replays(tmp_path, capsys):
    path = str(tmp_path / "s.json")

    assert main(["search", "mlp", *SMALL, "--out", path, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert main(["show", path, "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)

    assert shown["actions"] == found["actions"]
    assert found["search"]["fits"]
    assert found["search"]["trace"][0]["step_seconds"] > found["search"]["step_seconds"]


def test_search_keeps_the_tactics_before_it(capsys):
    assert main(["search", "mlp", *SMALL, "--schedule", "DataParallel('data')", "--axes", "model", "--json"]) == 0

    actions = json.loads(capsys.readouterr().out)["actions"]
    assert actions[0]["axis"] == "data"
    assert {a["axis"] for a in actions[1:]} <= {"model"}


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--episodes", "0"], "a budget of 0 episodes"),
        (["--patience", "-1"], "a patience of -1 episodes"),
        (["--target", "tpu_v99"], "tpu_v99"),
        (["--axes", "nowhere"], 'no mesh axis "nowhere"'),
        (["--algorithm", "exhaustive"], "exhaustive search has no budget"),
        (["--scopes", "nowhere"], "nothing to decide"),
    ],
)
def test_bad_input_is_one_message_and_exit_code_1(arguments, says, capsys):
    assert main(["search", "mlp", *SMALL, *arguments]) == 1

    assert says in capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("models = 3", "has no models"),
        ("[[models]]\nlayers = 2\n[sweep]\n[schedules]", "has no sweep"),
        (SWEEP.replace("tpu_v3", "tpu_v99"), "tpu_v99"),
        (SWEEP.replace("DataParallel('data')", "Nothing('data')"), "Nothing"),
        (SWEEP.replace("devices = 4", "devices = 0"), "not a number of devices"),
        (SWEEP + "\n[more]\nx = 1", "nothing reads it"),
        ("[[models", "is not TOML"),
    ],
)
def test_a_sweep_file_is_checked_before_anything_runs(text, says, tmp_path):
    path = tmp_path / "sweep.toml"
    path.write_text(text)

    with pytest.raises(ProgramError, match=says):
        cases.read(str(path))


def start_sweep(file, out):
    command = [sys.executable, "-m", "partir", "sweep", str(file), "--out", str(out), "--jobs", "2"]
    return subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True)


def rows(out):
    """The table without what a clock says."""
    with open(out / "table.csv") as file:
        return list(csv.DictReader(file))


@pytest.mark.slow
def test_a_sweep_that_is_killed_three_times_ends_with_the_same_table(tmp_path):
    file = tmp_path / "sweep.toml"
    file.write_text(SWEEP)
    assert len(cases.read(str(file))) == 24
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    assert start_sweep(file, whole).wait() == 0

    chance = random.Random(0)
    for _ in range(3):
        under_way = start_sweep(file, broken)
        before = len(list((broken / "cases").glob("*.json"))) if broken.exists() else 0
        enough = before + chance.randint(1, 5)
        while under_way.poll() is None and len(list((broken / "cases").glob("*.json"))) < enough:
            time.sleep(0.05)
        if under_way.poll() is None:
            os.killpg(under_way.pid, signal.SIGKILL)
        under_way.wait()
        kept = len(list((broken / "cases").glob("*.json")))
        assert kept >= min(enough, 24)
    assert start_sweep(file, broken).wait() == 0

    assert rows(broken) == rows(whole)
    assert (broken / "pareto.svg").read_text().startswith("<?xml")

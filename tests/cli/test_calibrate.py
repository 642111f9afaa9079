"""`partir calibrate` on the host, with programs of half a millisecond."""

import dataclasses
import json
from pathlib import Path

import pytest

import partir
from partir.cli import calibrate
from partir.cli.calibrate import compiled, programs
from partir.cli.main import main
from partir.targets import get, load

pytestmark = pytest.mark.jax

SMALL = ["calibrate", "--milliseconds", "0.5", "--model", "mlp", "--set", "widths=(64,256,64)", "batch=256"]


def test_a_fit_to_this_machine_is_a_target_file_and_code(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = str(tmp_path / "mine.json")

    assert main([*SMALL, "--json", "--out", file]) == 0

    captured = capsys.readouterr()
    record, saved = json.loads(captured.out), load(file)
    assert record["median_error"].keys() == {"fitted", "datasheet"}  # which is smaller, the clock says: no test can
    assert len(record["programs"]) >= 8
    assert all(row["seconds"] > 0 and row["fitted_seconds"] > 0 for row in record["programs"])
    assert saved == dataclasses.replace(get("cpu"), efficiency=saved.efficiency)
    assert vars(saved.efficiency) == record["efficiency"]
    assert "times on cpu" in saved.efficiency.fitted_on
    pasted = eval(record["code"], {"dataclasses": dataclasses, "partir": partir})
    assert pasted.efficiency.memory == pytest.approx(saved.efficiency.memory, rel=1e-3)
    assert "... matmul float32[" in captured.err

    example = partir.zoo.mlp(widths=(16, 32, 8), batch=8)
    assert main(["search", "mlp", "--set", "widths=(16,32,8)", "batch=8", "--target", file, "--episodes", "2", "--json"]) == 0
    traced = partir.jit(example.fun, mesh=partir.Mesh(data=4, model=2)).trace(*example.args)
    searched = json.loads(capsys.readouterr().out)["search"]["trace"][0]["step_seconds"]
    assert searched == pytest.approx(traced.partition([], target=saved).estimate.step_seconds)


def test_what_an_empty_program_takes_is_taken_off(monkeypatch: pytest.MonkeyPatch) -> None:
    product, small = [example for example in programs(get("cpu"), 1e-4) if "matmul" in example.name][:2]
    times = iter([10e-6, 500e-6, 25e-6])
    monkeypatch.setattr(calibrate, "median_seconds", lambda fun, args: next(times))

    samples, notes = calibrate.measured([product, small], get("cpu"))

    assert [(sample.name, sample.seconds) for sample in samples] == [(product.name, pytest.approx(490e-6))]
    assert notes == [
        "an empty program takes 10 us, which is taken off",
        f"left out, since it takes hardly longer: {small.name}",
    ]


def test_a_compilers_figures_are_samples_as_well() -> None:
    cpu = get("cpu")
    product = [example for example in programs(cpu, 0.001) if "matmul float32" in example.name][-1]

    (sample,) = compiled([product], "cpu:2")

    side = product.args[0].shape[0]
    assert sample.seconds == pytest.approx(2 * side**3 / cpu.peak_flops_per_second("f32"))
    assert sample.predicted(cpu.efficiency) == pytest.approx(sample.seconds)


@pytest.mark.parametrize("name", partir.targets.names())
def test_programs_take_at_peak_what_was_asked_for(name: str) -> None:
    target, seconds = get(name), 0.01

    times = {}
    for example in programs(target, seconds):
        traced = partir.jit(example.fun, mesh=partir.Mesh(one=1)).trace(*example.args)
        times[example.name] = traced.partition([], target=target).estimate.compute_seconds

    assert len(times) == 14
    assert seconds / 64 < min(times.values())
    assert max(times.values()) < 6 * seconds


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--milliseconds", "0"], "programs of 0 milliseconds"),
        (["--milliseconds", "nan"], "programs of nan milliseconds"),
        (["--target", "h20"], "no target 'h20'"),
        (["--target", "absent.json"], "no target file absent.json"),
        (["--target", "cpu", "--topology", "cpu:1"], "two machines: cpu and cpu:1"),
        (["--topology", "cpu"], 'cannot read the topology "cpu"'),
        (["--model", "nothing"], 'no model "nothing"'),
        (["--set", "depth=3"], "gpt has no setting depth"),
    ],
)
def test_bad_input_is_one_message_and_exit_1(arguments: list[str], says: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["calibrate", *arguments]) == 1

    captured = capsys.readouterr()
    assert says in captured.err
    assert captured.out == ""

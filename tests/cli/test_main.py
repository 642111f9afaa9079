"""The command itself: help, usage, exit codes, and what JAX is told."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import partir
from partir.cli.environment import COUNT_FLAG, host_devices
from partir.cli.main import main

ROOT = Path(__file__).parents[2]


def run(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """`python -m partir` in a process that has not seen JAX, without what the tests tell it."""
    clean = {key: value for key, value in os.environ.items() if key not in ("XLA_FLAGS", "JAX_PLATFORMS")}
    return subprocess.run(
        [sys.executable, "-m", "partir", *arguments],
        capture_output=True,
        text=True,
        env=clean | {"PYTHONPATH": str(ROOT)} | environment,
        check=False,
    )


@pytest.mark.core
@pytest.mark.parametrize(
    "arguments",
    [["--help"], ["--version"], ["show", "--help"], ["demo", "--help"], ["verify", "--help"], ["calibrate", "--help"]],
)
def test_help_needs_no_jax(arguments: list[str]) -> None:
    script = (
        "import sys\nfrom partir.cli.main import main\n"
        f"code = main({arguments!r})\n"
        "assert not {'jax', 'numpy', 'xdsl', 'rich'} & set(sys.modules), 'imported too early'\nsys.exit(code)\n"
    )

    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, cwd=ROOT, check=False)

    assert done.returncode == 0, done.stderr
    assert done.stdout


@pytest.mark.core
def test_help_lists_what_there_is(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--help"]) == 0

    commands = re.findall(r"^    (\w+)(?:  |$)", capsys.readouterr().out, re.MULTILINE)
    assert commands == ["demo", "show", "search", "sweep", "verify", "calibrate", "opt"]


@pytest.mark.core
@pytest.mark.parametrize(
    "arguments", [[], ["search"], ["show"], ["show", "gpt", "--ir", "llvm"], ["demo", "--layers", "many"], ["show", "--frob"]]
)
def test_usage_is_exit_2(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(arguments) == 2

    captured = capsys.readouterr()
    assert captured.err.startswith("usage: partir")
    assert captured.out == ""


@pytest.mark.core
def test_every_public_name_is_found() -> None:
    assert set(partir.__all__) == set(partir._MODULE_OF) | {"search", "targets", "zoo"}  # type: ignore[attr-defined]
    assert set(partir.__all__) <= set(dir(partir))
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        partir.nonsense  # noqa: B018


@pytest.mark.core
def test_what_the_user_told_jax_stands(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XLA_FLAGS", f"--xla_dump_to=/nowhere {COUNT_FLAG}=4")
    monkeypatch.setenv("JAX_PLATFORMS", "tpu")

    host_devices(8)

    assert os.environ["XLA_FLAGS"] == f"--xla_dump_to=/nowhere {COUNT_FLAG}=4"
    assert os.environ["JAX_PLATFORMS"] == "tpu"


@pytest.mark.core
def test_what_the_user_left_open_is_set(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XLA_FLAGS", "--xla_dump_to=/nowhere")
    monkeypatch.delenv("JAX_PLATFORMS")

    host_devices(8)

    assert os.environ["XLA_FLAGS"] == f"--xla_dump_to=/nowhere {COUNT_FLAG}=8"
    assert os.environ["JAX_PLATFORMS"] == "cpu"


@pytest.mark.jax
def test_a_reader_that_stops_early_is_no_error() -> None:
    script = f"{sys.executable} -m partir show mlp --all | head -1; echo ${{PIPESTATUS[0]}}"

    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, cwd=ROOT, check=False)

    assert done.stdout.splitlines() == ["train_step on mesh data=4, model=2", "0"]
    assert done.stderr == ""


@pytest.mark.jax
def test_opt_gets_the_rest_of_the_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "in.mlir"
    file.write_text("builtin.module {\n}\n")

    assert main(["opt", str(file)]) == 0
    assert "builtin.module" in capsys.readouterr().out
    assert main(["opt", str(tmp_path / "absent.mlir")]) == 1
    assert main(["opt", "--no-such-option"]) == 2


@pytest.mark.jax
def test_the_command_in_a_process_of_its_own() -> None:
    done = run("show", "mlp", "--schedule", "Megatron('modle')")

    assert done.returncode == 1
    assert done.stdout == ""
    assert done.stderr == (
        'no mesh axis "modle"\n  why     the mesh has data=4, model=2\n'
        "  try     name one of these axes, or make the mesh with the axis you mean\n"
    )

"""`partir opt` as a function: exit codes, where messages go, its own switches."""

from pathlib import Path

import pytest

from partir.cli.opt import main
from partir.universe import PARTIR_UNIVERSE

pytestmark = pytest.mark.core

GOOD = '%y = spmd.coordinate ["data"=4] : tensor<i32>\n'
BAD = '%y = spmd.coordinate ["data"=0] : tensor<i32>\n'
UNEVEN = '%y = partir.loop "a"=2 [] (%i) : tensor<f32> {\npartir.yield\n}\n'


@pytest.fixture
def file(tmp_path: Path):
    def write(text: str) -> str:
        path = tmp_path / "in.mlir"
        path.write_text(text)
        return str(path)

    return write


def test_prints_what_it_read(file, capsys) -> None:
    code = main([file(GOOD)])

    assert code == 0
    assert capsys.readouterr().out.splitlines()[1].strip() == GOOD.strip()


def test_generic(file, capsys) -> None:
    code = main([file(GOOD), "--generic"])

    assert code == 0
    assert '"spmd.coordinate"() <{axes = #spmd.axes<"data"=4>}> : () -> tensor<i32>' in capsys.readouterr().out


def test_passes_of_xdsl_run(file, capsys) -> None:
    code = main([file(GOOD), "-p", "dce"])

    assert code == 0
    assert "spmd.coordinate" not in capsys.readouterr().out


def test_reads_stdin(monkeypatch, file, capsys) -> None:
    with open(file(GOOD)) as stdin:
        monkeypatch.setattr("sys.stdin", stdin)
        code = main([])

    assert code == 0
    assert GOOD.strip() in capsys.readouterr().out


@pytest.mark.parametrize(
    ("text", "arguments", "code", "message"),
    [
        (BAD, [], 1, 'mesh axis "data" has size 0'),
        (UNEVEN, [], 1, "1 results, 0 entries in results_as and 0 yielded"),
        (GOOD, ["-p", "nonsense"], 1, "nonsense"),
        (GOOD, ["--nonsense"], 2, "nonsense"),
        (GOOD, ["-t", "nonsense"], 2, "nonsense"),
        ("%y = stablehlo.nonsense", [], 1, "stablehlo.nonsense is not registered"),
    ],
)
def test_what_is_wrong_is_said_on_stderr(file, capsys, text: str, arguments: list[str], code: int, message: str) -> None:
    assert main([file(text), *arguments]) == code

    out, err = capsys.readouterr()
    assert message in err
    assert out == ""


def test_a_missing_file(tmp_path: Path, capsys) -> None:
    assert main([str(tmp_path / "none.mlir")]) == 1
    assert "none.mlir" in capsys.readouterr().err


def test_verify_diagnostics_and_split_input(file, capsys) -> None:
    code = main([file(UNEVEN + "// -----\n" + GOOD), "--split-input-file", "--verify-diagnostics"])

    out = capsys.readouterr().out
    assert code == 0
    assert "1 results, 0 entries" in out
    assert GOOD.strip() in out


def test_the_plug_in_has_our_dialects() -> None:
    made = {name: make() for name, make in PARTIR_UNIVERSE.all_dialects.items()}

    assert {name: dialect.name for name, dialect in made.items()} == {name: name for name in made}
    assert made.keys() == {"partir", "spmd", "sdy", "chlo"}

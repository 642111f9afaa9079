"""`partir show`."""

import json
from pathlib import Path

import pytest

import partir
from partir.cli.main import main
from partir.dialect.text import parse

pytestmark = pytest.mark.jax

SMALL = ["gpt", "--set", "layers=2", "d_model=16", "heads=2", "vocab=32", "seq=8", "batch=4"]
BOTH = ["--schedule", "DataParallel('data'), Megatron('model')", "--mesh", "data=2,model=2"]


def test_tables_put_repeated_layers_together(capsys: pytest.CaptureFixture[str]) -> None:
    code = main(["show", *SMALL, *BOTH])

    rows = [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]
    assert code == 0
    assert "params/layer_{0,1}/attention/query/w float32 16x16 state P(None, 'model')" in rows
    assert "layer_{0,1}/mlp-block/mlp/up [backward] 2 3" in rows
    assert "in all 46" in rows


def test_all_has_a_row_for_every_argument(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["show", *SMALL, *BOTH, "--all"]) == 0

    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert sum(line[:1] == ["params/layer_1/mlp/up/w"] for line in lines) == 1


def test_json_is_one_document_with_every_argument(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["show", *SMALL, *BOTH, "--json"]) == 0

    record = json.loads(capsys.readouterr().out)
    specs = {argument["path"]: argument["spec"] for argument in record["arguments"]}
    assert record["mesh"] == {"data": 2, "model": 2}
    assert [tactic["collectives"] for tactic in record["tactics"]] == [{"all_reduce": 38}, {"all_reduce": 46}]
    assert record["collectives"] == {"all_reduce": 46}
    assert sum(counts["all_reduce"] for counts in record["collectives_by_scope"].values()) == 46
    assert specs["batch/tokens"] == ["data"]
    assert specs["params/layer_1/mlp/up/w"] == [None, "model"]
    assert {"path", "dtype", "shape", "role", "donated", "spec"} == set(record["arguments"][0])
    assert any(
        ["params/layer_0/mlp/up/w", 1] in found["arguments"] and found["axes"] == ["model"] for found in record["classes"]
    )
    assert record["scopes"]["scopes"][0]["name"] == "layer_0"
    assert [action["kind"] for action in record["actions"]] == ["tile"] * len(record["actions"])


def test_without_a_schedule_nothing_is_sharded(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["show", "mlp", "--json"]) == 0

    record = json.loads(capsys.readouterr().out)
    assert record["collectives"] == {}
    assert all(argument["spec"] == [] for argument in record["arguments"])


@pytest.mark.parametrize("ir", ["core", "spmd"])
def test_our_ir_is_read_back(ir: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["show", "mlp", "--set", "widths=(16,8)", "batch=8", *BOTH[:1], "DataParallel('data')", "--ir", ir]) == 0

    text = capsys.readouterr().out
    assert {"core": "partir.loop", "spmd": "spmd.all_reduce"}[ir] in text
    parse(text)


@pytest.mark.parametrize("ir", ["stablehlo", "shardy"])
def test_mlir_is_read_by_mlir(ir: str, capsys: pytest.CaptureFixture[str]) -> None:
    from jax.extend.mlir import ir as mlir_ir
    from jax.interpreters import mlir

    assert main(["show", "mlp", "--set", "widths=(16,8)", "batch=8", *BOTH[:1], "DataParallel('data')", "--ir", ir]) == 0

    text = capsys.readouterr().out
    assert {"stablehlo": "replica_groups", "shardy": "sdy.sharding"}[ir] in text
    with mlir.make_ir_context():
        mlir_ir.Module.parse(text)


def test_ir_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["show", "mlp", "--schedule", "DataParallel('data')", "--ir", "spmd", "--json"]) == 0

    record = json.loads(capsys.readouterr().out)
    assert record["ir"] == "spmd"
    assert "spmd.all_reduce" in record["text"]


def test_a_strategy_of_the_zoo_shows_itself(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = str(tmp_path / "s.json")
    assert main(["show", *SMALL, *BOTH, "--out", file, "--json"]) == 0
    first = capsys.readouterr()

    assert main(["show", file, "--json"]) == 0

    again = json.loads(capsys.readouterr().out)
    record = json.loads(first.out)
    assert f"saved to {file}" in first.err
    assert partir.load_strategy(file).model == (SMALL[0], *SMALL[2:])
    assert again["arguments"] == record["arguments"]
    assert again["collectives"] == record["collectives"]
    assert again["mesh"] == {"data": 2, "model": 2}


def test_a_strategy_goes_before_the_schedule(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = str(tmp_path / "s.json")
    assert main(["show", *SMALL, "--schedule", "DataParallel('data')", "--out", file]) == 0
    capsys.readouterr()

    assert main(["show", *SMALL, "--strategy", file, "--schedule", "Megatron('model')", "--json"]) == 0

    record = json.loads(capsys.readouterr().out)
    assert [tactic["tactic"] for tactic in record["tactics"]] == [
        "Strategy(train_step, 1 actions)",
        "Megatron('model')",
    ]
    assert record["collectives"] == {"all_reduce": 46}


def test_a_strategy_of_an_own_function_says_what_it_holds_and_imports_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "shown_once.py").write_text(
        "import jax\ndef model():\n    return (lambda x: x + 1), (jax.ShapeDtypeStruct((8,), 'float32'),)\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    assert main(["show", "shown_once:model", "--schedule", "Manual({'x': 0}, axis='data')", "--out", "s.json"]) == 0
    (tmp_path / "shown_once.py").write_text("raise AssertionError('imported')")
    capsys.readouterr()

    assert main(["show", "s.json"]) == 0
    assert "partir show shown_once:model --strategy s.json" in capsys.readouterr().out
    assert main(["show", "s.json", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["model"] == ["shown_once:model"]
    assert main(["show", "s.json", "--ir", "spmd"]) == 1
    assert "it was made for shown_once:model" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["gtp"], 'no model "gtp"'),
        (["mlp", "--set", "width=4"], "mlp has no setting width"),
        (["mlp", "--set", "widths=(4,)"], "cannot build a perceptron"),
        (["mlp", "--mesh", "data"], 'cannot read the mesh "data"'),
        (["mlp", "--schedule", "Megatrn('model')"], 'there is no tactic "Megatrn"'),
        (["mlp", "--schedule", "DataParallel('modle')"], 'no mesh axis "modle"'),
        (["mlp", "--schedule", "Manual({'w': 0}, axis='data')"], 'no argument matches "w"'),
        (["nothing.json"], "no strategy file nothing.json"),
        (["mlp", "--strategy", "nothing.json"], "no strategy file nothing.json"),
        (["mlp", "--out", "no/such/folder.json"], "cannot write the strategy file"),
    ],
)
def test_what_a_user_got_wrong_is_exit_1_and_nothing_on_stdout(
    arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    code = main(["show", *arguments])

    captured = capsys.readouterr()
    assert code == 1
    assert said in captured.err
    assert captured.out == ""


def test_a_strategy_of_another_program_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = str(tmp_path / "s.json")
    assert main(["show", "mlp", "--schedule", "DataParallel('data')", "--out", file]) == 0

    assert main(["show", *SMALL, "--strategy", file]) == 1
    assert "made for another program" in capsys.readouterr().err
    assert main(["show", file, "--strategy", file]) == 1
    assert "two strategies" in capsys.readouterr().err


def test_with_a_target_costs_are_shown(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["show", *SMALL, *BOTH, "--target", "tpu_v3"]) == 0
    said = capsys.readouterr().out
    assert main(["show", *SMALL, *BOTH, "--target", "tpu_v3", "--json"]) == 0
    record = json.loads(capsys.readouterr().out)

    assert "the largest costs of a step:" in said
    assert record["tactics"][-1]["target"] == "tpu_v3"
    assert record["tactics"][-1]["step_seconds"] > 0

"""Reports of a partitioned step."""

import pytest

import partir
from partir import DataParallel, Megatron, ZeRO, zoo
from partir.viz.inventory import classes_table, scope_collectives_table
from partir.viz.report import argument_bytes, arguments_table, collectives_by_scope, seconds_text

pytestmark = pytest.mark.jax


@pytest.fixture(scope="module")
def part() -> partir.Partitioned:
    """Two layers on 2 x 2, data parallel and Megatron."""
    example = zoo.gpt(layers=2, d_model=16, heads=2, vocab=32, seq=8, batch=4)
    schedule = [partir.DataParallel("data"), partir.Megatron("model")]
    step = partir.jit(example.fun, mesh=partir.Mesh(data=2, model=2), schedule=schedule, donate_argnums=(0, 1))
    return step.trace(*example.args).partition()


def test_report_has_a_row_per_tactic(part: partir.Partitioned) -> None:
    table = part.report()

    assert table.title == "train_step on mesh data=2, model=2"
    assert table.headings == ("tactic", "sharded arguments", "bytes per device", "all_reduce")
    assert [(row[0].split("(")[0], row[1], row[3]) for row in table.rows] == [
        ("DataParallel", "2 of 114", "38"),
        ("Megatron", "62 of 114", "46"),
    ]


def test_argument_bytes_are_those_of_one_device(part: partir.Partitioned) -> None:
    start = partir.jit(lambda x, y: (x + 1, y), mesh=partir.Mesh(data=4), donate_argnums=0)
    import jax

    small = start.trace(jax.ShapeDtypeStruct((8, 2), "float32"), jax.ShapeDtypeStruct((), "int8"))
    cut = small.partition([partir.Manual({"x": 0}, axis="data")])

    assert argument_bytes(cut.plan) == 8 * 2 * 4 // 4 + 1
    assert argument_bytes(cut.plan, donated=True) == 16
    assert argument_bytes(part.plan, donated=True) < argument_bytes(part.plan)


def test_brief_tables_lose_no_argument(part: partir.Partitioned) -> None:
    brief = arguments_table(part.program, part.plan, brief=True)
    every = arguments_table(part.program, part.plan)

    assert len(every.rows) == 114
    assert len(brief.rows) == 114 - 3 * 16
    assert ("params/layer_{0,1}/mlp/up/w", "float32", "16x64", "state", "P(None, 'model')") in brief.rows


def test_classes_show_what_a_dim_is_made_of(part: partir.Partitioned) -> None:
    rows = {row[0]: row[1:] for row in classes_table(part.assignment).rows if row[3] == "model"}

    assert rows["params/layer_{0,1}/attention/key/b:0"][:3] == ("2", "2 of 2x8", "model")
    assert rows["params/layer_{0,1}/mlp/down/w:0"][:3] == ("2", "64", "model")


def test_collectives_by_scope_add_up(part: partir.Partitioned) -> None:
    table = scope_collectives_table(part.plan)

    assert sum(int(row[1] or 1) * int(row[2] or 0) for row in table.rows[:-1]) == 46
    assert table.rows[-1] == ("in all", "", "46")
    assert collectives_by_scope(part.plan)["layer_0/mlp-block/mlp/up [backward]"] == {"all_reduce": 3}


def test_collectives_by_scope_add_up_over_the_rounds_of_a_loop() -> None:
    example = partir.zoo.llama(layers=3, d_model=32, heads=4, d_ff=48, vocab=64, seq=8, batch=8)
    step = partir.jit(example.fun, mesh=partir.Mesh(data=4, model=2), donate_argnums=example.donate_argnums)

    part = step.trace(*example.args).partition([partir.DataParallel("data"), partir.Megatron("model")])

    found = part.collectives_by_scope()
    assert found["layers/mlp-block"] == {"all_reduce": 3}
    assert sum(counts["all_reduce"] for counts in found.values()) == part.collectives["all_reduce"]


def test_nothing_partitioned_says_so(part: partir.Partitioned) -> None:
    plain = part.traced.partition([])

    assert str(scope_collectives_table(plain.plan)).startswith("no collectives")
    assert plain.report().rows[0][:2] == ("(nothing)", "0 of 114")


def test_with_a_target_the_report_names_the_largest_costs_and_prices_conflicts():
    example = zoo.gpt(layers=3, d_model=256, heads=4, vocab=512, seq=128, batch=16)
    tr = partir.jit(example.fun, mesh=partir.Mesh(data=4, model=2), donate_argnums=example.donate_argnums).trace(*example.args)
    schedule = [DataParallel("data"), Megatron("model"), ZeRO("data", stage=3)]

    part = tr.partition(schedule, target="tpu_v3")
    said = str(part.report())

    at = said.index("the largest costs of a step:")
    assert "computing dot_general in layer_*/" in said[at:]
    assert "all_reduce over model in layer_*/" in said[at:]
    assert "sharded by Megatron('model')" in said[at:]
    assert "conflicts, the other way:" in said[at:]
    assert "a step would take" in said[at:]
    assert "the largest costs" not in str(tr.partition(schedule).report())


def test_a_conflict_is_priced_in_all_repeated_layers():
    example = zoo.gpt(layers=3, d_model=256, heads=4, vocab=512, seq=128, batch=16)
    tr = partir.jit(example.fun, mesh=partir.Mesh(data=4, model=2), donate_argnums=example.donate_argnums).trace(*example.args)
    hidden = [("params/layer_" + str(layer) + "/mlp/down/w", 0, "data") for layer in range(3)]
    schedule = [DataParallel("data"), *(partir.Tile(*place) for place in hidden)]

    said = str(tr.partition(schedule, target="tpu_v3").report())

    everywhere = [partir.Prefer("layer_*/mlp-block/mlp/down", *place) for place in hidden]
    other = tr.partition([*schedule, *everywhere], target="tpu_v3").estimate.step_seconds
    lines = said[said.index("conflicts, the other way:") :].splitlines()
    line = next(line for line in lines if line.strip().startswith("layer_*/mlp-block/mlp/down:"))
    assert f"a step would take {seconds_text(other)} " in line

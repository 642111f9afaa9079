"""Bad input: one message that says what, where, the numbers, why, and what to try. Nothing crashes."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from equal import mesh_of
from jax.experimental import io_callback
from jax.sharding import PartitionSpec as P
from programs import PROGRAMS

import partir
from partir import (
    FIRST_DIVISIBLE_DIM,
    DataParallel,
    EmbeddingParallel,
    ExpertParallel,
    Manual,
    Megatron,
    MeshError,
    NoEffectError,
    PathError,
    ProgramError,
    Replicate,
    SequenceParallel,
    StrategyError,
    TilingError,
    TransformError,
    ZeRO,
)

pytestmark = pytest.mark.jax


def traced(name: str = "mlp_grad", mesh: str = "4x2") -> partir.Traced:
    example = PROGRAMS[name]
    return partir.jit(example.fun, mesh=mesh_of(mesh), donate_argnums=example.donate_argnums).trace(*example.args)


def assert_refused(error: type[Exception], *says: str, by: Callable[[], Any]) -> None:
    """`by` raises `error`, and its message has each of these texts, in this order."""
    with pytest.raises(error) as raised:
        by()
    message = str(raised.value)
    assert re.search(".*".join(map(re.escape, says)), message, re.S), message
    assert isinstance(raised.value, partir.PartirError)


# ---- axes


@pytest.mark.parametrize(
    "tactic",
    [
        DataParallel("batch"),
        Megatron("batch"),
        ZeRO("batch", stage=3),
        SequenceParallel("batch"),
        EmbeddingParallel("batch"),
        ExpertParallel("batch"),
        Manual({"x": 0}, axis="batch"),
        Manual({"x": P("batch")}),
        Manual(FIRST_DIVISIBLE_DIM, axis="batch"),
        Replicate("x", "batch"),
    ],
    ids=repr,
)
def test_axis_that_is_not_in_the_mesh(tactic):
    assert_refused(MeshError, 'no mesh axis "batch"', "the mesh has data=4, model=2", by=lambda: traced().partition([tactic]))


@pytest.mark.parametrize("where", ["in_shardings", "out_shardings"])
def test_axis_of_a_fixed_sharding_that_is_not_in_the_mesh(where):
    step = partir.jit(lambda x: x * 2, mesh=mesh_of("4x2"), schedule=[], **{where: P("batch")})

    assert_refused(MeshError, 'no mesh axis "batch"', "data=4, model=2", by=lambda: step.trace(np.ones(8)).partition())


@pytest.mark.parametrize("spec", [P("data", "data"), P(("data", "data"))], ids=repr)
def test_axis_used_twice_in_one_spec(spec):
    step = partir.jit(lambda x: x * 2, mesh=mesh_of("4x2"), schedule=[], out_shardings=spec)

    assert_refused(partir.PartirError, "params/w1", "data", by=lambda: traced().partition([Manual({"params/w1": spec})]))
    assert_refused(partir.PartirError, "result", "data", by=lambda: step.trace(np.ones((16, 16))).partition())


def test_mesh_of_more_devices_than_there_are():
    step = partir.jit(lambda x: x * 2, mesh=partir.Mesh(data=64), schedule=[DataParallel("data")])
    x = np.ones((64, 8), "float32")

    part = step.trace(x).partition()

    assert part.in_specs == (P("data"),), "planning needs no device"
    for run in (lambda: step(x), lambda: step.lower(x), lambda: part(x)):
        assert_refused(MeshError, "data=64 needs 64 devices", "there are 8 cpu devices", by=run)


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: partir.Mesh(data=0), 'mesh axis "data" has size 0'),
        (lambda: partir.Mesh([("a", 2), ("a", 4)]), "['a', 'a'] are not all different"),
        (lambda: partir.jit(jnp.sin, schedule=[DataParallel("data")])(np.ones(8)), "no mesh to partition sin over"),
    ],
)
def test_mesh_that_is_none(make, says):
    assert_refused(MeshError, says, by=make)


# ---- paths


@pytest.mark.parametrize(
    ("tactic", "pattern", "near"),
    [
        (Manual({"params/w9": 0}, axis="data"), "params/w9", "params/w"),
        (Manual({"x": 0, "parms/w1": 1}, axis="data"), "parms/w1", "params/w1"),
        (Replicate("params/b", "data"), "params/b", "params/b1"),
        (DataParallel("data", inputs=["x", "yy"]), "yy", "y"),
        (ZeRO("data", stage=3, params="params/*/w"), "params/*/w", "params/w"),
    ],
    ids=repr,
)
def test_pattern_that_matches_nothing(tactic, pattern, near):
    assert_refused(
        PathError, f'no argument matches "{pattern}"', "none of the 6", near, by=lambda: traced().partition([tactic])
    )


def test_tag_that_nothing_has():
    def tagged(x):
        return partir.tag(jnp.sin(x), "residual") * 2

    tr = partir.jit(tagged, mesh=mesh_of("4x2")).trace(np.ones(8))

    assert_refused(
        PathError, 'no tag matches "resid"', "residual", by=lambda: tr.partition([Manual({"#resid": 0}, axis="data")])
    )


def test_scope_that_nothing_is_in():
    assert_refused(NoEffectError, 'in scope "encoder"', by=lambda: traced().partition([Megatron("model", scope="encoder")]))


# ---- dims


@pytest.mark.parametrize("dim", [2, -3])
def test_dim_out_of_range(dim):
    tactic = Manual({"params/w1": dim}, axis="data")

    assert_refused(
        TilingError, "params/w1", f"dim {dim}", "[8, 32]", "out of range for 2 dims", by=lambda: traced().partition([tactic])
    )


def test_spec_of_more_dims_than_there_are():
    tactic = Manual({"params/b1": P(None, "data")})

    assert_refused(TilingError, "params/b1", "2 dims, the value has 1", by=lambda: traced().partition([tactic]))


@pytest.mark.parametrize("dim", [1.5, "0", None])
def test_dim_that_is_no_number(dim):
    tactic = Manual({"params/w1": dim}, axis="data")

    with pytest.raises(partir.PartirError):
        traced().partition([tactic])


def _seventeen(params, x):
    return {"y": x * params["nested"]["w"], "z": x}


_ARGS = ({"nested": {"w": np.ones((17, 8), "float32")}}, np.ones((17, 8), "float32"))
_NUMBERS = ("dim 0", '17 does not divide by the 8 devices of "data" (17 mod 8 = 1)', "dim 1 (8)", "pad dim 0 to 24")


def test_named_dims_that_do_not_divide_are_all_told_at_once():
    """CASES a2: 17 rows as a parameter, nested, and as an input."""
    tr = partir.jit(_seventeen, mesh=mesh_of("8")).trace(*_ARGS)
    told = ["cannot tile params/nested/w", *_NUMBERS, "cannot tile x", *_NUMBERS]

    assert_refused(TilingError, *told, by=lambda: tr.partition([Manual({"**/w": 0, "x": 0}, axis="data")]))
    assert_refused(TilingError, *told, by=lambda: tr.partition([Manual({"**/w": P("data"), "x": P("data")})]))
    assert_refused(TilingError, "cannot tile x", *_NUMBERS, by=lambda: tr.partition([DataParallel("data", inputs="x")]))


def test_fixed_shardings_that_do_not_divide_are_all_told_at_once():
    """CASES a2: the same as in_shardings and out_shardings."""
    step = partir.jit(
        _seventeen,
        mesh=mesh_of("8"),
        schedule=[],
        in_shardings=({"nested": {"w": P("data")}}, P("data")),
        out_shardings={"y": P("data"), "z": P(None, "data")},
    )

    with pytest.raises(TilingError) as raised:
        step.trace(*_ARGS).partition()

    message = str(raised.value)
    for name in ("params/nested/w", "x", "result/y"):
        assert f'cannot tile {name} over mesh axis "data"' in message
    assert message.count("17 mod 8 = 1") == 3
    assert message.count("pad dim 0 to 24") == 3
    assert "result/z" not in message


def test_constraint_that_does_not_divide_is_reported():
    """CASES a1: not done, and said so with the numbers; no spec is shown that was not honoured."""
    step = partir.jit(lambda x: partir.constrain(x * 2, P("data")), mesh=mesh_of("8"), schedule=[])

    part = step.trace(_ARGS[1]).partition()

    (line,) = part.replicated
    assert "dim 0 (17)" in line
    assert "17 mod 8 = 1" in line
    assert "16 or 24 would" in line
    assert part.in_specs == (P(),)
    assert part.out_specs == P()
    assert line in str(part.report())


def test_unnamed_dim_that_does_not_divide_is_reported():
    """The batch of 17 was not named: what can be split is, and the report has the rest."""

    def both(x, y):
        return x.sum(), y.sum()

    step = partir.jit(both, mesh=mesh_of("8"), schedule=[DataParallel("data")])

    part = step.trace(np.ones((17, 8), "float32"), np.ones((16, 8), "float32")).partition()

    assert part.in_specs == (P(), P("data"))
    assert any("x dim 0 (17)" in line and "17 mod 8 = 1" in line and "16 or 24" in line for line in part.replicated)


# ---- tactics


def test_value_already_tiled_on_that_axis():
    schedule = [DataParallel("data"), Manual({"x": 1}, axis="data")]

    assert_refused(
        TilingError,
        'cannot tile x over mesh axis "data"',
        "tensor<16x8xf32>",
        'tiled over "data" already',
        by=lambda: traced().partition(schedule),
    )


@pytest.mark.parametrize(
    ("schedule", "says"),
    [
        ([DataParallel("data"), DataParallel("data")], "DataParallel('data') changes nothing"),
        ([EmbeddingParallel("model")], "finds no embedding table"),
        ([ExpertParallel("model")], "finds no experts"),
        ([Megatron("model"), Megatron("model")], "finds no hidden dim"),
        ([Replicate("params/w1", "model"), DataParallel("data")], "changes nothing"),
        ([Manual({"x": P()})], "changes nothing"),
        ([DataParallel("data"), Manual({"x": 0}, axis="data")], "changes nothing"),
    ],
    ids=[
        "batch twice",
        "no table",
        "no experts",
        "megatron twice",
        "nothing to keep replicated",
        "nothing said",
        "said before",
    ],
)
def test_tactic_without_effect(schedule, says):
    with pytest.raises(NoEffectError) as raised:
        traced().partition(schedule)
    assert says in re.sub(r"axis=|, (inputs|scope|reduce_dtype)=None", "", str(raised.value))
    assert "  why     " in str(raised.value)


def test_tactic_without_effect_on_this_size():
    tr = partir.jit(lambda x: x * 2, mesh=mesh_of("8")).trace(_ARGS[1])

    assert_refused(
        NoEffectError, "changes nothing", "17 mod 8 = 1", "16 or 24 would", by=lambda: tr.partition([DataParallel("data")])
    )


def test_keeping_whole_what_is_tiled():
    schedule = [DataParallel("data"), Replicate("x", "data")]

    assert_refused(TilingError, "cannot keep x replicated", "put Replicate before", by=lambda: traced().partition(schedule))


@pytest.mark.parametrize(
    ("item", "says"),
    [(Megatron, "not a tactic"), ("data", "not a tactic: 'data'"), (None, "not a tactic: None")],
)
def test_schedule_item_that_is_no_tactic(item, says):
    assert_refused(ProgramError, "schedule item 1", says, by=lambda: traced().partition([DataParallel("data"), item]))


def test_an_assignment_has_actions_and_is_no_tactic():
    decided = traced().partition([DataParallel("data")]).assignment

    assert_refused(
        ProgramError,
        "item 0 is not a tactic: an object of type Assignment",
        "Strategy",
        by=lambda: traced().partition([decided]),
    )


def test_dims_without_an_axis():
    assert_refused(ProgramError, "no mesh axis", "axis='data'", by=lambda: traced().partition([Manual({"x": 0})]))


def test_stage_that_is_none():
    assert_refused(ProgramError, "no ZeRO stage 4", by=lambda: traced().partition([ZeRO("data", stage=4)]))
    once = ZeRO("data", stage=2, reshard_after_forward=False)
    assert_refused(ProgramError, "stage=2", "before stage 3 parameters stay replicated", by=lambda: traced().partition([once]))


def test_out_shardings_of_another_structure():
    step = partir.jit(lambda x: {"a": x}, mesh=mesh_of("4x2"), schedule=[], out_shardings={"b": P("data")})

    assert_refused(PathError, "b", "result/a", by=lambda: step.trace(np.ones(8)).partition())


# ---- strategies


def test_strategy_of_another_program():
    strategy = traced().partition([DataParallel("data")]).strategy

    assert_refused(
        StrategyError,
        "made for another program than clipped_sgd_step",
        "a strategy for mlp_grad with 6 arguments",
        "argument params/b1 is gone",
        by=lambda: traced("clipped_sgd_step").partition([strategy]),
    )


def test_strategy_of_a_program_that_changed():
    """CASES e3: what changed is named."""

    def before(w, x):
        return x @ w

    def after(w, x, bias):
        return x @ w[0] + bias

    square, mesh = np.ones((8, 8), "float32"), mesh_of("4x2")
    strategy = partir.jit(before, mesh=mesh).trace(square, square).partition([DataParallel("data")]).strategy
    tr = partir.jit(after, mesh=mesh).trace(square[None], square, square[0])

    assert_refused(
        StrategyError,
        "argument bias is new",
        "argument w was float32 of 2 dims and is float32 of 3",
        by=lambda: tr.partition([strategy]),
    )


def test_strategy_on_a_mesh_without_its_axes():
    strategy = traced().partition([Megatron("model")]).strategy

    assert_refused(MeshError, 'no mesh axis "model"', "data=8", by=lambda: traced(mesh="8").partition([strategy]))


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    """A file with a good strategy for mlp_grad."""
    path = tmp_path / "strategy.json"
    traced().partition([DataParallel("data"), Megatron("model")]).strategy.save(path)
    return path


def test_truncated_strategy_file(saved):
    text = saved.read_text()
    for size in (0, 1, len(text) // 2, len(text) - 3):
        saved.write_text(text[:size])

        assert_refused(StrategyError, str(saved), "damaged", f"of {size} characters", by=lambda: partir.load_strategy(saved))


@pytest.mark.parametrize("data", [b"garbage", b"\xff\xfe\x00", b"[]", b"NaN", b"3", b'{"a": 1}', b"[" * 100_000])
def test_file_that_is_no_strategy(saved, data):
    saved.write_bytes(data)

    assert_refused(StrategyError, str(saved), by=lambda: partir.load_strategy(saved))


def test_strategy_file_that_cannot_be_read_or_written(saved):
    part = traced().partition([DataParallel("data")])

    for path in (saved.parent / "none.json", saved.parent):
        assert_refused(StrategyError, str(path), by=lambda path=path: partir.load_strategy(path))
    assert_refused(StrategyError, "none", by=lambda: part.strategy.save(saved.parent / "none" / "s.json"))
    assert [path.name for path in saved.parent.iterdir()] == [saved.name], "nothing half-written"


@pytest.mark.parametrize(
    ("field", "value", "says"),
    [
        ("version", 2, "version 2, this partir reads version 1"),
        ("version", "1", "version '1'"),
        ("format", "other", "partir-strategy"),
        ("mesh", 3, "malformed"),
        ("mesh", [["data"]], "malformed"),
        ("mesh", [["data", "four"]], "malformed"),
        ("mesh", [["data", 0]], "size 0"),
        ("mesh", [["data", 4.5]], "4.5"),
        ("actions", {}, "actions is not a list"),
        ("actions", [3], "not an action: 3"),
        ("actions", [{"kind": "tile"}], "not an action"),
        ("actions", [{"kind": "explode"}], "kind must be one of"),
        ("actions", [{"kind": "tile", "value": "x", "dim": "0", "axis": "data"}], "dim must be int, not '0'"),
        ("actions", [{"kind": "tile", "value": "x", "dim": True, "axis": "data"}], "dim must be int, not True"),
        ("actions", [{"kind": "tile", "value": "x", "dim": 0, "axis": "data", "more": 1}], "not an action"),
        ("arguments", None, "malformed"),
        ("arguments", [["x", "one", "float32"]], "malformed"),
        ("results", "abc", "malformed"),
    ],
)
def test_strategy_file_with_a_wrong_field(saved, field, value, says):
    saved.write_text(json.dumps(json.loads(saved.read_text()) | {field: value}))

    assert_refused(StrategyError, says, by=lambda: partir.load_strategy(saved))


@pytest.mark.parametrize("field", ["format", "version", "name", "mesh", "actions", "arguments", "results"])
def test_strategy_file_without_a_field(saved, field):
    record = json.loads(saved.read_text())
    del record[field]
    saved.write_text(json.dumps(record))

    assert_refused(StrategyError, field, by=lambda: partir.load_strategy(saved))


@pytest.mark.parametrize(
    ("change", "error", "says"),
    [
        ({"dim": 7}, TilingError, "dim 7 is out of range for 2 dims"),
        ({"value": "q"}, PathError, 'no argument matches "q"'),
        ({"value": "@forward:sine.9"}, PathError, "@forward:sine.9"),
        ({"axis": "z"}, MeshError, 'no mesh axis "z"'),
    ],
)
def test_strategy_file_with_an_action_that_cannot_be(saved, change, error, says):
    action = {"kind": "tile", "value": "x", "dim": 0, "axis": "data"} | change
    saved.write_text(json.dumps(json.loads(saved.read_text()) | {"actions": [action]}))
    strategy = partir.load_strategy(saved)

    assert_refused(error, says, by=lambda: traced().partition([strategy]))


# ---- functions and calls


def _batched(fun, **options):
    return partir.jit(fun, mesh=mesh_of("4x2"), schedule=[DataParallel("data", inputs="x")], **options)


_X = np.ones((8, 8), "float32")


@pytest.mark.parametrize(
    ("fun", "says"),
    [
        (lambda x: "text", "<class 'str'>"),
        (lambda x: x if x.sum() > 0 else -x, "boolean conversion"),
        (lambda x: np.asarray(x) + 1, "TracerArrayConversionError"),
    ],
)
def test_function_jit_refuses(fun, says):
    assert_refused(ProgramError, "cannot import <lambda>: jax.jit refuses it", says, by=lambda: _batched(fun)(_X))


def test_what_the_function_itself_raises_passes_through():
    with pytest.raises(ZeroDivisionError):
        _batched(lambda x: x / (1 // 0))(_X)
    with pytest.raises(TypeError, match="contracting dimensions"):
        _batched(lambda x: x @ np.ones((3, 3)))(_X)


def test_what_is_no_function():
    assert_refused(ProgramError, "needs a function, not 3", by=lambda: partir.jit(3))


def test_argument_jit_refuses():
    with pytest.raises(TypeError, match="not a valid JAX type"):
        _batched(lambda x, y: x)(_X, object())
    with pytest.raises(TypeError, match="missing 1 required"):
        _batched(lambda x, y: x)(_X)
    with pytest.raises((TypeError, ValueError), match="static"):
        _batched(lambda x, y: x, static_argnums=1)(_X, [1])


@pytest.mark.parametrize(
    ("args", "says"),
    [
        ((np.ones((4, 8), "float32"),), ("x", "[4, 8]", "[8, 8]")),
        ((np.ones((8, 8), "int32"),), ("x", "int32", "float32")),
        ((_X, _X), ("structure", "traced")),
        ((), ("structure", "traced")),
    ],
    ids=["shape", "dtype", "one more", "one less"],
)
def test_partitioned_called_with_what_it_was_not_made_for(args, says):
    part = _batched(lambda x: x * 2).trace(_X).partition()

    assert_refused(ProgramError, *says, by=lambda: part(*args))


TRANSFORMATIONS = {
    "grad": (jax.grad, "a gradient"),
    "value_and_grad": (jax.value_and_grad, "a gradient"),
    "jacfwd": (jax.jacfwd, "a gradient"),
    "hessian": (jax.hessian, "a gradient"),
    "jit of grad": (lambda f: jax.jit(jax.grad(f)), "a gradient"),
    "grad of checkpoint": (lambda f: jax.grad(jax.checkpoint(f)), "a gradient"),
    "vjp": (lambda f: lambda x: jax.vjp(f, x), "a gradient"),
    "jvp": (lambda f: lambda x: jax.jvp(f, (x,), (x,)), "a gradient"),
    "vmap": (lambda f: lambda x: jax.vmap(f)(x[None]), "vmap"),
}


@pytest.mark.parametrize("name", TRANSFORMATIONS)
def test_transformation_of_a_partitioned_function(name):
    transform, what = TRANSFORMATIONS[name]
    step = _batched(lambda x: jnp.sin(x).sum())

    assert_refused(
        TransformError,
        f"cannot take {what} of the partitioned function <lambda>",
        "of the plain function and partition the result",
        by=lambda: transform(step)(_X),
    )


def test_ordered_effects():
    def printing(x):
        jax.debug.print("{}", x.sum(), ordered=True)
        return x

    def calling(x):
        return io_callback(np.sin, jax.ShapeDtypeStruct((8, 8), "float32"), x, ordered=True)

    for fun, effect in ((printing, "OrderedDebug"), (calling, "OrderedIO")):
        assert_refused(
            ProgramError,
            f"cannot partition {fun.__name__}: it has ordered effects",
            effect,
            "ordered=False",
            by=lambda fun=fun: _batched(fun)(_X),
        )


@pytest.mark.parametrize(
    ("mark", "says"),
    [
        (lambda: partir.scope("a/b"), "not a scope name: 'a/b'"),
        (lambda: partir.scope(""), "not a scope name: ''"),
        (lambda: partir.tag(_X, "a#b"), "not a tag: 'a#b'"),
        (lambda: partir.constrain(_X, P("data", None, "model")), "a value of 2 dims"),
    ],
)
def test_mark_that_is_none(mark, says):
    assert_refused(ProgramError, says, by=mark)


def test_constraint_over_an_axis_of_another_mesh_is_reported():
    step = partir.jit(lambda x: partir.constrain(x * 2, P("stage")), mesh=mesh_of("4x2"), schedule=[])

    (line,) = step.trace(_X).partition().replicated

    assert '"stage"' in line
    assert "data=4, model=2" in line


@pytest.mark.parametrize("where", ["in_shardings", "out_shardings"])
def test_an_axis_that_is_not_there_is_named_with_the_sharding_that_names_it(where):
    step = partir.jit(lambda x: x * 2, mesh=partir.Mesh(data=4), **{where: P("rows")})

    assert_refused(
        MeshError,
        'no mesh axis "rows"',
        "the sharding of ",
        "the mesh has data=4",
        by=lambda: step.trace(jnp.ones((8, 4))).partition([]),
    )

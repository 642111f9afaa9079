"""Asking for the dtype of sums over devices: by whom, in what order, what is refused, and what is said of it."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import partir
from partir import DataParallel, ReduceIn, Tile, ZeRO
from partir.coreir.read import read_core
from partir.dialect.text import parse, to_text
from partir.errors import NoEffectError, ProgramError, StrategyError
from partir.lowering.to_spmd import to_spmd
from partir.sharding import folded, plan
from partir.sharding.sums import dtype_name

pytestmark = pytest.mark.jax


def step(w, x):
    gradient = jax.grad(lambda w: jnp.sum(jnp.square(x @ w).astype("float32")))(w)
    return w - gradient.astype(w.dtype)


def traced(dtype="bfloat16", **options):
    shape = jax.ShapeDtypeStruct
    return partir.jit(step, mesh=partir.Mesh(data=8), donate_argnums=0, **options).trace(
        shape((16, 8), dtype), shape((64, 16), dtype)
    )


def dtypes(part):
    """What the sums of a plan are made in."""
    return [s.dtype for own in part.plan.reductions.values() for s in own.steps]


@pytest.mark.parametrize("dtype", ["float32", jnp.float32, np.float32, np.dtype("float32"), jnp.zeros((), "float32").dtype])
def test_a_dtype_is_kept_by_its_name(dtype):
    assert DataParallel("data", reduce_dtype=dtype) == DataParallel("data", reduce_dtype="float32")
    assert ZeRO("data", stage=2, reduce_dtype=dtype).reduce_dtype == "float32"
    assert ReduceIn("data", dtype) == ReduceIn("data", "float32")


@pytest.mark.parametrize(
    ("dtype", "why"),
    [
        ("int32", "no floating-point dtype"),
        (jnp.int8, "no floating-point dtype"),
        ("complex64", "no floating-point dtype"),
        ("bool", "no floating-point dtype"),
        ("float33", "that is no dtype"),
        (3, "that is no dtype"),
    ],
)
@pytest.mark.parametrize(
    "ask",
    [
        lambda dtype: DataParallel("data", reduce_dtype=dtype),
        lambda dtype: ZeRO("data", stage=3, reduce_dtype=dtype),
        lambda dtype: ReduceIn("data", dtype),
        lambda dtype: partir.jit(step, mesh=partir.Mesh(data=8), reduce_dtype=dtype),
    ],
)
def test_what_is_no_dtype_of_real_numbers_is_refused(ask, dtype, why):
    with pytest.raises(ProgramError, match=why) as raised:
        ask(dtype)
    assert "reduce_dtype='float32'" in str(raised.value)


def test_none_is_no_dtype_of_an_action():
    with pytest.raises(ProgramError, match="cannot be made in None"):
        dtype_name(None)


def test_an_axis_that_is_not_there_is_refused():
    with pytest.raises(partir.MeshError, match="rows"):
        traced().partition([ReduceIn("rows", "float32")])


def test_of_several_the_last_counts():
    tile = Tile("x", 0, "data")

    assert dtypes(traced().partition([tile])) == [None]
    assert dtypes(traced().partition([tile, ReduceIn("data", "float32")])) == ["float32"]
    assert dtypes(traced().partition([tile, ReduceIn("data", "float32"), ReduceIn("data", "bfloat16")])) == [None]
    assert dtypes(traced(reduce_dtype="float32").partition([tile])) == ["float32"]
    assert dtypes(traced(reduce_dtype="float32").partition([DataParallel("data", reduce_dtype="float16")])) == ["float16"]


def test_a_tactic_whose_only_effect_it_is_does_something_and_one_that_says_it_again_does_not():
    batch = Tile("x", 0, "data")

    part = traced().partition([batch, DataParallel("data", reduce_dtype="float32")])

    assert dtypes(part) == ["float32"]
    with pytest.raises(NoEffectError, match="changes nothing"):
        traced(reduce_dtype="float32").partition([DataParallel("data"), ReduceIn("data", "float32")])


def test_float32_for_a_program_of_float32_changes_nothing_and_says_nothing():
    plain, asked = (
        traced("float32").partition([DataParallel("data", reduce_dtype=d)], target="h100") for d in (None, "float32")
    )

    assert str(plain.spmd) == str(asked.spmd)
    assert asked.estimate.step_seconds == plain.estimate.step_seconds
    assert plain.sums == asked.sums == []


def test_an_address_free_action_goes_through_undo_and_the_smaller_program():
    part = traced().partition([DataParallel("data"), ReduceIn("data", "float16"), ReduceIn("data", "float32")])

    smaller = folded.fold(part.assignment)

    assert part.assignment.undo().summed_in == {"data": "float16"}
    assert smaller.start.summed_in == {"data": "float32"}
    assert smaller.assigned(part.assignment.apply(ReduceIn("data", "float16"))).summed_in == {"data": "float16"}


@pytest.mark.parametrize("option", [None, "float32", "float16"])
def test_a_saved_strategy_keeps_it_whatever_jit_says(tmp_path, option):
    schedule = [
        DataParallel("data", reduce_dtype="float32"),
        ReduceIn("data", "float16"),
        ZeRO("data", 2, reduce_dtype="float32"),
    ]
    part = traced().partition(schedule)
    part.strategy.save(tmp_path / "s.json")
    strategy = partir.load_strategy(tmp_path / "s.json")

    again = traced(reduce_dtype=option).partition([strategy])

    assert strategy == part.strategy
    assert dtypes(again) == dtypes(part) == ["float32"]
    assert str(again.spmd) == str(part.spmd)
    assert dtypes(traced().replay(strategy)) == ["float32"]


@pytest.mark.parametrize("record", [{"dtype": "float33"}, {"dtype": 4}, {}, {"dtype": "float32", "value": "x"}])
def test_a_damaged_action_is_refused(record):
    from partir.sharding.actions import from_json

    with pytest.raises(StrategyError, match="not an action"):
        from_json({"kind": "reduce_in", "axis": "data", **record})


def test_a_session_asks_for_it_and_writes_it_down():
    session = traced().session(mesh=partir.Mesh(data=8)).tile("x", 0, "data").reduce_in(jnp.float32)

    assert dtypes(session.partitioned) == ["float32"]
    assert "partir.ReduceIn(axis='data', dtype='float32')" in session.code()
    assert dtypes(session.undo().partitioned) == [None]


def test_what_follows_a_partitioned_function_sums_alike():
    def mean(w, x):
        return jnp.mean(x @ w, 0)

    part = traced(reduce_dtype="float32").partition([DataParallel("data")])
    shape = jax.ShapeDtypeStruct

    following = part.follow(mean, shape((16, 8), "bfloat16"), shape((64, 16), "bfloat16"))

    assert following.assignment.summed_in == {"data": "float32"}


@pytest.mark.parametrize(
    ("dtype", "asked", "target", "line"),
    [
        ("bfloat16", None, "h100", 'sums over devices on h100: 1 sum of bfloat16 over "data" in bfloat16, as the program says'),
        ("float16", None, "cpu", 'sums over devices on cpu: 1 sum of float16 over "data" in float16, as the program says'),
        ("bfloat16", None, "cpu", 'sums over devices on cpu: 1 sum of bfloat16 over "data" in float32, by its compiler'),
        (
            "bfloat16",
            "float32",
            "tpu_v4",
            'sums over devices on tpu_v4: 1 sum of bfloat16 over "data" in float32, as was asked',
        ),
        (
            "float32",
            "bfloat16",
            "tpu_v4",
            'sums over devices on tpu_v4: 1 sum of float32 over "data" in bfloat16, as was asked',
        ),
        ("bfloat16", None, None, 'sums over devices: 1 sum of bfloat16 over "data" in bfloat16, as the program says'),
        ("float32", None, "h100", None),
    ],
)
def test_the_report_says_in_which_dtype_and_how_to_change_it(dtype, asked, target, line):
    part = traced(dtype).partition([DataParallel("data", reduce_dtype=asked)], target=target)

    found = [note for note in part.report().notes if note.startswith("sums over devices")]

    assert [note.split(";")[0] for note in found] == ([line] if line is not None else [])
    assert ("reduce_dtype='float32'" in "".join(found)) == (line is not None and "as the program says" in line)


def test_core_ir_keeps_it():
    part = traced().partition([DataParallel("data", reduce_dtype="float32")])

    read = read_core(parse(to_text(part.core)))

    assert read.summed_in == {"data": "float32"}
    assert plan.make(read).collectives == part.collectives
    assert str(to_spmd(plan.make(read))).count("convert") == str(part.spmd).count("convert")


def test_explain_says_it():
    part = traced().partition([DataParallel("data", reduce_dtype="float32")])

    assert "made in float32" in " ".join(str(part.explain("w")).split())


def test_a_pending_sum_is_passed_on_by_the_bytes_that_it_is_sent_in():
    """A convert to float32 doubles what a sum sends, unless it is made in float32 in any case: then it makes no difference, and
    the sum is reduced where it arises, in float32 before it is rounded or read."""

    def both(w, v, x):
        a, b = x @ w, x @ v
        return a.astype("float32") + b.astype("float32")

    shape = jax.ShapeDtypeStruct
    args = shape((64, 8), "bfloat16"), shape((64, 8), "bfloat16"), shape((16, 64), "bfloat16")
    schedule = [Tile("x", 1, "data")]
    known = partir.jit(both, mesh=partir.Mesh(data=8)).trace(*args)

    plain, wide = known.partition(schedule), known.partition([*schedule, ReduceIn("data", "float32")])

    assert plain.collectives == {"all_reduce": 2}, "two in bfloat16 are no more bytes than one in float32"
    assert wide.collectives == {"all_reduce": 1}, "of two in float32, one is enough"

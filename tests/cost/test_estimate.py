"""Estimates of plans: they add up, know loops and donation, follow the textbook, and name the causes of collectives."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from programs import PROGRAMS
from random_actions import draw_actions
from schedules import SCHEDULES

import partir
from partir import zoo
from partir.comm.algorithms import best
from partir.cost import registry as targets
from partir.cost.estimate import estimate, model_of
from partir.cost.fusing import FUSINGS
from partir.cost.kernels import build
from partir.cost.memory import tiled_bytes
from partir.cost.timeline import Transfers, step_seconds
from partir.cost.unfolding import Unfolding
from partir.cost.wiring import Wiring
from partir.sharding import folded
from partir.sharding import plan as plan_
from partir.sharding.assignment import Assignment
from partir.sharding.structure import Structure

pytestmark = pytest.mark.jax

MESH = partir.Mesh(data=4, model=2)
F32 = "float32"


def shape(*dims, dtype=F32):
    return jax.ShapeDtypeStruct(dims, dtype)


def partitioned(fun, *args, schedule=(), mesh=MESH, target="tpu_v4", donate=()):
    return partir.jit(fun, mesh=mesh, target=target, donate_argnums=donate).trace(*args).partition(list(schedule))


@pytest.fixture(scope="module")
def traced():
    """Two layers of a transformer, large enough that its matrices are what it costs."""
    example = zoo.gpt(layers=2, d_model=256, heads=4, vocab=512, seq=128, batch=16)
    return partir.jit(example.fun, mesh=MESH, donate_argnums=example.donate_argnums).trace(*example.args)


@pytest.mark.parametrize("target", targets.names())
def test_items_add_up_to_the_whole(traced, target):
    found = traced.partition(SCHEDULES["both+zero3"], target=target).estimate

    assert sum(kernel.seconds for kernel in found.kernels) == pytest.approx(found.compute_seconds)
    assert sum(kernel.flops for kernel in found.kernels) == pytest.approx(found.flops)
    assert sum(item.seconds for item in found.collectives) == pytest.approx(found.communication_seconds)
    assert sum(item.bytes for item in found.collectives) == pytest.approx(found.communicated_bytes)
    for levels in (None, 1):
        scopes = found.by_scope(levels).values()
        assert sum(s.compute_seconds for s in scopes) == pytest.approx(found.compute_seconds)
        assert sum(s.communication_seconds for s in scopes) == pytest.approx(found.communication_seconds)
        assert sum(s.flops for s in scopes) == pytest.approx(found.flops)
    assert found.peak_bytes == found.argument_bytes + found.result_bytes + found.temporary_bytes


@pytest.mark.parametrize("target", ["tpu_v3", "h100", "cpu"])
@pytest.mark.parametrize("schedule", ["batch", "both", "zero3", "both+sequence"])
def test_a_step_takes_no_less_than_either_and_no_more_than_both(traced, schedule, target):
    found = traced.partition(SCHEDULES[schedule], target=target).estimate

    assert found.step_seconds >= max(found.compute_seconds, found.communication_seconds) * (1 - 1e-9)
    assert found.step_seconds <= (found.compute_seconds + found.communication_seconds) * (1 + 1e-9)
    if target == "cpu":
        assert found.step_seconds == pytest.approx(found.compute_seconds + found.communication_seconds)


def test_every_collective_of_the_plan_is_priced(traced):
    part = traced.partition(SCHEDULES["both+zero3"], target="tpu_v3")

    counts = {}
    for item in part.estimate.collectives:
        counts[item.kind] = counts.get(item.kind, 0) + item.times
    assert counts == part.collectives


def test_the_cause_of_a_collective_is_named(traced):
    found = traced.partition(SCHEDULES["both+zero3"], target="tpu_v3").estimate.collectives

    assert all(item.action is not None and item.action.axis in item.axes for item in found)
    reduced = next(item for item in found if item.kind == "all_reduce" and item.axes == ("model",))
    assert reduced.scope == "layer_0/attention-block/attention/output"
    assert reduced.reason == "dot_general left a sum over model"
    assert reduced.source.startswith("gpt.py:")
    gathered = [item for item in found if item.kind == "all_gather" and item.value.startswith("params/layer_1/mlp/up/w")]
    assert {item.phase for item in gathered} == {"forward", "backward"}
    assert "reads it replicated over data" in gathered[0].reason


def test_work_is_shared_by_the_devices_that_cut_it():
    args = shape(64, 32), shape(32, 16)
    whole, rows, summed = (
        partitioned(lambda x, w: x @ w, *args, schedule=schedule).estimate
        for schedule in ([], [partir.Tile("x", 0, "data")], [partir.Tile("x", 1, "data")])
    )

    assert whole.flops == 2 * 64 * 32 * 16
    assert rows.flops == summed.flops == whole.flops / 4
    assert [c.kind for c in rows.collectives] == []
    (reduced,) = summed.collectives
    assert reduced.kind == "all_reduce"
    assert reduced.bytes == pytest.approx(2 * 3 / 4 * 64 * 16 * 4)


def test_a_loop_counts_as_often_as_it_runs():
    def scanned(x, ws):
        return jax.lax.scan(lambda x, w: (jnp.tanh(x @ w), None), x, ws)[0]

    cut = [partir.Tile("ws", 1, "model"), partir.Tile("x", 0, "data")]
    found = partitioned(scanned, shape(64, 32), shape(6, 32, 32), schedule=cut).estimate

    assert found.flops == pytest.approx(6 * 2 * 64 * 32 * 32 / 8, rel=0.01)
    (reduced,) = (item for item in found.collectives if item.kind == "all_reduce")
    assert reduced.times == 6
    assert reduced.bytes == pytest.approx(6 * 2 * 1 / 2 * 64 / 4 * 32 * 4)


def test_donated_arguments_make_room_for_results():
    def step(state, grad):
        return state - 0.1 * grad

    kept, given = (partitioned(step, shape(1024, 1024), shape(1024, 1024), donate=donate).estimate for donate in ((), (0,)))

    assert kept.result_bytes == 4 * 1024**2
    assert given.result_bytes == 0
    assert kept.temporary_bytes == given.temporary_bytes == 0


def test_pointwise_chains_are_never_stored():
    found = partitioned(lambda x: jnp.sum(jnp.tanh(jnp.exp(x) * 2 + 1) ** 2), shape(1024, 1024)).estimate

    assert found.temporary_bytes < 4096


def test_a_product_and_what_alone_reads_it_are_one_kernel_on_a_tpu():
    def layer(x, w, b):
        return jax.nn.relu(x @ w + b)

    args = shape(64, 32), shape(32, 16), shape(16)
    tpu, gpu = (partitioned(layer, *args, target=target).estimate for target in ("tpu_v4", "h100"))

    assert [kernel.op for kernel in tpu.kernels] == ["dot_general"]
    assert len(gpu.kernels) == 2


def test_values_live_from_their_maker_to_their_last_reader():
    def chain(x):
        for _ in range(8):
            x = jnp.linalg.cholesky(x)
        return x

    found = partitioned(chain, shape(64, 64)).estimate

    assert 1 <= found.temporary_bytes / tiled_bytes((64, 64), 4) <= 4


def test_sharded_state_takes_its_share_of_memory(traced):
    whole, zero = (traced.partition(SCHEDULES[name], target="h100").estimate for name in ("batch", "zero3"))

    assert zero.argument_bytes < whole.argument_bytes / 3
    assert zero.peak_bytes < whole.peak_bytes


def test_a_tpu_pads_tiles_in_the_dim_order_that_wastes_least():
    assert tiled_bytes((8, 128), 4) == 8 * 128 * 4
    assert tiled_bytes((128, 8), 4) == 8 * 128 * 4
    assert tiled_bytes((9, 129), 4) == 16 * 256 * 4
    assert tiled_bytes((3, 3, 64, 256), 4) == 3 * 3 * 64 * 256 * 4
    padded, plain = (partitioned(lambda x: x + 1, shape(9, 129), target=t).estimate for t in ("tpu_v4", "h100"))
    assert (padded.argument_bytes, plain.argument_bytes) == (16 * 256 * 4, 9 * 129 * 4)


def test_small_products_pay_for_whole_tiles_of_the_matrix_unit():
    narrow, wide = (
        partitioned(lambda x, w: x @ w, shape(8192, 1024), shape(1024, n), target="tpu_v2").estimate for n in (16, 128)
    )

    assert narrow.compute_seconds > wide.compute_seconds / 2
    assert narrow.flops == wide.flops / 8


def step(seconds, *transfers):
    found = Transfers()
    for transfer in transfers:
        found.add(*transfer)
    return step_seconds(np.array(seconds, dtype=float), found)


def test_transfers_run_beside_kernels_until_their_result_is_read():
    seconds = [1.0, 2.0, 3.0]

    assert step(seconds) == 6
    assert step(seconds, (0, 2, 1.5, True)) == 6
    assert step(seconds, (0, 2, 5.0, True)) == 1 + 5 + 3
    assert step(seconds, (0, 2, 1.5, False)) == 7.5
    assert step(seconds, (2, 3, 4.0, True)) == 10
    assert step(seconds, (-1, 0, 2.0, True), (-1, 0, 2.0, True)) == 10
    assert step([], (-1, 0, 2.0, True)) == 2


@pytest.mark.parametrize("name", sorted(PROGRAMS))
def test_every_program_can_be_estimated(name):
    program = PROGRAMS[name]
    part = partitioned(program.fun, *program.args, donate=program.donate_argnums)

    for target in ("tpu_v4", "h100"):
        found = estimate(part.plan, targets.get(target))
        assert found.peak_bytes >= found.argument_bytes > 0
        assert np.isfinite(found.step_seconds)
        assert np.all(found.live >= -1e-6)


@pytest.mark.parametrize("platform", sorted(FUSINGS))
@pytest.mark.parametrize("name", sorted(PROGRAMS))
def test_kernels_run_after_what_they_read(name, platform):
    program = PROGRAMS[name]
    tables = partitioned(program.fun, *program.args).assignment.structure.tables

    kernels = build(tables, FUSINGS[platform])

    reader, value = kernels.reads
    made = kernels.maker[value]
    inside = [tables.producer[v] >= 0 and tables.rows[tables.producer[v]].kind == "carry" for v in value.tolist()]
    assert all((made < reader) | np.array(inside, dtype=bool))
    assert sorted(kernels.label.tolist()) == sorted(set(kernels.label.tolist()))


def test_the_model_of_a_program_is_made_once(traced):
    target = targets.get("tpu_v3")

    assert model_of(traced.structure, target) is model_of(traced.structure, target)
    assert model_of(traced.structure, target) is not model_of(traced.structure, target.with_innermost("data"))


def numbers(found):
    return {
        name: getattr(found, name)
        for name in (
            "step_seconds",
            "compute_seconds",
            "communication_seconds",
            "argument_bytes",
            "result_bytes",
            "temporary_bytes",
            "flops",
            "communicated_bytes",
        )
    }


@pytest.mark.parametrize("name", ["attention_grad", "mlp_grad", "scanned_layers"])
def test_what_was_planned_before_changes_nothing(name, rng):
    """Plans and estimates reuse what earlier ones of the program found: they are those of a program that was never planned."""
    program = PROGRAMS[name]
    traced = partir.jit(program.fun, mesh=MESH, donate_argnums=program.donate_argnums).trace(*program.args)
    used = Assignment(traced.structure, MESH)
    target = targets.get("tpu_v3")

    for _ in range(12):
        actions = draw_actions(rng, used)
        again = plan_.make(Assignment(traced.structure, MESH, tuple(actions)))
        fresh = plan_.make(Assignment(Structure.of(traced.program), MESH, tuple(actions)))

        assert again.collectives == fresh.collectives
        assert again.layouts == fresh.layouts
        assert [row.factor_axes for row in again.rows] == [row.factor_axes for row in fresh.rows]
        assert numbers(estimate(again, target)) == numbers(estimate(fresh, target))


@pytest.mark.parametrize(
    ("schedule", "within"), [("batch", 1e-6), ("both", 1e-6), ("both+zero3", 1e-6), ("both+sequence", 0.07)]
)
def test_a_plan_of_the_parts_has_the_price_of_the_whole(schedule, within):
    """But for what is alive where its first and last layer reduce sums at other places."""
    example = zoo.gpt(layers=4, d_model=64, heads=4, vocab=64, seq=16, batch=8)
    traced = partir.jit(example.fun, mesh=MESH, donate_argnums=example.donate_argnums).trace(*example.args)
    whole = traced.partition(SCHEDULES[schedule]).assignment
    model = model_of(traced.structure, targets.get("tpu_v3"))
    parts = folded.fold(whole)
    assert len(parts.structure.tables.rows) < len(traced.structure.tables.rows)

    small = model.estimate(plan_.make(parts.start), Unfolding.of(model.kernels, parts))

    assert numbers(small) == pytest.approx(numbers(model.estimate(plan_.make(whole))), rel=within)


def test_a_report_has_memory_and_time_where_there_is_a_target(traced):
    table = traced.partition(SCHEDULES["both"], target="tpu_v3").report()

    assert table.title == "train_step on mesh data=4, model=2, tpu_v3"
    assert table.headings[2:5] == ("bytes per device", "peak memory", "step time")
    assert all(row[3].endswith("MB") and row[4].split()[1] in ("us", "ms") for row in table.rows)


def test_a_report_says_what_does_not_fit(traced):
    from dataclasses import replace

    tiny = replace(targets.get("tpu_v3"), name="tiny", hbm_bytes=10**6)

    assert traced.partition(SCHEDULES["both"], target=tiny).report().rows[0][3].endswith("MB (too much)")


def test_without_a_target_an_estimate_says_what_is_missing(traced):
    with pytest.raises(partir.TargetError, match=r"(?s)no target to estimate train_step on.*no devices.*target='tpu_v3'"):
        traced.partition(SCHEDULES["both"]).estimate.peak_bytes  # noqa: B018


def test_the_devices_of_the_mesh_say_what_they_are():
    mesh = jax.make_mesh((8,), ("data",))

    assert partitioned(lambda x: x + 1, shape(8, 8), mesh=mesh, target=None).estimate.target is targets.get("cpu")


def test_a_target_is_given_to_jit_to_partition_and_to_a_session():
    traced = partir.jit(lambda x: x + 1, mesh=MESH, target="h100", schedule=[]).trace(shape(8, 8))

    assert traced.partition().estimate.target.name == "h100"
    assert traced.partition(target="a100").estimate.target.name == "a100"
    assert traced.session(target="b200").tile("x", 0, "data").partitioned.estimate.target.name == "b200"
    with pytest.raises(partir.TargetError, match="no target 'h1000'"):
        partir.jit(lambda x: x, target="h1000")


def test_a_loop_touches_one_layer_of_a_stack_at_a_time():
    def scanned(x, ws):
        def layer(x, w):
            x = jnp.tanh(x @ w)
            return x, x

        return jax.lax.scan(layer, x, ws)

    found = partitioned(scanned, shape(512, 512), shape(32, 512, 512), target="h100").estimate

    touched = sum(kernel.bytes for kernel in found.kernels)
    assert 32 * 5 * 512 * 512 * 4 < touched < 32 * 10 * 512 * 512 * 4


def test_what_only_contractions_read_is_narrow_on_a_tpu():
    def two(x, w, v):
        y = x @ w
        return jnp.sum(y @ v)

    args = shape(1024, 512), shape(512, 512), shape(512, 512)
    narrow, kept = (partitioned(two, *args, target=target).estimate for target in ("tpu_v4", "h100"))

    assert narrow.temporary_bytes < 0.8 * kept.temporary_bytes


def momentum_step(precision="default"):
    """A training step of one matrix with momentum, and its arguments."""

    def loss(params, x):
        return jnp.sum(jnp.sin(jnp.matmul(x, params, precision=precision)))

    def step(params, opt_state, x):
        opt_state = 0.9 * opt_state + jax.grad(loss)(params, x)
        return params - 0.1 * opt_state, opt_state

    return step, (shape(1024, 512), shape(1024, 512), shape(256, 1024))


DATA = partir.DataParallel("data")


@pytest.mark.parametrize(("precision", "share"), [("default", 0.5), ("highest", 1.0)])
def test_what_only_contractions_read_is_sent_narrow_on_a_tpu(precision, share):
    step, args = momentum_step(precision)
    schedule = [DATA, partir.ZeRO("data", stage=3)]

    tpu, gpu = (
        [
            c.bytes
            for c in partitioned(step, *args, schedule=schedule, target=target).estimate.collectives
            if c.kind == "all_gather"
        ]
        for target in ("tpu_v4", "h100")
    )

    assert tpu == [share * size for size in gpu]
    assert tpu


@pytest.mark.parametrize("name", ["both+zero3", "both+sequence"])
def test_an_axis_of_one_device_costs_nothing(name):
    step, args = momentum_step()
    small = zoo.gpt(layers=1, d_model=32, heads=4, vocab=64, seq=16, batch=8)

    for fun, given in ((step, args), (small.fun, small.args)):
        traced = partir.jit(fun, mesh=partir.Mesh(data=1, model=1)).trace(*given)
        schedule = SCHEDULES[name] if fun is small.fun else [DATA, partir.ZeRO("data", stage=3)]
        found = traced.partition(schedule, target="tpu_v4").estimate
        assert found.communication_seconds == 0
        assert found.copied_bytes == 0


def test_state_that_is_gathered_anew_is_copied_on_a_tpu():
    step, args = momentum_step()
    size = 4 * 1024 * 512

    def always(target, *schedule):
        return partitioned(step, *args, schedule=schedule, target=target, donate=(0, 1)).estimate.live.min()

    gathered = DATA, partir.ZeRO("data", stage=2)

    assert always("tpu_v4", *gathered) >= size > always("h100", *gathered)
    assert always("tpu_v4", DATA) < size


def test_a_gradient_is_stored_before_an_optimizer_reads_it():
    step, args = momentum_step()

    kernels = partitioned(step, *args, schedule=[DATA]).estimate.kernels

    assert [kernel.op for kernel in kernels][-2:] == ["dot_general", "subtract"]
    assert kernels[-1].bytes == 5 * 4 * 1024 * 512


@pytest.mark.parametrize(
    ("target", "stops"), [("tpu_v3", ["all_gather", "all_reduce"]), ("tpu_v5e", ["all_reduce"]), ("h100", [])]
)
def test_collectives_run_beside_computation_where_the_compiler_lets_them(target, stops):
    found = targets.get(target)

    assert [kind for kind in ("all_gather", "all_reduce") if kind not in found.overlaps] == stops


def test_sums_that_wait_for_none_take_as_long_as_one():
    def loss(params, x):
        for p in params:
            x = jnp.sin(x @ p)
        return jnp.sum(x)

    def step(params, x):
        return [p - 0.1 * g for p, g in zip(params, jax.grad(loss)(params, x), strict=True)]

    params, x = [shape(64, 64)] * 16, shape(256, 64)
    estimate = partitioned(step, params, x, schedule=[DATA], target="tpu_v3").estimate

    link = Wiring(targets.get("tpu_v3"), MESH).link(("data",))
    assert len(estimate.collectives) == 16
    assert estimate.communication_seconds == pytest.approx(best("all_reduce", 16 * 4 * 64 * 64, link).seconds)


def test_sums_that_wait_for_each_other_are_not_sent_together():
    def chain(x, w, v):
        return jnp.sin(jnp.sin(x @ w) @ v)

    inner = [partir.Tile("x", 1, "data"), partir.Tile("v", 0, "data")]
    estimate = partitioned(chain, shape(64, 64), shape(64, 64), shape(64, 64), schedule=inner, target="tpu_v3").estimate

    sums = [c.seconds for c in estimate.collectives if c.kind == "all_reduce"]
    link = Wiring(targets.get("tpu_v3"), MESH).link(("data",))
    assert sums
    assert sums[0] == pytest.approx(best("all_reduce", 4 * 64 * 64, link).seconds)

"""What kernels take beside their products: memory on the chip, reductions in loops, collectives that come between."""

from dataclasses import replace
from itertools import pairwise

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import partir
from partir import zoo
from partir.comm.algorithms import best
from partir.cost import registry as targets
from partir.cost.compute import kernel_bytes, off_chip
from partir.cost.target import Efficiency
from partir.cost.wiring import Wiring

pytestmark = pytest.mark.jax

ONE = partir.Mesh(one=1)
TPUS = ("tpu_v3", "tpu_v4", "tpu_v5e")


def shape(*dims, dtype="float32"):
    return jax.ShapeDtypeStruct(dims, dtype)


def plain(target):
    """The target at the peaks of its datasheet."""
    return replace(targets.get(target), efficiency=Efficiency())


def estimated(fun, *args, target, mesh=ONE, schedule=(), donate=()):
    return partir.jit(fun, mesh=mesh, target=target, donate_argnums=donate).trace(*args).partition(list(schedule)).estimate


def products(x, w):
    """Thin products, each read by the next: memory is what they cost."""
    for _ in range(4):
        x = jnp.sin(x @ w)
    return x


def test_what_is_read_again_soon_is_on_the_chip():
    chip = plain("tpu_v5e")
    none = replace(chip, on_chip_bytes=None)

    def seconds(rows, target):
        return estimated(products, shape(rows, 128), shape(128, 128), target=target).compute_seconds

    assert seconds(1 << 14, chip) < 0.6 * seconds(1 << 14, none)
    assert seconds(1 << 19, chip) == pytest.approx(seconds(1 << 19, none), rel=1e-3)


def test_more_memory_on_the_chip_leaves_less_to_move(rng):
    example = zoo.gpt(layers=2, d_model=64, heads=4, vocab=128, seq=16, batch=4)
    kernels = estimated(example.fun, *example.args, target="tpu_v5e", donate=example.donate_argnums).model.kernels
    sizes = np.floor(rng.uniform(1, 1e6, len(kernels.tables.values)))
    touched = kernel_bytes(kernels, sizes)

    moved = [off_chip(kernels, sizes, touched, capacity) for capacity in (0.0, 1e5, 1e6, 1e7, np.inf)]

    assert np.array_equal(moved[0], touched)
    assert all((less <= more + 1e-6).all() and (less >= 0).all() for more, less in pairwise(moved))
    first = sizes[: kernels.tables.argument_count].sum()
    assert first * 0.5 < moved[-1].sum() < touched.sum()


@pytest.mark.parametrize("name", TPUS)
def test_a_loop_reduces_slower_than_memory_brings_numbers(name):
    target = plain(name)

    found = estimated(lambda x: jnp.sum(x * x, axis=-1), shape(4096, 1024), target=target)

    assert found.compute_seconds == pytest.approx(4096 * 1024 / target.reduced_per_second)
    assert found.compute_seconds > 4 * 4096 * 1024 / target.hbm_bytes_per_second


def test_a_contraction_reduces_its_result_on_the_way_out():
    def loss(x, w):
        return jnp.sum((x @ w) ** 2, axis=-1)

    tpu, gpu = (estimated(loss, shape(4096, 1024), shape(1024, 1024), target=plain(name)) for name in ("tpu_v3", "h100"))

    assert len(tpu.kernels) == 1
    assert tpu.compute_seconds == pytest.approx(2 * 4096 * 1024 * 1024 / tpu.target.flops_per_second["bf16"])
    assert len(gpu.kernels) == 2


def test_a_reduction_that_reads_more_is_done_on_the_way_out_too():
    def projected(x, w, y):
        made = x @ w
        return made, jnp.sum(made * y, axis=-1)

    found = estimated(projected, shape(4096, 1024), shape(1024, 1024), shape(4096, 1024), target="tpu_v3")

    assert [kernel.op for kernel in found.kernels] == ["dot_general"]


def test_a_mask_is_reduced_with_what_stands_beside_it():
    def count(index):
        return jnp.sum(jnp.where(jnp.arange(1024) == index[:, None], 1.0, 0.0), axis=-1)

    found = estimated(count, shape(4096, dtype="int32"), target=plain("tpu_v3"))

    assert found.compute_seconds < 0.1 * 4096 * 1024 / found.target.reduced_per_second


def test_a_collective_between_a_product_and_what_reads_it_makes_two_kernels_of_one():
    def layer(x, w, y):
        return jnp.sum(jnp.maximum(x @ w, 0.0) * y, axis=-1)

    args = shape(4096, 1024), shape(1024, 1024), shape(4096, 1024)
    mesh, target = partir.Mesh(model=2), plain("tpu_v3")

    summed, whole = (
        estimated(layer, *args, target=target, mesh=mesh, schedule=[partir.Tile(f"{name}", dim, "model")])
        for name, dim in (("x", 1), ("x", 0))
    )

    more = sum(kernel.bytes for kernel in summed.kernels) - sum(kernel.bytes for kernel in whole.kernels)
    assert summed.collectives[0].kind == "all_reduce"
    assert more > 2 * 4 * 4096 * 1024
    assert summed.compute_seconds > whole.compute_seconds + 4096 * 1024 / target.reduced_per_second


@pytest.mark.parametrize(
    ("name", "rows", "copies"), [("tpu_v3", 512, True), ("tpu_v5e", 512, False), ("tpu_v5e", 1 << 16, True)]
)
def test_state_that_fits_on_the_chip_is_copied_through_it(name, rows, copies):
    def step(w, x):
        return w - 0.1 * jax.grad(lambda w: jnp.sum(jnp.sin(x @ w)))(w)

    found = estimated(
        step,
        shape(rows, 1024),
        shape(64, rows),
        target=name,
        mesh=partir.Mesh(data=4),
        schedule=[partir.DataParallel("data", inputs=["x"]), partir.ZeRO("data", stage=2, params="w")],
        donate=(0,),
    )

    assert (
        any(kernel.op == "copy for collectives" and kernel.bytes >= 4 * 4 * rows * 1024 for kernel in found.kernels) == copies
    )


def layers(params, x):
    for w in params:
        x = jnp.sin(x @ w)
    return jnp.sum(x)


def descent(params, x):
    return [w - 0.1 * g for w, g in zip(params, jax.grad(layers)(params, x), strict=True)]


DATA = partir.DataParallel("data", inputs=["x"])


@pytest.mark.parametrize(("name", "kind"), [("tpu_v5e", "reduce_scatter"), ("tpu_v3", "all_reduce"), ("tpu_v5p", "all_reduce")])
def test_a_sum_scattered_over_all_of_a_slice_is_sent_as_an_all_reduce_where_dims_are_equal(name, kind):
    mesh = partir.Mesh(data=8)
    schedule = [DATA, partir.ZeRO("data", stage=3, params="params")]
    found = estimated(descent, [shape(512, 512)], shape(256, 512), target=name, mesh=mesh, schedule=schedule, donate=(0,))

    scattered = [item for item in found.collectives if item.kind == "reduce_scatter"]

    link = Wiring(targets.get(name), mesh).link(("data",))
    assert [item.seconds for item in scattered] == [pytest.approx(best(kind, 4 * 512 * 512, link).seconds)]


def test_gathers_for_backward_start_a_contraction_ahead():
    mesh = partir.Mesh(data=4)
    schedule = [DATA, partir.ZeRO("data", stage=3, params="params")]
    params = [shape(512, 512)] * 4
    found = estimated(descent, params, shape(256, 512), target="h100", mesh=mesh, schedule=schedule, donate=(0,))

    gathers = [move for owed in found.moved.owed for move in owed.moves() if move.kind == "all_gather"]
    held = sorted((m.before, m.after) for m in gathers if found.kernels[m.before].phase == "backward")

    assert len(held) == 3
    assert held[0][1] == held[0][0] - 1, "the first of the phase waits for its own reader"
    assert [after for _, after in held[1:]] == [before - 1 for before, _ in held[:-1]]


@pytest.mark.parametrize(("name", "together"), [("h100", True), ("tpu_v5e", False)])
def test_gpus_scatter_gradients_when_the_last_is_there(name, together):
    schedule = [DATA, partir.ZeRO("data", stage=3, params="params")]
    params = [shape(512, 512)] * 4
    mesh = partir.Mesh(data=4)
    found = estimated(descent, params, shape(256, 512), target=name, mesh=mesh, schedule=schedule, donate=(0,))

    starts = {move.after for owed in found.moved.owed for move in owed.moves() if move.kind == "reduce_scatter"}

    assert (len(starts) == 1) == together


def test_a_scale_that_is_gathered_parts_no_gradient_of_a_layer_norm():
    def normed(scale, w, x):
        mean = jnp.mean(x, axis=-1, keepdims=True)
        spread = jnp.mean((x - mean) ** 2, axis=-1, keepdims=True)
        return jnp.sum(jnp.sin(((x - mean) * jax.lax.rsqrt(spread + 1e-5) * scale) @ w))

    def step(params, x):
        scale, w = params
        grads = jax.grad(lambda s, w, x: normed(s, w, jnp.sin(x)), argnums=(0, 1, 2))(scale, w, x)
        return (scale - 0.1 * grads[0], w - 0.1 * grads[1]), grads[2]

    target, mesh = plain("tpu_v3"), partir.Mesh(data=4)
    args = (shape(1024), shape(1024, 1024)), shape(4096, 1024)

    whole, cut = (
        estimated(step, *args, target=target, mesh=mesh, schedule=[DATA, *more], donate=(0,))
        for more in ([], [partir.ZeRO("data", stage=3, params="params/0")])
    )

    one = 1024 * 1024 / target.reduced_per_second
    assert abs(cut.compute_seconds - whole.compute_seconds) < 0.2 * one


def test_what_is_reduced_before_a_collective_is_not_reduced_again_after_it():
    def peaks(x, w):
        return jnp.maximum(jnp.max(x @ w, axis=-1), 0.0)

    mesh = partir.Mesh(model=4)
    found = estimated(
        peaks,
        shape(4096, 512),
        shape(512, 8192),
        target=plain("tpu_v3"),
        mesh=mesh,
        schedule=[partir.Manual({"w": 1}, axis="model")],
    )

    assert [item.kind for item in found.collectives] == ["all_reduce"]
    assert found.moved.apart, "the maximum over devices comes in the middle of the product's kernel"
    assert found.compute_seconds == pytest.approx(found.unit_seconds[0].sum(), rel=0.02)

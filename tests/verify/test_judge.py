"""The judge reads any compiled program: collectives by kind, bytes, group and trips, whatever form the compiler gave them."""

import math
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from equal import mesh_of
from jax.sharding import NamedSharding, PartitionSpec
from schedules import SCHEDULES

import partir
from partir.comm import algorithms as prices
from partir.cost import registry as targets
from partir.cost.wiring import Wiring
from partir.verify.collective_prices import CollectivePrices
from partir.verify.hlo import Module
from partir.verify.judge import judge_text
from partir.verify.real_compilers import Compilation, Memory
from partir.verify.roofline import products_of
from partir.viz.verification import planned_bytes

pytestmark = pytest.mark.jax

P = PartitionSpec


def compiled(body: Any, *shapes: tuple[int, ...], specs: tuple[P, ...], out: Any, mesh: str = "4x2") -> Any:
    """A hand-written `shard_map` program, compiled for the virtual devices."""
    made = mesh_of(mesh)
    mapped = jax.shard_map(body, mesh=made, in_specs=specs, out_specs=out, check_vma=False)
    arguments = [
        jax.ShapeDtypeStruct(shape, "float32", sharding=NamedSharding(made, spec))
        for shape, spec in zip(shapes, specs, strict=True)
    ]
    return jax.jit(mapped).lower(*arguments).compile()


def seconds(kind: str, size: float, *axes: str, target: str = "tpu_v3") -> float:
    """What the alpha-beta model says of one collective over axes of the mesh 4x2."""
    return prices.best(kind, size, Wiring(targets.get(target), partir.Mesh(data=4, model=2)).link(axes)).seconds


BODIES = {
    "all_gather": (lambda x: jax.lax.all_gather(x, "data", axis=0, tiled=True), P("data"), P(), 64 * 32 * 4),
    "all_reduce": (lambda x: jax.lax.psum(jnp.sin(x), "data"), P("data"), P(), 16 * 32 * 4),
    "reduce_scatter": (lambda x: jax.lax.psum_scatter(x, "data", scatter_dimension=0, tiled=True), P(), P("data"), 64 * 32 * 4),
    "all_to_all": (lambda x: jax.lax.all_to_all(x, "data", 1, 0, tiled=True), P("data"), P(None, "data"), 16 * 32 * 4),
    "collective_permute": (
        lambda x: jax.lax.ppermute(x, "data", [(i, (i + 1) % 4) for i in range(4)]),
        P("data"),
        P("data"),
        16 * 32 * 4,
    ),
}


@pytest.mark.parametrize("kind", BODIES)
def test_each_kind_with_its_bytes_and_price(kind: str) -> None:
    body, spec, out, size = BODIES[kind]
    program = compiled(body, (64, 32), specs=(spec,), out=out)

    found = partir.judge(program, "tpu_v3")

    assert found.collectives == {kind: 1}
    assert found.bytes_by_kind == {kind: size}
    assert found.elements_by_kind == {kind: size // 4}
    assert math.isclose(found.communication_seconds, seconds(kind, size, "data"))


def test_a_group_over_two_axes_is_priced_on_both() -> None:
    program = compiled(lambda x: jax.lax.psum(jnp.sin(x), ("data", "model")), (64, 32), specs=(P("data", "model"),), out=P())

    found = partir.judge(program, "tpu_v3")

    assert math.isclose(found.communication_seconds, seconds("all_reduce", 16 * 16 * 4, "data", "model"))


@pytest.mark.parametrize("target", ["tpu_v3", "tpu_v5p", "h100"])
def test_a_program_without_a_mesh_is_priced_by_the_distance_of_its_devices(target: str) -> None:
    mesh = partir.Mesh(stage=4, data=4, model=2)
    machine = targets.get(target)

    for axis in ("data", "model"):
        groups = tuple(map(tuple, mesh.replica_groups([axis])))
        named, bare = (CollectivePrices(machine, mesh.size, found).link(groups, "all_reduce") for found in (mesh, None))
        assert named == Wiring(machine, mesh).link([axis])
        assert (bare.devices, bare.latency_seconds) == (named.devices, named.latency_seconds)
    everyone = CollectivePrices(machine, mesh.size, mesh).link((), "all_reduce")
    assert everyone == Wiring(machine, mesh).link(["stage", "data", "model"])


def test_a_permute_is_priced_on_the_axis_it_runs_along() -> None:
    mesh, machine = partir.Mesh(node=2, data=8), targets.get("h100")

    def bandwidth(*pairs: tuple[int, int]) -> float:
        return CollectivePrices(machine, 16, mesh).link(pairs, "collective_permute").bandwidth_bytes_per_second

    assert bandwidth(*((i, (i + 1) % 8) for i in range(8))) == machine.near.bandwidth_bytes_per_second
    assert machine.far is not None
    assert bandwidth(*((i, i + 8) for i in range(8))) == machine.far.bandwidth_bytes_per_second


def test_a_loop_counts_as_often_as_it_runs() -> None:
    def body(x: Any) -> Any:
        return jax.lax.scan(lambda c, w: (jnp.tanh(jax.lax.psum(c @ w, "model")), None), x[0], x[1:])[0]

    program = compiled(body, (6, 16, 16), specs=(P(),), out=P())

    found = partir.judge(program, "tpu_v3")

    assert found.collectives == {"all_reduce": 5}
    assert found.bytes_by_kind == {"all_reduce": 5 * 16 * 16 * 4}
    assert math.isclose(found.communication_seconds, 5 * seconds("all_reduce", 16 * 16 * 4, "model"))
    assert found.notes == ()


def test_a_loop_that_runs_as_data_says_is_named() -> None:
    def body(x: Any) -> Any:
        return jax.lax.while_loop(lambda c: jnp.sum(c) < 1e9, lambda c: jax.lax.psum(c, "model") + 1, x)

    found = partir.judge(compiled(body, (8, 8), specs=(P(),), out=P()), "tpu_v3")

    assert found.collectives == {"all_reduce": 1}
    assert "1 loops have a trip count that depends on data" in found.notes[0]


def test_memory_is_the_compilers() -> None:
    program = jax.jit(lambda x, y: (x + y, jnp.sum(x)), donate_argnums=0).lower(*[jnp.ones((64, 64))] * 2).compile()

    found = partir.judge(program, "cpu")

    said = program.memory_analysis()
    assert found.memory.argument == said.argument_size_in_bytes == 2 * 64 * 64 * 4
    assert found.memory.alias == 64 * 64 * 4
    assert found.peak_bytes == said.argument_size_in_bytes + said.temp_size_in_bytes + said.output_size_in_bytes - 64 * 64 * 4


def test_without_a_target_it_is_that_of_the_devices() -> None:
    program = jax.jit(lambda a, b: a @ b).lower(*[jax.ShapeDtypeStruct((256, 256), "float32")] * 2).compile()

    found = partir.judge(program)

    cpu = targets.get("cpu")
    assert (found.target, found.compute_source, found.optimal_seconds) == ("cpu", "roofline", None)
    assert math.isclose(found.compute_seconds, 2 * 256**3 / cpu.flops_per_second["f32"])
    assert (found.collectives, found.communicated_bytes) == ({}, 0)


def test_products_are_found_in_every_form() -> None:
    def body(x: Any, kernel: Any, w: Any) -> Any:
        y = jax.lax.conv_general_dilated(x, kernel, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))
        return jnp.einsum("bhwc,cd->bhwd", jnp.tanh(y), w)

    shapes = [jax.ShapeDtypeStruct(shape, "float32") for shape in ((2, 8, 8, 16), (3, 3, 16, 32), (32, 64))]
    text = jax.jit(body).lower(*shapes).compile().as_text()
    module = Module.parse(text)

    found = sum(
        sum(products_of(made, where, module).values())
        for where in module.computations.values()
        for made in where.instructions
        if made.opcode in ("dot", "convolution", "custom-call")
    )

    met = 8 * 3 - 2  # pairs of a row and a row of the kernel, those in the padding left out
    assert found == 2 * (2 * met * met) * 16 * 32 + 2 * (2 * 8 * 8) * 32 * 64


def test_a_batched_product_written_as_a_convolution_counts_once() -> None:
    text = """ENTRY %main (x: bf16[8,64,16], y: bf16[8,16,32]) -> bf16[8,64,32] {
  %x = bf16[8,64,16]{2,1,0} parameter(0)
  %y = bf16[8,16,32]{2,1,0} parameter(1)
  ROOT %out = bf16[8,64,32]{2,1,0} convolution(%x, %y), window={size=8 stride=7 lhs_dilate=8}, dim_labels=0bf_0io->0bf
}
"""
    module = Module.parse(text)

    assert products_of(module.entry.root, module.entry, module) == {"bf16": 2 * 8 * 64 * 16 * 32}


@pytest.mark.parametrize("name", ["batch", "both+zero3", "both+sequence"])
def test_what_we_planned_is_what_is_compiled(name: str) -> None:
    example = partir.zoo.gpt(layers=1, d_model=32, heads=4, vocab=64, seq=16, batch=8)
    step = partir.jit(example.fun, mesh=mesh_of("4x2"), donate_argnums=example.donate_argnums)
    part = step.trace(*example.args).partition(SCHEDULES[name], target="cpu")

    found = partir.judge(part.lower().compile(), "cpu")

    assert found.collectives == part.collectives
    assert found.bytes_by_kind == planned_bytes(part.estimate)
    assert math.isclose(found.communicated_bytes, part.estimate.communicated_bytes)


def test_a_hand_written_jit_with_shardings() -> None:
    mesh = mesh_of("4x2")

    def step(w: Any, x: Any) -> Any:
        return jax.grad(lambda w: jnp.sum(jnp.tanh(x @ w) ** 2))(w)

    arguments = [
        jax.ShapeDtypeStruct(shape, "float32", sharding=NamedSharding(mesh, spec))
        for shape, spec in (((32, 64), P()), ((128, 32), P("data")))
    ]
    program = jax.jit(step, out_shardings=NamedSharding(mesh, P())).lower(*arguments).compile()

    found = partir.judge(program, "h100")

    assert found.collectives == {"all_reduce": 1}
    assert found.bytes_by_kind == {"all_reduce": 32 * 64 * 4}
    assert found.communicated_bytes == 2 * 3 / 4 * 32 * 64 * 4


def test_the_judge_takes_datasheets_alone() -> None:
    program = compiled(lambda x: jax.lax.psum(jnp.sin(x), "data"), (64, 32), specs=(P("data"),), out=P())
    plain = targets.get("h100")
    slow = replace(plain, efficiency=partir.targets.Efficiency(0.1, 0.1, 0.1, 0.1, overhead_seconds=1.0, fitted_on="this test"))

    assert partir.judge(program, slow).record() == partir.judge(program, plain).record()


# ---- forms that only accelerators' compilers give, cut down to what is read of them

HEADER = "HloModule step, is_scheduled=true, num_partitions=8\n\n"
ADD = """%add (a: f32[], b: f32[]) -> f32[] {
  %a = f32[] parameter(0)
  %b = f32[] parameter(1)
  ROOT %s = f32[] add(%a, %b)
}

"""
GROUPS = "replica_groups={{0,2,4,6},{1,3,5,7}}"


def judged(text: str, target: str = "tpu_v5e") -> partir.Judgement:
    return judge_text(Compilation(HEADER + text, Memory(0, 0, 0, 0)), targets.get(target), partir.Mesh(data=4, model=2))


def test_a_start_and_a_done_are_one_and_hide_behind_computation() -> None:
    text = """ENTRY %main (x: f32[1024,256], y: f32[8,8]) -> f32[4096,256] {
  %x = f32[1024,256]{1,0} parameter(0)
  %y = f32[8,8]{1,0} parameter(1)
  %start = ((f32[1024,256]{1,0}), f32[4096,256]{1,0}) all-gather-start(%x), GROUPS, dimensions={0}
  %busy = f32[8,8]{1,0} fusion(%y), kind=kLoop, calls=%nothing, backend_config={"estimated_cycles":"CYCLES"}
  ROOT %done = f32[4096,256]{1,0} all-gather-done(%start)
}
"""
    wires = prices.best(
        "all_gather", 4096 * 256 * 4, Wiring(targets.get("tpu_v5e"), partir.Mesh(data=4, model=2)).link(["data"])
    )

    short, long = (judged(text.replace("GROUPS", GROUPS).replace("CYCLES", cycles)) for cycles in ("1500", "1500000000"))

    assert short.collectives == {"all_gather": 1}
    assert short.bytes_by_kind == {"all_gather": 4096 * 256 * 4}
    assert math.isclose(short.step_seconds, wires.seconds)
    assert math.isclose(long.step_seconds, 1.0)
    assert math.isclose(long.communication_seconds, wires.seconds)


def test_what_has_no_cycles_takes_its_roofline() -> None:
    text = """%product (a: bf16[512,1024], b: bf16[1024,256]) -> bf16[512,256] {
  %a = bf16[512,1024]{1,0} parameter(0)
  %b = bf16[1024,256]{1,0} parameter(1)
  ROOT %c = bf16[512,256]{1,0} convolution(%a, %b), dim_labels=bf_io->bf
}

ENTRY %main (x: bf16[512,1024], y: bf16[1024,256]) -> bf16[512,256] {
  %x = bf16[512,1024]{1,0} parameter(0)
  %y = bf16[1024,256]{1,0} parameter(1)
  %one = bf16[512,256]{1,0} fusion(%x, %y), kind=kOutput, calls=%product, backend_config={"estimated_cycles":"1500"}
  %hint = bf16[512,256]{1,0} custom-call(%one), custom_call_target="ConcatBitcast"
  ROOT %two = bf16[512,256]{1,0} fusion(%x, %y), kind=kOutput, calls=%product, backend_config={"estimated_cycles":"CYCLES"}
}
"""
    machine = targets.get("tpu_v5e")

    counted, most = (judged(text.replace("CYCLES", cycles)) for cycles in ("3000", str(2**63 - 1)))

    assert math.isclose(counted.compute_seconds, 3e-6)
    assert counted.notes == ()
    product = 2 * 512 * 1024 * 256 / machine.flops_per_second["bf16"]
    moved = 2 * (512 * 1024 + 1024 * 256 + 512 * 256) / machine.hbm_bytes_per_second
    assert math.isclose(most.compute_seconds, 1e-6 + max(product, moved))
    assert most.notes == ("1 instructions without cycles from the compiler are priced by the roofline",)


def test_an_async_wrapper_is_one() -> None:
    text = f"""{ADD}%wrapped (p: f32[64,8]) -> f32[16,8] {{
  %p = f32[64,8]{{1,0}} parameter(0)
  ROOT %scattered = f32[16,8]{{1,0}} reduce-scatter(%p), {GROUPS}, dimensions={{0}}, to_apply=%add
}}

ENTRY %main (x: f32[64,8]) -> f32[16,8] {{
  %x = f32[64,8]{{1,0}} parameter(0)
  %start = ((f32[64,8]{{1,0}}), f32[16,8]{{1,0}}) async-start(%x), calls=%wrapped
  ROOT %done = f32[16,8]{{1,0}} async-done(%start), calls=%wrapped
}}
"""
    found = judged(text, "h100")

    assert found.collectives == {"reduce_scatter": 1}
    assert found.bytes_by_kind == {"reduce_scatter": 64 * 8 * 4}


def test_a_collective_carried_on_by_fusions_is_one() -> None:
    def fused(name: str, last: str) -> str:
        return f"""%{name} (p: bf16[16,8]) -> bf16[64,8] {{
  %p = bf16[16,8]{{1,0}} parameter(0)
  %gathered = bf16[64,8]{{1,0}} all-gather(%p), channel_id=7, {GROUPS}, dimensions={{0}}, frontend_attributes={{chain_id="3"}}
  ROOT %last = bf16[64,8]{{1,0}} {last}
}}

"""

    text = (
        fused("begin", 'custom-call(%gathered), custom_call_target="AsyncCollectiveStart"')
        + fused("on", "add(%gathered, %gathered)")
        + fused("end", 'custom-call(%p, %gathered), custom_call_target="AsyncCollectiveDone"')
        + """ENTRY %main (x: bf16[16,8]) -> bf16[64,8] {
  %x = bf16[16,8]{1,0} parameter(0)
  %a = bf16[64,8]{1,0} fusion(%x), kind=kCustom, calls=%begin
  %b = bf16[64,8]{1,0} fusion(%x), kind=kOutput, calls=%on, backend_config={"estimated_cycles":"1500000"}
  ROOT %c = bf16[64,8]{1,0} fusion(%x), kind=kCustom, calls=%end
}
"""
    )

    found = judged(text)

    assert found.collectives == {"all_gather": 1}
    assert found.bytes_by_kind == {"all_gather": 64 * 8 * 2}
    assert math.isclose(found.compute_seconds, 1e-3)
    assert math.isclose(found.step_seconds, found.compute_seconds)


def test_what_the_compiler_rewrote_is_counted_as_it_was_meant() -> None:
    text = f"""{ADD}%keep (p: f32[64], i: s32[]) -> f32[16] {{
  %p = f32[64]{{0}} parameter(0)
  %i = s32[] parameter(1)
  ROOT %slice = f32[16]{{0}} dynamic-slice(%p, %i), dynamic_slice_sizes={{16}}
}}

ENTRY %main (x: f32[16], y: f32[64], z: f32[8], i: s32[]) -> (f32[64], f32[16], f32[8]) {{
  %x = f32[16]{{0}} parameter(0)
  %y = f32[64]{{0}} parameter(1)
  %z = f32[8]{{0}} parameter(2)
  %i = s32[] parameter(3)
  %zeros = f32[64]{{0}} broadcast()
  %mine = f32[64]{{0}} dynamic-update-slice(%zeros, %x, %i)
  %together = (f32[64]{{0}}, f32[64]{{0}}, f32[8]{{0}}) all-reduce(%mine, %y, %z), {GROUPS}, to_apply=%add
  %gathered = f32[64]{{0}} get-tuple-element(%together), index=0
  %summed = f32[64]{{0}} get-tuple-element(%together), index=1
  %own = f32[16]{{0}} fusion(%summed, %i), kind=kLoop, calls=%keep
  %all = f32[8]{{0}} get-tuple-element(%together), index=2
  ROOT %out = (f32[64]{{0}}, f32[16]{{0}}, f32[8]{{0}}) tuple(%gathered, %own, %all)
}}
"""
    found = judged(text)

    assert found.collectives == {"all_gather": 1, "all_reduce": 1, "reduce_scatter": 1}
    assert found.elements_by_kind == {"all_gather": 64, "all_reduce": 8, "reduce_scatter": 64}
    assert found.instructions == {"all_reduce": 1}


def test_vectors_the_compiler_concatenated_are_parts() -> None:
    text = f"""{ADD}%joined (p: f32[64], q: f32[8]) -> f32[72] {{
  %p = f32[64]{{0}} parameter(0)
  %q = f32[8]{{0}} parameter(1)
  ROOT %both = f32[72]{{0}} concatenate(%p, %q), dimensions={{0}}
}}

ENTRY %main (x: f32[64], y: f32[8]) -> f32[72] {{
  %x = f32[64]{{0}} parameter(0)
  %y = f32[8]{{0}} parameter(1)
  %xy = f32[72]{{0}} fusion(%x, %y), kind=kLoop, calls=%joined
  ROOT %sum = f32[72]{{0}} all-reduce(%xy), {GROUPS}, to_apply=%add
}}
"""
    own = text.replace("dimensions={0}\n}", 'dimensions={0}, metadata={op_name="jit(f)/concatenate"}\n}')

    assert judged(text, "h100").collectives == {"all_reduce": 2}
    assert judged(own, "h100").collectives == {"all_reduce": 1}


def test_a_scatter_that_the_compiler_padded_counts_without_padding() -> None:
    text = f"""{ADD}%all-reduce-scatter (p: f32[60,8]) -> f32[16,8] {{
  %p = f32[60,8]{{1,0}} parameter(0)
  %zero = f32[] constant(0)
  %i = s32[] constant(0)
  %padded = f32[64,8]{{1,0}} pad(%p, %zero), padding=0_4x0_0
  %sum = f32[64,8]{{1,0}} all-reduce(%padded), {GROUPS}, to_apply=%add
  ROOT %own = f32[16,8]{{1,0}} dynamic-slice(%sum, %i, %i), dynamic_slice_sizes={{16,8}}
}}

ENTRY %main (x: f32[60,8]) -> f32[1,8] {{
  %x = f32[60,8]{{1,0}} parameter(0)
  %scattered = f32[16,8]{{1,0}} fusion(%x), kind=kCustom, calls=%all-reduce-scatter
  %rows = f32[1,8]{{1,0}} slice(%scattered), slice={{[0:1], [0:8]}}
  ROOT %moved = f32[1,8]{{1,0}} collective-permute(%rows), source_target_pairs={{{{0,2}},{{2,4}}}}
}}
"""
    found = judged(text)

    assert found.bytes_by_kind == {"reduce_scatter": 60 * 8 * 4}
    assert [(transfer.kind, transfer.bytes) for transfer in found.transfers] == [
        ("reduce_scatter", 64 * 8 * 4),
        ("collective_permute", 8 * 4),
    ]
    assert found.instructions == {"reduce_scatter": 1, "collective_permute": 1}


def test_a_loop_whose_trips_only_its_condition_says() -> None:
    text = f"""{ADD}%body (s: (s32[], f32[8])) -> (s32[], f32[8]) {{
  %s = (s32[], f32[8]{{0}}) parameter(0)
  %i = s32[] get-tuple-element(%s), index=0
  %two = s32[] constant(2)
  %next = s32[] add(%i, %two)
  %x = f32[8]{{0}} get-tuple-element(%s), index=1
  %sum = f32[8]{{0}} all-reduce(%x), {GROUPS}, to_apply=%add
  ROOT %out = (s32[], f32[8]{{0}}) tuple(%next, %sum)
}}

%condition (s: (s32[], f32[8])) -> pred[] {{
  %s = (s32[], f32[8]{{0}}) parameter(0)
  %i = s32[] get-tuple-element(%s), index=0
  %n = s32[] constant(11)
  ROOT %less = pred[] compare(%i, %n), direction=LT
}}

ENTRY %main (x: f32[8]) -> (s32[], f32[8]) {{
  %x = f32[8]{{0}} parameter(0)
  %one = s32[] constant(1)
  %state = (s32[], f32[8]{{0}}) tuple(%one, %x)
  ROOT %loop = (s32[], f32[8]{{0}}) while(%state), condition=%condition, body=%body
}}
"""
    assert judged(text).collectives == {"all_reduce": 5}  # 1, 3, 5, 7, 9
    assert judged(text.replace("direction=LT", "direction=LE")).collectives == {"all_reduce": 6}


def test_a_program_whose_compiler_tells_no_memory() -> None:
    class Silent:
        def memory_analysis(self) -> None:
            return None

    with pytest.raises(
        partir.CompilerError, match="cannot judge this program\n  why     its compiler does not report its memory"
    ):
        partir.judge(Silent(), "cpu")


def test_devices_that_no_target_describes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(targets, "of_device", lambda _: None)
    program = jax.jit(lambda x: x + 1).lower(jnp.ones(4)).compile()

    with pytest.raises(partir.CompilerError, match='without a target\n  why     no target is known for "cpu"'):
        partir.judge(program)


def test_text_that_is_no_program_is_refused() -> None:
    with pytest.raises(ValueError, match="no ENTRY computation in 5 characters"):
        Module.parse("hello")


def test_it_prints_and_becomes_data() -> None:
    found = partir.judge(compiled(lambda x: jax.lax.psum(x, "data"), (64, 32), specs=(P("data"),), out=P()), "tpu_v3")

    assert repr(found).startswith("Judgement('tpu_v3': step 0.0")
    assert "1 all_reduce" in repr(found)
    assert "<td>collectives</td><td>{&#x27;all_reduce&#x27;: 1}</td>" in found._repr_html_()
    record = found.record()
    assert record["collectives"] == {"all_reduce": 1}
    assert record["peak_bytes"] == found.peak_bytes
    assert np.isclose(record["step_seconds"], found.step_seconds)

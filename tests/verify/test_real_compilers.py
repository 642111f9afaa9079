"""The real compilers in a child process. The host's own stands for all of them here; `tests/compilers` has the others."""

import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import pytest

import partir
from partir import CompilerError, MeshError
from partir.cost import registry as targets
from partir.verify import real_compilers
from partir.verify.gpus import GPUS
from partir.verify.real_compilers import Topology

pytestmark = pytest.mark.jax


def partitioned(mesh: partir.Mesh | None = None) -> partir.Partitioned:
    example = partir.zoo.mlp(widths=(32, 64, 8), batch=16)
    step = partir.jit(example.fun, mesh=mesh or partir.Mesh(data=4, model=2), donate_argnums=example.donate_argnums)
    return step.trace(*example.args).partition([partir.DataParallel("data"), partir.Manual({"params/layer_0/w": 1}, "model")])


@pytest.mark.parametrize(
    ("text", "devices", "target", "torus", "node"),
    [
        ("tpu:v2:2x2", 8, "tpu_v2", (2, 2), 512),
        ("tpu:v4:2x2x2", 8, "tpu_v4", (2, 2, 2), 4096),
        ("tpu:v5e:4x8", 32, "tpu_v5e", (4, 8), 256),
        ("gpu:h100:8", 8, "h100", None, 8),
        ("gpu:a100:4x2", 8, "a100", None, 2),
        ("cpu:8", 8, "cpu", None, 4096),
    ],
)
def test_a_topology_knows_its_devices_and_its_machine(
    text: str, devices: int, target: str, torus: tuple[int, ...] | None, node: int
) -> None:
    topology = Topology.parse(text)

    assert str(topology) == text
    assert topology.devices == devices
    assert (topology.target.name, topology.target.torus, topology.target.node_devices) == (target, torus, node)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("tpu:v9:2x2", "tpu has v2, v3, v4, v5e, v5p, v6e"),
        ("gpu:h100", "it is not PLATFORM:KIND:SIZES"),
        ("gpu:h100:0", "it is not PLATFORM:KIND:SIZES"),
        ("gpu:h100:2x2x2", "3 sizes are too many for gpu"),
        ("ipu:mk2:4", "it is not PLATFORM:KIND:SIZES"),
    ],
)
def test_a_topology_that_is_none(text: str, says: str) -> None:
    with pytest.raises(MeshError, match=f'cannot read the topology "{text}"\n  why     {says}\n  try     tpu:v5e:2x4'):
        Topology.parse(text)


def test_every_gpu_is_a_target_and_describes_itself() -> None:
    for name, gpu in GPUS.items():
        target = targets.get(name)
        text = gpu.describe(target)
        assert f"device_memory_size: {target.hbm_bytes}\n" in text
        assert text.count("{") == text.count("}")


def test_prediction_beside_the_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XLA_FLAGS", "--xla_force_host_platform_device_count=2")  # the child has the topology's number
    part = partitioned()

    found = part.verify("cpu:8")

    assert found.judgement.collectives == part.collectives == found.planned
    assert found.judgement.bytes_by_kind == found.planned_bytes
    assert found.estimate.target.name == "cpu"
    assert found.judgement.memory.argument == found.estimate.argument_bytes
    assert found.judgement.memory.alias > 0
    rows = {row[0]: row[1:] for row in found.table().rows}
    assert rows["all_reduce"] == (str(part.collectives["all_reduce"]),) * 2 + ("equal",)
    assert found.record()["compiler"]["peak_bytes"] == found.judgement.peak_bytes
    assert "off by" in str(found)
    assert "<table>" in found._repr_html_()
    assert found.errors["peak_bytes"] == found.estimate.peak_bytes / found.judgement.peak_bytes - 1


def test_what_the_user_says_of_the_machine_holds() -> None:
    part = partitioned()
    mine = targets.get("h100").with_innermost("data", "model")

    there = part.traced.partition(part.strategy.actions, target=mine)._on(Topology.parse("gpu:h100:2x4"))

    assert there.program.platform == "cuda"
    assert (there.target.innermost, there.target.node_devices) == (("data", "model"), 4)


def test_numbers_of_64_bits_stay_so() -> None:
    with jax.enable_x64(True):
        traced = partir.jit(lambda x: jnp.sum(x * 2), mesh=partir.Mesh(d=2)).trace(jax.ShapeDtypeStruct((8,), "float64"))
    part = traced.partition([partir.Tile("x", 0, "d")])

    assert part._on(Topology.parse("tpu:v5e:1x2")).program.signature.results[0].dtype == "float64"


def test_a_mesh_of_another_size() -> None:
    with pytest.raises(
        MeshError, match="the mesh data=4, model=2 does not fill cpu:4\n  why     the mesh has 8 devices, the topology 4"
    ):
        partitioned().verify("cpu:4")


@pytest.mark.parametrize(
    ("topology", "package", "extra"), [("tpu:v5e:2x4", "libtpu", "tpu"), ("gpu:h100:8", "jax-cuda12-plugin", "gpu")]
)
def test_a_compiler_that_is_not_installed(topology: str, package: str, extra: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(real_compilers, "find_spec", lambda _: None)

    with pytest.raises(CompilerError) as raised:
        partitioned().verify(topology)

    assert str(raised.value) == (
        f"cannot compile for {topology}\n"
        f"  why     its compiler is not installed: there is no {package} in this Python environment\n"
        f"  try     pip install 'partir[{extra}]' (in a clone: '.[{extra}]'); no {extra.upper()} is needed to compile"
    )


def test_a_plugin_of_another_version(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(real_compilers, "find_spec", lambda name: name == "jax_cuda12_plugin")
    monkeypatch.setattr(real_compilers, "version", lambda name: {"jaxlib": "9.0", "jax-cuda12-plugin": "8.0"}[name])

    with pytest.raises(CompilerError, match=r"jax-cuda12-plugin 8.0 does not go with jaxlib 9.0"):
        partitioned().verify("gpu:h100:8")


def test_a_compiler_that_takes_too_long() -> None:
    with pytest.raises(CompilerError, match=r"did not compile train_step(.|\n)*still compiling after 0.1 seconds"):
        partitioned().verify("cpu:8", timeout_seconds=0.1)


def test_a_compiler_that_ends_its_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XLA_FLAGS", "--xla_no_such_flag=1")

    with pytest.raises(CompilerError, match=r"did not compile train_step\n  where .*xla_no_such_flag=1\n .*with exit code 1"):
        partitioned().verify("cpu:8")


def test_a_compiler_that_aborts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    python = tmp_path / "python"
    python.write_text("#!/bin/sh\necho 'Check failed: shape.IsArray()' >&2\necho noise >&2\nkill -ABRT $$\n")
    python.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(python))

    with pytest.raises(CompilerError, match=r"last words: Check failed: shape.IsArray\(\)\n  why     it was ended by SIGABRT"):
        partitioned().verify("cpu:8")


def test_a_compiler_that_refuses() -> None:
    part = partitioned()
    local, layouts = part._local, (part.plan.arguments, part.plan.outputs)
    job = real_compilers.job_of(part.program, local, part.assignment.mesh, *layouts, {"xla_no_such_option": True})

    with pytest.raises(CompilerError, match=r"the compiler of cpu:8 refuses train_step\n  why .*xla_no_such_option"):
        real_compilers.compile_job(job, Topology.parse("cpu:8"))


def test_a_program_that_calls_back() -> None:
    def noisy(x):
        jax.debug.print("{}", x[0])
        return x * 2

    part = partir.jit(noisy, mesh=partir.Mesh(d=8)).trace(jnp.ones(8)).partition([partir.Tile("x", 0, "d")])

    with pytest.raises(CompilerError, match="cannot compile noisy in another process\n  why     it calls back into this one"):
        part.verify("cpu:8")


@pytest.mark.parametrize(("topology", "kept"), [("tpu:v5e:2x4", False), ("gpu:h100:8", False), ("cpu:8", True)])
def test_flags_of_the_host_compiler_stay_with_it(topology: str, kept: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """libtpu aborts on a flag that it does not know, such as those of XLA for CPU that a user has set."""
    monkeypatch.setenv("XLA_FLAGS", "--xla_cpu_use_fusion_emitters=false --xla_dump_hlo_as_text")

    flags = real_compilers._environment(Topology.parse(topology))["XLA_FLAGS"].split()

    assert ("--xla_cpu_use_fusion_emitters=false" in flags) == kept
    assert "--xla_dump_hlo_as_text" in flags

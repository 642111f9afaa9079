"""What the real TPU and GPU compilers make of our programs: the same collectives, however they combine and rewrite them."""

import pytest
from schedules import SCHEDULES

import partir


def verified(name: str, topology: str) -> partir.Verification:
    example = partir.zoo.gpt(layers=2, d_model=256, heads=8, vocab=512, seq=128, batch=16)
    step = partir.jit(example.fun, mesh=partir.Mesh(data=4, model=2), donate_argnums=example.donate_argnums)
    return step.trace(*example.args).partition(SCHEDULES[name]).verify(topology)


def assert_same_collectives(found: partir.Verification) -> None:
    """As many of every kind, and no more bytes; all numbers of these programs are float32, and what the plan expects to be sent
    as bf16 is."""
    judgement = found.judgement
    assert judgement.collectives == found.planned
    for kind, size in found.planned_bytes.items():
        assert judgement.bytes_by_kind[kind] <= size <= 4 * judgement.elements_by_kind[kind]


@pytest.mark.tpu
@pytest.mark.parametrize(
    ("name", "topology"),
    [("both+zero3", "tpu:v5e:2x4"), ("both+sequence", "tpu:v3:2x2"), ("zero2", "tpu:v4:2x2x2"), ("both", "tpu:v5p:2x2x2")],
)
def test_tpu(name: str, topology: str) -> None:
    found = verified(name, topology)

    assert_same_collectives(found)
    judgement = found.judgement
    assert judgement.compute_source == "cycles"
    assert judgement.optimal_seconds is None or 0.2 < judgement.optimal_seconds / judgement.compute_seconds < 2
    assert judgement.compute_seconds < judgement.step_seconds
    assert judgement.step_seconds < 1.001 * (judgement.compute_seconds + judgement.communication_seconds)
    assert judgement.memory.alias > 0.99 * judgement.memory.output


@pytest.mark.tpu
def test_a_program_that_does_not_fit() -> None:
    example = partir.zoo.mlp(widths=(65536, 65536, 8), batch=16)
    step = partir.jit(example.fun, mesh=partir.Mesh(data=8), donate_argnums=example.donate_argnums)
    part = step.trace(*example.args).partition([partir.DataParallel("data")])

    with pytest.raises(
        partir.MemoryLimitError, match=r"does not fit into the memory of tpu:v5e:2x4\n  why .*\(48.00G\) exceeds"
    ):
        part.verify("tpu:v5e:2x4")


@pytest.mark.tpu
def test_a_topology_that_no_machine_has() -> None:
    part = partir.jit(lambda x: x * 2, mesh=partir.Mesh(d=21)).trace(1.0).partition([])

    with pytest.raises(partir.CompilerError, match=r'tpu:v5e:3x7 cannot be compiled for\n  why .*"v5e:3x7" is not divisible'):
        part.verify("tpu:v5e:3x7")


@pytest.mark.gpu
@pytest.mark.parametrize(("name", "topology"), [("both+zero3", "gpu:h100:8"), ("both+sequence", "gpu:a100:2x4")])
def test_gpu(name: str, topology: str) -> None:
    found = verified(name, topology)

    assert_same_collectives(found)
    assert found.judgement.bytes_by_kind == found.planned_bytes
    assert found.judgement.compute_source == "roofline"
    assert found.judgement.memory.alias > 0.99 * found.judgement.memory.output

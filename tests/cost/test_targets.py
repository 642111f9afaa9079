"""One suite for every target: numbers a machine can have, sources for all of them, and meshes on its wires."""

import dataclasses
import itertools
import math

import pytest

import partir
from partir.cost import registry as targets
from partir.cost.registry import of_device
from partir.cost.target import Target, Wires, fields_of
from partir.cost.wiring import Wiring, squarest

pytestmark = pytest.mark.core

ALL = targets.names()
TPUS = tuple(name for name in ALL if name.startswith("tpu"))
GPUS = ("v100", "a100", "h100", "h200", "b200")
MESH = partir.Mesh(data=4, model=2)


def test_the_promised_targets_are_there():
    expected = {f"tpu_{v}" for v in ("v2", "v3", "v4", "v5e", "v5p", "v6e")} | set(GPUS) | {"cpu"}
    assert expected <= set(partir.targets.names())


@pytest.mark.parametrize("name", ALL)
def test_every_number_has_a_source(name):
    target = targets.get(name)

    assert set(fields_of(target)) - {"matrix_unit"} <= set(target.sources)
    assert all(len(source) > 5 for source in target.sources.values())


@pytest.mark.parametrize("name", ALL)
def test_rates_are_in_the_order_nature_has_them(name):
    target = targets.get(name)

    assert 1e9 < target.hbm_bytes < 1e12
    assert target.hbm_bytes_per_second > target.near.bandwidth_bytes_per_second
    if target.far is not None:
        assert target.near.bandwidth_bytes_per_second > target.far.bandwidth_bytes_per_second
        assert target.near.latency_seconds < target.far.latency_seconds
    assert target.peak_flops_per_second("bf16") >= target.peak_flops_per_second("f32") >= target.peak_flops_per_second("f64")
    assert target.peak_flops_per_second("f32") > target.hbm_bytes_per_second
    assert 1e-7 < target.near.latency_seconds < 1e-4


@pytest.mark.parametrize("name", ALL)
def test_an_unknown_type_runs_at_the_rate_of_f32(name):
    target = targets.get(name)

    assert target.peak_flops_per_second("f6") == target.peak_flops_per_second("f32")
    assert target.peak_flops_per_second("f32", 6) == target.peak_flops_per_second("f32") / 6


@pytest.mark.parametrize("family", [("tpu_v2", "tpu_v3", "tpu_v4", "tpu_v5p"), ("v100", "a100", "h100", "h200")])
def test_a_later_machine_is_no_slower(family):
    machines = [targets.get(name) for name in family]

    for older, newer in itertools.pairwise(machines):
        assert newer.peak_flops_per_second("bf16") >= older.peak_flops_per_second("bf16")
        assert newer.hbm_bytes_per_second >= older.hbm_bytes_per_second
        assert newer.hbm_bytes >= older.hbm_bytes


@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize(
    "mesh", [MESH, partir.Mesh(x=1), partir.Mesh(a=2, b=2, c=2), partir.Mesh(data=3, model=5), partir.Mesh(d=64)]
)
def test_any_mesh_lies_on_any_target(name, mesh):
    layout = Wiring(targets.get(name), mesh)

    for axis in mesh.names:
        link = layout.link((axis,))
        assert link.devices == mesh.size_of(axis)
        assert link.bandwidth_bytes_per_second > 0
    assert layout.link(mesh.names).devices == mesh.size


@pytest.mark.parametrize("name", GPUS)
def test_the_last_axis_is_innermost_unless_said_otherwise(name):
    target = targets.get(name)
    mesh = partir.Mesh(data=8, model=8)

    default, turned = Wiring(target, mesh), Wiring(target.with_innermost("data"), mesh)

    assert default.link(("model",)).bandwidth_bytes_per_second == target.near.bandwidth_bytes_per_second
    assert default.link(("data",)).bandwidth_bytes_per_second == target.far.bandwidth_bytes_per_second
    assert turned.link(("data",)) == default.link(("model",))
    assert turned.link(("model",)) == default.link(("data",))


def test_an_axis_over_nodes_uses_the_ports_of_all_its_devices():
    h100 = targets.get("h100")
    wide = Wiring(h100, partir.Mesh(data=16)).link(("data",))
    narrow = Wiring(h100, partir.Mesh(data=16, model=8)).link(("data",))

    assert wide.bandwidth_bytes_per_second == 8 * h100.far.bandwidth_bytes_per_second
    assert narrow.bandwidth_bytes_per_second == h100.far.bandwidth_bytes_per_second


def test_a_torus_dim_closes_to_a_ring_where_it_is_long_enough():
    v4 = targets.get("tpu_v4")

    assert Wiring(v4, partir.Mesh(x=4, y=4, z=4)).link(("x",)).both_ways
    assert not Wiring(v4, partir.Mesh(x=2, y=2, z=2)).link(("x",)).both_ways
    assert squarest(64, 3) == (4, 4, 4)


def test_two_dims_of_a_torus_have_the_links_of_both():
    v4 = Wiring(targets.get("tpu_v4"), partir.Mesh(x=4, y=4, z=4))

    assert v4.link(("x", "y")).bandwidth_bytes_per_second == 2 * v4.link(("x",)).bandwidth_bytes_per_second


def test_the_two_cores_of_a_chip_share_its_links():
    v3 = Wiring(targets.get("tpu_v3"), MESH)

    assert v3.link(("model",)).bandwidth_bytes_per_second == targets.get("tpu_v3").near.bandwidth_bytes_per_second
    assert v3.link(("model",)).devices == 2


def test_jax_devices_are_recognised():
    assert of_device("TPU v5 lite") is targets.get("tpu_v5e")
    assert of_device("TPU v5p") is of_device("TPU v5") is targets.get("tpu_v5p")
    assert of_device("NVIDIA H100 80GB HBM3") is targets.get("h100")
    assert of_device("cpu") is targets.get("cpu")
    assert of_device("Apple M4") is None


def test_a_name_that_is_none_gets_the_nearest_offered():
    with pytest.raises(partir.TargetError, match=r"(?s)no target 'tpu_v33'.*try     tpu_v3"):
        targets.get("tpu_v33")


def mine(**changes):
    fields = {
        "name": "mine",
        "platform": "gpu",
        "flops_per_second": {"f32": 1e13},
        "vector_flops_per_second": 1e12,
        "hbm_bytes": 8 * 10**9,
        "hbm_bytes_per_second": 4e11,
        "near": Wires("switch", 1e10, 5e-6),
        "node_devices": 4,
    }
    return Target(**(fields | changes))


def test_a_target_of_ones_own_goes_wherever_a_name_goes():
    target = mine()

    assert targets.get(target) is target
    assert Wiring(target, partir.Mesh(data=8)).link(("data",)).devices == 8


@pytest.mark.parametrize("value", [0, -1.0, math.inf, math.nan, "fast", True])
def test_numbers_no_machine_has_are_refused(value):
    with pytest.raises(partir.TargetError, match=r"(?s)'mine' is no machine.*hbm_bytes_per_second is"):
        mine(hbm_bytes_per_second=value)


def test_all_that_is_wrong_is_said_at_once():
    with pytest.raises(partir.TargetError, match=r"(?s)hbm_bytes is 0.*no \"f32\".*platform \"npu\""):
        mine(hbm_bytes=0, flops_per_second={"bf16": 1e14}, platform="npu")


def test_an_innermost_axis_must_be_of_the_mesh():
    with pytest.raises(partir.MeshError, match='no mesh axis "z"'):
        Wiring(targets.get("h100").with_innermost("z"), MESH).link(("data",))


def test_two_targets_cannot_have_one_name():
    with pytest.raises(partir.TargetError, match="another target 'h100'"):
        targets.register(mine(name="h100"))


@pytest.mark.parametrize(
    ("kind", "torus", "by_all_reduce"),
    [
        ("v2", (2, 2), True),
        ("v3", (2, 1), False),
        ("v3", (2, 2), True),
        ("v3", (4, 2), False),
        ("v3", (4, 4), True),
        ("v3", (8, 4), False),
        ("v4", (2, 2, 1), False),
        ("v4", (2, 4, 1), False),
        ("v4", (2, 2, 2), True),
        ("v4", (4, 4, 1), True),
        ("v4", (2, 2, 4), True),
        ("v5e", (2, 2), False),
        ("v5e", (2, 4), False),
        ("v5e", (2, 8), False),
        ("v5e", (4, 4), True),
        ("v5e", (4, 8), False),
        ("v5e", (8, 8), True),
        ("v6e", (2, 4), False),
        ("v6e", (4, 4), True),
    ],
)
def test_where_libtpu_scatters_over_a_whole_slice_by_an_all_reduce(kind, torus, by_all_reduce):
    target = dataclasses.replace(targets.get(f"tpu_{kind}"), torus=torus)
    devices = math.prod(torus) * target.devices_per_chip

    assert Wiring(target, partir.Mesh(data=devices // 2, model=2)).scatters_by_all_reduce == by_all_reduce

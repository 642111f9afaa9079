"""Fits of efficiencies to synthetic times, and targets as files."""

import json
from dataclasses import replace

import numpy as np
import pytest

import partir
from partir.cost.calibrate import BOUNDS, MEASURED_BOUNDS, Sample, fit
from partir.targets import Efficiency, get, load, names, save

KNOWN = [
    Efficiency(0.62, 0.31, 0.84, overhead_seconds=8e-7),
    Efficiency(0.45, 0.9, 0.2, overhead_seconds=6e-7),
    Efficiency(1.0, 1.0, 1.0),
]


def samples(known, rng, count=40, kernels=30):
    """Programs, small and large, whose kernels need this and that of each unit, on a machine of this efficiency."""
    found = []
    for number in range(count):
        units = 10.0 ** (rng.uniform(-6, -3, (4, kernels)) + rng.uniform(-2, 0))
        runs = rng.integers(1, 5, kernels).astype(float)
        seconds = Sample("", 1.0, units, runs).predicted(known)
        found.append(Sample(f"program {number}", seconds, units, runs))
    return found


@pytest.mark.core
@pytest.mark.parametrize("known", KNOWN)
def test_a_fit_finds_the_efficiency_that_the_times_were_made_with(known, rng):
    found = fit(samples(known, rng), "this test")

    assert (found.matrix, found.vector, found.memory) == pytest.approx((known.matrix, known.vector, known.memory), rel=0.02)
    assert found.overhead_seconds == pytest.approx(known.overhead_seconds, rel=0.02)
    assert found.fitted_on == "this test"


@pytest.mark.core
def test_a_fit_holds_on_programs_it_has_not_seen(rng):
    noisy = [replace(s, seconds=s.seconds * rng.uniform(0.9, 1.1)) for s in samples(KNOWN[0], rng)]
    found = fit(noisy[:20], "one half")

    errors = [s.predicted(found) / s.seconds - 1 for s in noisy[20:]]
    assert np.median(np.abs(errors)) < 0.1


@pytest.mark.core
@pytest.mark.parametrize("bounds", [BOUNDS, MEASURED_BOUNDS])
def test_a_fit_stays_within_its_bounds(bounds, rng):
    slow = fit(samples(Efficiency(1e-6, 1e-6, 1e-6, overhead_seconds=1.0), rng), "", bounds)
    fast = fit(samples(Efficiency(1e6, 1e6, 1e6), rng), "", bounds)

    low, high = zip(*bounds, strict=True)
    assert slow.overhead_seconds == high[3]
    assert (slow.matrix, slow.vector, slow.memory) == low[:3]
    assert (fast.matrix, fast.vector, fast.memory, fast.overhead_seconds) == (*high[:3], 0.0)


@pytest.mark.core
def test_what_the_programs_say_nothing_of_stays_the_datasheets(rng):
    units = np.zeros((4, 8))
    units[2] = 10.0 ** rng.uniform(-6, -3, 8)
    copies = [Sample("copies", units.sum() / 0.5, units, np.ones(8))]

    found = fit(copies, "copies")

    assert (found.matrix, found.vector) == (1.0, 1.0)
    assert copies[0].predicted(found) == pytest.approx(copies[0].seconds, rel=0.01)


@pytest.mark.core
@pytest.mark.parametrize(
    ("seconds", "work", "says"),
    [(None, 0, "there are no programs"), (0.0, 1e-3, "still: no time is taken"), (1.0, 0.0, "still: no time is taken")],
)
def test_nothing_cannot_be_fitted(seconds, work, says):
    given = [] if seconds is None else [Sample("still", seconds, np.full((4, 2), work), np.ones(2))]

    with pytest.raises(partir.TargetError, match=rf"(?s)cannot fit an efficiency.*{says}"):
        fit(given, "nothing")


@pytest.mark.jax
@pytest.mark.parametrize("name", ["tpu_v5e", "h100", "cpu"])
def test_a_sample_predicts_what_the_estimate_says(name):
    example = partir.zoo.gpt(layers=2, d_model=64, heads=4, vocab=128, seq=16, batch=4)
    traced = partir.jit(example.fun, mesh=partir.Mesh(one=1)).trace(*example.args)
    one, other = (
        replace(get(name), efficiency=e) for e in (KNOWN[0], Efficiency(0.3, 0.5, 0.2, overhead_seconds=1e-6, fitted_on="this"))
    )
    there = traced.partition([], target=other).estimate

    sample = Sample.of("gpt", 1.0, traced.partition([], target=one).estimate)

    assert sample.predicted(other.efficiency) == pytest.approx(there.compute_seconds, rel=1e-12)
    assert there.compute_seconds > 1.5 * traced.partition([], target=get(name)).estimate.compute_seconds


# ---- files


@pytest.mark.core
@pytest.mark.parametrize("name", names())
def test_a_saved_target_is_the_same_when_it_is_loaded(name, tmp_path):
    target = replace(get(name), efficiency=KNOWN[0], innermost=("model", "data"), torus=(2, 4))

    save(target, tmp_path / "target.json")

    assert load(tmp_path / "target.json") == target


def damaged(path, change):
    """The file of a target after a change to its record."""
    save(get("tpu_v5e"), path)
    record = json.loads(path.read_text())
    change(record)
    path.write_text(json.dumps(record))
    return path


@pytest.mark.core
@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda r: r.pop("format"), 'has no "format": "partir-target"'),
        (lambda r: r.update(version=7), "is of version 7, this partir reads version 1"),
        (lambda r: r.pop("target"), "target is null, not an object"),
        (lambda r: r["target"].pop("near"), "target has no near"),
        (lambda r: r["target"].update(speed=3), "target has 'speed', which is no field"),
        (lambda r: r["target"].update(hbm_bytes="16 GB"), 'target.hbm_bytes is "16 GB", not a whole number'),
        (lambda r: r["target"].update(torus=[2, 0]), r"target.torus\[1\] is 0, not a whole number, 1 or more"),
        (lambda r: r["target"].update(platform="npu"), 'target.platform is "npu", not one of tpu, gpu, cpu'),
        (lambda r: r["target"].update(innermost="model"), 'target.innermost is "model", not a list'),
        (lambda r: r["target"].update(scatters_by_all_reduce=1), "target.scatters_by_all_reduce is 1, not true or false"),
        (lambda r: r["target"].update(sources=[]), r"target.sources is \[\], not an object"),
        (lambda r: r["target"]["sources"].update(near=1), r"target.sources\[near\] is 1, not text"),
        (lambda r: r["target"]["flops_per_second"].update(bf16=None), r"target.flops_per_second\[bf16\] is null, not a number"),
        (lambda r: r["target"]["far"].update(kind="bus"), 'target.far.kind is "bus", not one of torus, switch'),
        (lambda r: r["target"].update(name=3, clock_hertz=True), "target.name is 3, not text; target.clock_hertz is true"),
        (lambda r: r["target"]["efficiency"].update(matrix=-0.5), "matrix is -0.5, not a positive number"),
        (lambda r: r["target"]["efficiency"].update(overhead_seconds=-1), "overhead_seconds is -1, neither 0 nor a positive"),
        (lambda r: r["target"].update(hbm_bytes_per_second=float("nan")), "hbm_bytes_per_second is nan, not a positive number"),
    ],
)
def test_a_damaged_file_is_refused_with_what_is_wrong(change, says, tmp_path):
    path = damaged(tmp_path / "target.json", change)

    with pytest.raises(partir.TargetError, match=says):
        load(path)


@pytest.mark.core
def test_a_file_that_is_none_is_refused(tmp_path):
    path = tmp_path / "target.json"

    with pytest.raises(partir.TargetError, match=r"no target file .*target\.json"):
        load(path)
    with pytest.raises(partir.TargetError, match="cannot read the target file"):
        load(tmp_path)
    path.write_text('{"format": "partir-target", "vers')
    with pytest.raises(partir.TargetError, match=r"(?s)target\.json is damaged.*line 1, column 29.*it is not JSON"):
        load(path)
    path.write_text("[1, 2]")
    with pytest.raises(partir.TargetError, match=r"target\.json is not a target file"):
        load(path)
    with pytest.raises(partir.TargetError, match=r"(?s)cannot write the target file.*No such file or directory"):
        save(get("cpu"), tmp_path / "absent" / "target.json")

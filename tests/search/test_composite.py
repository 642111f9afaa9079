"""Composite strategies that search finds without being told: several kinds of parallelism at once, where they pay."""

from dataclasses import replace

import jax
import pytest
from schedules import SCHEDULES

import partir
from partir import zoo
from partir.search import MCTS

pytestmark = pytest.mark.jax

MESH = partir.Mesh(data=4, model=2)
TPU = partir.targets.get("tpu_v3")


def found(example, target, episodes=300):
    """The traced model, what search finds for it, and the places that are cut: (path, dim) -> axes."""
    traced = partir.jit(example.fun, mesh=MESH, donate_argnums=example.donate_argnums).trace(*example.args)
    search = partir.Search(("data", "model"), algorithm=MCTS(episodes=episodes), target=target)
    part = traced.partition([search], target=target)
    cut = {}
    for action in part.strategy.actions:
        if isinstance(action, partir.Tile):
            cut.setdefault((action.value, action.dim), set()).add(action.axis)
    return traced, part, cut


def axes_of(cut, *places):
    """The axes on which any of these places (a part of a path, dim) is cut."""
    return set().union(*(axes for (path, dim), axes in cut.items() if any(p in path and d == dim for p, d in places)))


def test_a_short_memory_brings_data_tensor_sequence_and_zero_parallelism_together():
    example = zoo.gpt(layers=2, d_model=512, heads=8, vocab=4096, seq=1024, batch=4)
    whole = partir.jit(example.fun, mesh=MESH, donate_argnums=example.donate_argnums).trace(*example.args)
    schedules = {name: SCHEDULES[name] for name in ("batch", "both", "both+zero3", "both+sequence")}
    schedules["all"] = [*SCHEDULES["both+sequence"], partir.ZeRO("data", stage=3)]
    experts = {name: whole.partition(schedule, target=TPU).estimate for name, schedule in schedules.items()}
    least = experts["all"]
    short = replace(TPU, hbm_bytes=int(1.02 * least.peak_bytes))

    _, part, cut = found(example, short)

    assert [name for name, expert in experts.items() if expert.peak_bytes <= short.hbm_bytes] == ["all"]
    assert part.estimate.fits
    assert part.estimate.step_seconds <= least.step_seconds
    batch, sequence = axes_of(cut, ("batch/", 0)), axes_of(cut, ("positions/embeddings", 0), ("batch/", 1))
    tensor = axes_of(cut, ("attention/key/", 0), ("mlp/down/w", 0))
    assert batch
    assert sequence - batch
    assert tensor - batch
    state = jax.tree.leaves(part.in_specs[1], is_leaf=lambda x: isinstance(x, jax.sharding.PartitionSpec))
    assert any(axis in str(spec) for spec in state for axis in batch)


def test_a_mixture_of_experts_has_its_experts_apart():
    example = zoo.moe(layers=1, every=1, d_model=512, heads=8, experts=64, vocab=4096, seq=256, batch=128)

    traced, part, cut = found(example, TPU)

    assert axes_of(cut, ("moe/experts/", 0))
    for schedule in (SCHEDULES["batch"], SCHEDULES["both"], [partir.ExpertParallel("data")]):
        assert part.estimate.step_seconds < traced.partition(schedule, target=TPU).estimate.step_seconds


def test_a_graph_network_has_its_edges_apart():
    traced, part, cut = found(zoo.gns(steps=2), TPU)

    assert axes_of(cut, ("batch/edges", 0)) == {"data", "model"}
    assert part.estimate.step_seconds < 0.7 * traced.partition([], target=TPU).estimate.step_seconds

"""Against Shardy's propagation from the same shardings: what differs does so for a known reason (`docs/shardy.md` in small)."""

import functools
from collections import Counter

import pytest
from schedules import SCHEDULES
from shardy_differences import REASONS, Comparison, compare
from zoo_cases import CASES, MODELS

import partir

pytestmark = pytest.mark.jax


@functools.cache
def traced(model: str) -> partir.Traced:
    example = MODELS[model]()
    mesh = partir.Mesh(data=4, model=2)
    return partir.jit(example.fun, mesh=mesh, donate_argnums=example.donate_argnums).trace(*example.args)


@functools.cache
def comparison(model: str, schedule: str) -> Comparison:
    return compare(traced(model).partition(CASES.get((model, schedule)) or SCHEDULES[schedule]))


def reasons_of(found: Comparison) -> Counter[str]:
    return Counter(difference.reason for difference in found.differences)


@pytest.mark.parametrize("schedule", ["batch", "megatron", "both", "both+zero2", "both+zero3"])
@pytest.mark.parametrize("model", ["gpt", "mlp"])
def test_most_values_lie_alike_and_every_difference_has_a_reason(model, schedule):
    found = comparison(model, schedule)

    assert set(reasons_of(found)) <= set(REASONS)
    assert found.same > len(found.differences)
    assert found.cut > found.same / 4


@pytest.mark.parametrize("schedule", ["batch", "megatron", "both", "both+sequence"])
def test_without_zero_only_sums_differ(schedule):
    """Query, key and value send their gradients to one input: partir adds them, and reduces once."""
    differences = comparison("gpt", schedule).differences

    assert {difference.reason for difference in differences} <= {"unreduced"}
    assert len(differences) == (0 if schedule == "batch" else 4)


@pytest.mark.parametrize(
    ("reason", "model", "schedule", "value", "ours", "theirs"),
    [
        ("meeting", "mlp", "both+zero3", "@forward:layer_1/dot_general.0", "[data, -]", "[-, data]"),
        ("view", "mlp, batch 64", "both+zero3", "@forward:layer_1/broadcast_in_dim.0", "[*, data]", "[data, -]"),
        ("no rule", "gpt", "first", "@forward:final_norm/square.0", "[-, -, model]", "[-, -, -]"),
        ("uneven", "vit", "both+sequence", "@forward:concatenate.0", "[data, -, -]", "[data, model, -]"),
        ("ended", "gpt_decode, one key head", "both+multi-query", "@forward:add.0", "[data]", "[data+model]"),
        ("inner", "gpt_decode, one key head", "first", "@forward:layer_0/attention-block/add.5", "[-, -/model]", "[-, -]"),
    ],
)
def test_a_reason_by_example(reason, model, schedule, value, ours, theirs):
    found = comparison(model, schedule)

    assert set(reasons_of(found)) <= set(REASONS)
    own = next(difference for difference in found.differences if difference.value == value)
    assert (own.reason, own.ours, own.theirs) == (reason, ours, theirs)


def test_a_sum_that_both_ends_of_an_edge_share_is_reduced_once():
    differences = comparison("gns", "edges").differences

    ops = Counter((difference.op, difference.ours, difference.theirs) for difference in differences)
    both_ends = "[-, -] sum over data", "[-, -]"
    assert ops == {("stablehlo.scatter", *both_ends): 4, ("stablehlo.add", *both_ends): 2}

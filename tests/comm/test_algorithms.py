"""Collective algorithms against their textbook orders, and the choice among them."""

import math

import pytest

from partir.comm.algorithms import ALGORITHMS, Choice, Traffic, best
from partir.comm.link import Link

pytestmark = pytest.mark.core

M = 1e6
SIZES = (2, 4, 8, 64, 1024)


def traffic(name: str, kind: str, devices: int) -> Traffic:
    found = ALGORITHMS[name](kind, devices, M)
    assert found is not None
    return found


@pytest.mark.parametrize("n", SIZES)
def test_sequential_grows_with_the_devices_in_time_and_bandwidth(n):
    assert traffic("sequential", "all_reduce", n) == Traffic(2 * (n - 1), 2 * (n - 1) * M)


@pytest.mark.parametrize("n", SIZES)
def test_ring_takes_time_of_order_n_and_bandwidth_of_order_one(n):
    found = traffic("ring", "all_reduce", n)

    assert found.messages == 2 * (n - 1)
    assert found.bytes == pytest.approx(2 * (n - 1) / n * M)
    assert found.bytes < 2 * M


@pytest.mark.parametrize("n", SIZES)
def test_all_at_once_takes_one_message_and_bandwidth_of_order_n_per_node(n):
    found = traffic("all_at_once", "all_reduce", n)

    assert found == Traffic(1, (n - 1) * M)
    assert n * found.bytes == n * (n - 1) * M


@pytest.mark.parametrize("n", SIZES)
def test_recursive_doubling_sends_the_whole_vector_log_n_times(n):
    assert traffic("recursive_doubling", "all_reduce", n) == Traffic(math.log2(n), math.log2(n) * M)


@pytest.mark.parametrize("n", SIZES)
def test_recursive_halving_doubling_takes_log_n_messages_and_the_bytes_of_a_ring(n):
    found = traffic("recursive_halving_doubling", "all_reduce", n)

    assert found.messages == 2 * math.log2(n)
    assert found.bytes == pytest.approx(traffic("ring", "all_reduce", n).bytes)


@pytest.mark.parametrize("n", SIZES)
def test_two_trees_take_log_n_messages_and_twice_the_vector(n):
    assert traffic("tree", "all_reduce", n) == Traffic(2 * math.log2(n), 2 * M)


@pytest.mark.parametrize("n", [4, 8, 64])
def test_a_ring_used_both_ways_takes_half_as_long(n):
    one, two = traffic("ring", "all_reduce", n), traffic("bidirectional_ring", "all_reduce", n)

    assert two.bytes == pytest.approx(one.bytes / 2)
    assert two.messages == pytest.approx(one.messages / 2, abs=1)


def test_an_all_to_all_on_a_ring_carries_what_every_pair_sends_over_every_hop():
    n = 8
    hops = sum((j - i) % n for i in range(n) for j in range(n))
    both = sum(min((j - i) % n, (i - j) % n) for i in range(n) for j in range(n))

    assert traffic("ring", "all_to_all", n).bytes == pytest.approx(hops * M / n / n)
    assert traffic("bidirectional_ring", "all_to_all", n).bytes == pytest.approx(both * M / n / n / 2)
    assert traffic("pairwise", "all_to_all", n) == Traffic(n - 1, (n - 1) / n * M)


@pytest.mark.parametrize("name", ["ring", "bidirectional_ring"])
@pytest.mark.parametrize("n", SIZES)
def test_what_comes_in_two_halves_is_the_sum_of_them(name, n):
    gather, scatter, both = (traffic(name, kind, n) for kind in ("all_gather", "reduce_scatter", "all_reduce"))

    assert gather == scatter
    assert (gather.messages + scatter.messages, gather.bytes + scatter.bytes) == (both.messages, pytest.approx(both.bytes))


@pytest.mark.parametrize("name", ["recursive_doubling", "recursive_halving_doubling"])
def test_devices_that_are_no_power_of_two_are_folded_in(name):
    even, odd = traffic(name, "all_reduce", 8), traffic(name, "all_reduce", 9)

    assert odd.messages == even.messages + 2
    assert odd.bytes == pytest.approx(even.bytes + 2 * M)


def test_the_best_algorithm_depends_on_the_size():
    link = Link(64, 1e11, 1e-6)

    assert best("all_reduce", 100.0, link).algorithm == "all_at_once"
    assert best("all_reduce", 3 * M, link).algorithm == "recursive_halving_doubling"
    assert best("all_reduce", 1e3 * M, Link(64, 1e11, 0.0)).algorithm in ("ring", "recursive_halving_doubling")


@pytest.mark.parametrize("kind", ["all_reduce", "all_gather", "reduce_scatter", "all_to_all", "collective_permute"])
@pytest.mark.parametrize("link", [Link(8, 1e11, 1e-6), Link(8, 1e11, 1e-6, is_ring=True), Link(8, 1e11, 1e-6, True, True)])
def test_no_algorithm_beats_the_best(kind, link):
    choice = best(kind, M, link)

    usable = ["ring"] + (["bidirectional_ring"] if link.both_ways else [])
    names = usable if link.is_ring else [name for name in ALGORITHMS if name != "bidirectional_ring"]
    seconds = [t.seconds(link) for name in names if (t := ALGORITHMS[name](kind, 8, M)) is not None]
    assert choice.seconds == min(seconds)


def test_one_device_sends_nothing():
    assert best("all_reduce", M, Link(1, 1e11, 1e-6)) == Choice("none", 0.0, Traffic(0, 0))


def test_what_is_no_collective_has_no_algorithm():
    with pytest.raises(KeyError):
        best("broadcast", M, Link(8, 1e11, 1e-6))

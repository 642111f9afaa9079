"""From any layout to any other: the steps, taken on simulated devices, put every block where it belongs."""

import itertools
import math

import numpy as np
import pytest

from partir.sharding.layout import Layout
from partir.sharding.reshard import Place, Step, between, steps

pytestmark = pytest.mark.core

SIZES = {"a": 2, "b": 3}
SHAPE = (12, 6, 4)
"""The last dim cannot be cut over both axes."""

PER_DIM = [(), ("a",), ("b",), ("a", "b"), ("b", "a")]
LAYOUTS: list[Layout] = [
    tuple(((size, axes),) for size, axes in zip(SHAPE, (*dims, third), strict=True))
    for *dims, third in itertools.product(PER_DIM, PER_DIM, [(), ("a",)])
    if len({*dims[0], *dims[1], *third}) == len(dims[0]) + len(dims[1]) + len(third)
]
Device = tuple[int, ...]
DEVICES: list[Device] = list(itertools.product(*map(range, SIZES.values())))
Blocks = dict[Device, np.ndarray]


def number(device: Device, axes: tuple[str, ...]) -> int:
    """Which of the devices along some axes this is, major first."""
    index = 0
    for axis in axes:
        index = index * SIZES[axis] + device[list(SIZES).index(axis)]
    return index


def group(device: Device, axes: tuple[str, ...]) -> list[Device]:
    """The devices that differ from one along these axes alone, in their order."""
    fixed = [i for i, axis in enumerate(SIZES) if axis not in axes]
    members = [other for other in DEVICES if all(other[i] == device[i] for i in fixed)]
    return sorted(members, key=lambda other: number(other, axes))


def along(place: Place, block: np.ndarray) -> np.ndarray:
    """A block with the dim of a place seen as [outer, rest]: the rest is dim `place.dim + 1`."""
    shape = block.shape
    rest = shape[place.dim] // place.outer
    return block.reshape(*shape[: place.dim], place.outer, rest, *shape[place.dim + 1 :])


def back(place: Place, block: np.ndarray) -> np.ndarray:
    shape = block.shape
    return block.reshape(*shape[: place.dim], -1, *shape[place.dim + 2 :])


def part(place: Place, block: np.ndarray, count: int, index: int) -> np.ndarray:
    return back(place, np.split(along(place, block), count, axis=place.dim + 1)[index])


def joined(place: Place, blocks: list[np.ndarray]) -> np.ndarray:
    return back(place, np.concatenate([along(place, block) for block in blocks], axis=place.dim + 1))


def after(step: Step, blocks: Blocks) -> Blocks:
    count = math.prod(SIZES[axis] for axis in step.axes)
    assert step.place is not None
    found: Blocks = {}
    for device in DEVICES:
        own, others = number(device, step.axes), group(device, step.axes)
        if step.kind == "all_slice":
            found[device] = part(step.place, blocks[device], count, own)
        elif step.kind == "all_gather":
            found[device] = joined(step.place, [blocks[other] for other in others])
        else:
            assert step.kind == "all_to_all"
            assert step.target is not None
            found[device] = joined(step.place, [part(step.target, blocks[other], count, own) for other in others])
    return found


def laid(whole: np.ndarray, layout: Layout) -> Blocks:
    blocks: Blocks = {}
    for device in DEVICES:
        block = whole
        for dim, segments in enumerate(layout):
            outer = 1
            for size, axes in segments:
                count = math.prod(SIZES[axis] for axis in axes)
                block = part(Place(dim, outer), block, count, number(device, axes))
                outer *= size // count
        blocks[device] = block
    return blocks


@pytest.mark.parametrize("before", LAYOUTS, ids=str)
def test_every_layout_is_reached_from_every_other(before):
    whole = np.arange(math.prod(SHAPE)).reshape(SHAPE)
    for goal in LAYOUTS:
        blocks = laid(whole, before)
        for step in steps(before, goal, tuple(SIZES.items())):
            blocks = after(step, blocks)
        for device, expected in laid(whole, goal).items():
            np.testing.assert_array_equal(blocks[device], expected, err_msg=f"to {goal} on {device}")


SEGMENTS: list[Layout] = [
    (((12, ()),), ((6, ()),)),
    (((12, ("a",)),), ((6, ()),)),
    (((2, ()), (6, ("a",))), ((6, ("b",)),)),
    (((4, ()), (3, ("b",))), ((6, ("a",)),)),
    (((2, ()), (6, ("a", "b"))), ((6, ()),)),
    (((6, ("b",)), (2, ("a",))), ((6, ()),)),
    (((12, ()),), ((2, ()), (3, ("b",)))),
    (((6, ("b",)), (2, ())), ((2, ("a",)), (3, ()))),
]
"""Dims of several segments; an axis that cuts the outer one to single elements may move within its dim."""


@pytest.mark.parametrize("before", SEGMENTS, ids=str)
def test_layouts_of_several_segments_are_reached_from_each_other(before):
    whole = np.arange(72).reshape(12, 6)
    for goal in SEGMENTS:
        blocks = laid(whole, before)
        for step in between(before, goal, tuple(SIZES.items())):
            assert step.target is None or step.place != step.target
            blocks = after(step, blocks)
        for device, expected in laid(whole, goal).items():
            np.testing.assert_array_equal(blocks[device], expected, err_msg=f"to {goal} on {device}")


def kinds(before: tuple[tuple[str, ...], ...], goal: tuple[tuple[str, ...], ...]) -> list[tuple[str, tuple[str, ...]]]:
    layouts = [tuple(((size, axes),) for size, axes in zip(SHAPE, dims, strict=True)) for dims in (before, goal)]
    return [(step.kind, step.axes) for step in steps(*layouts, tuple(SIZES.items()))]


def test_an_innermost_axis_moves_by_one_all_to_all():
    assert kinds((("a", "b"), (), ()), (("a",), ("b",), ())) == [("all_to_all", ("b",))]
    assert kinds((("a", "b"), (), ()), ((), ("a", "b"), ())) == [("all_to_all", ("a", "b"))]


def test_an_outer_axis_takes_the_inner_ones_along_and_sends_them_back():
    assert kinds((("a", "b"), (), ()), (("b",), ("a",), ())) == [("all_to_all", ("a", "b")), ("all_to_all", ("b",))]
    assert kinds((("b",), ("a",), ()), (("a", "b"), (), ())) == [("all_to_all", ("b",)), ("all_to_all", ("a", "b"))]


def test_where_the_other_dim_has_no_room_for_both_it_is_gathered():
    assert kinds((("a", "b"), (), ()), (("b",), (), ("a",))) == [
        ("all_gather", ("a", "b")),
        ("all_slice", ("b",)),
        ("all_slice", ("a",)),
    ]

"""Layouts are canonical: one placement has one description."""

import pytest

from partir.sharding.layout import axes_of, canonical_dim, expressible, is_replicated, local_shape, replicated, spec_of

pytestmark = pytest.mark.core

SIZES = {"a": 2, "b": 4}


def test_segments_that_are_one_block_are_merged():
    assert canonical_dim([(2, ("a",)), (8, ("b",))], SIZES) == ((16, ("a", "b")),), "2 is cut to single elements by a"
    assert canonical_dim([(4, ("a",)), (8, ("b",))], SIZES) == ((4, ("a",)), (8, ("b",)))
    assert canonical_dim([(1, ())], SIZES) == ((1, ()),)


def test_what_each_device_holds():
    layout = (((12, ("a",)), (64, ("b",))), ((8, ()),))

    assert local_shape(layout, (("a", 2), ("b", 4))) == (6 * 16, 8)
    assert axes_of(layout) == ("a", "b")


def test_a_spec_says_the_outermost_segment():
    layout = (((12, ("a",)), (64, ("b",))), ((8, ()),))

    assert spec_of(expressible(layout)) == ("a",)
    with pytest.raises(ValueError, match="cannot be said in a PartitionSpec"):
        spec_of(layout)


def test_replicated():
    assert is_replicated(replicated((4, 8)))
    assert spec_of(replicated((4, 8))) == ()

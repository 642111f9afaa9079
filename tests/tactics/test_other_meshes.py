"""Shardings over other meshes of the same devices."""

import jax
import pytest

import partir
from partir.tactics.other_meshes import layout_over, spec_over

pytestmark = pytest.mark.jax

P = jax.P


def named(shape, axes, spec):
    types = (jax.sharding.AxisType.Auto,) * len(axes)
    return jax.sharding.NamedSharding(jax.make_mesh(shape, axes, types), spec)


def mesh(**axes):
    return partir.Mesh.of(jax.make_mesh(tuple(axes.values()), tuple(axes)))


def test_one_axis_is_two_of_ours():
    assert spec_over(named((8,), ("all",), P("all")), mesh(a=4, b=2)) == P(("a", "b"))


def test_a_part_that_no_axes_cut_is_none():
    assert spec_over(named((2, 4), ("p", "q"), P("q")), mesh(a=8)) is None


def test_open_dims_stay_open():
    sharding = named((8,), ("all",), P(None, P.UNCONSTRAINED))

    assert spec_over(sharding, mesh(a=4, b=2)) == P(None, P.UNCONSTRAINED)


def test_an_array_is_laid_as_its_pieces_say():
    assert layout_over(named((4, 2), ("p", "q"), P("q", "p")), (8, 8), mesh(a=4, b=2)) == P("b", "a")
    assert layout_over(jax.sharding.SingleDeviceSharding(jax.devices()[0]), (8,), mesh(a=4, b=2)) is None

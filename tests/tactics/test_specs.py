"""PartitionSpecs as users hand them in."""

import jax
import pytest

from partir import Mesh, MeshError, PathError, ProgramError, TilingError
from partir.program import Leaf
from partir.tactics.specs import by_argument, dims_of, spread_over

pytestmark = pytest.mark.jax

P = jax.P
MESH = Mesh(a=2, b=4)
LEAVES = [Leaf(path, (8, 8), "float32", "state") for path in [("p", "u"), ("p", "v"), ("x",)]]


def test_the_axes_of_each_dim():
    assert dims_of(P("a", None, ("b",), P.UNCONSTRAINED), MESH, "x") == (("a",), (), ("b",), None)


@pytest.mark.parametrize(
    ("spec", "error", "text"),
    [(P("c"), MeshError, "c"), (P("a", "a"), TilingError, "named 2 times"), ("a", ProgramError, "not a sharding of x")],
)
def test_what_no_mesh_has_is_refused(spec, error, text):
    with pytest.raises(error, match=text):
        dims_of(spec, MESH, "x")


def test_a_spec_stands_for_all_below_it():
    assert spread_over({"p": P("a")}, LEAVES, (), "argument") == [(0, P("a")), (1, P("a"))]
    assert spread_over(P("a"), LEAVES, (), "argument") == [(0, P("a")), (1, P("a")), (2, P("a"))]
    with pytest.raises(PathError, match="p/u"):
        spread_over({"p": {"w": P("a")}}, LEAVES, (), "argument")


def test_a_tuple_stands_for_the_arguments_in_order():
    assert by_argument((None, P("a")), LEAVES) == {"p": None, "x": P("a")}
    with pytest.raises(ProgramError, match="specs for 3 arguments"):
        by_argument((None, None, None), LEAVES)

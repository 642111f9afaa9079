"""Which leaf of one function is which leaf of another."""

import pytest

from partir import Mesh
from partir.program import Leaf
from partir.tactics.follow import followed

pytestmark = pytest.mark.jax

MESH = Mesh(a=2)
ROWS, COLUMNS = (((8, ("a",)),), ((4, ()),)), (((8, ()),), ((4, ("a",)),))


def leaf(*path, shape=(8, 4)):
    return Leaf(path, shape, "float32", "state")


@pytest.mark.parametrize(
    ("asked", "known", "spec"),
    [
        (leaf("params", "w"), [(leaf("params", "w"), ROWS)], ("a",)),
        (leaf("weights", "w"), [(leaf("params", "w"), ROWS)], ("a",)),  # the same key below another argument
        (leaf("weights", "w", shape=(6, 4)), [(leaf("params", "w"), ROWS)], ("a",)),  # another size, which divides, too
        (leaf("weights", "w", shape=(7, 4)), [(leaf("params", "w"), ROWS)], None),
        (leaf("weights", "w", shape=(8,)), [(leaf("params", "w"), ROWS)], None),
        (leaf("weights", "w"), [(leaf("p", "l", "w"), ROWS), (leaf("p", "m", "w"), COLUMNS)], None),  # equally near
        (leaf("weights", "m", "w"), [(leaf("p", "l", "w"), ROWS), (leaf("p", "m", "w"), COLUMNS)], (None, "a")),
    ],
)
def test_the_longest_common_end(asked, known, spec):
    assert followed([asked], known, MESH) == [spec]

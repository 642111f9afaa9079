"""The numberings of a matmul, as the docstring of `partir.sharding.indices` has them."""

import pytest
from tiny import undecided

from partir.sharding.indices import FactorId, LocalFactor, RowIndex, ValueIndex

pytestmark = pytest.mark.jax

X, W, Y = map(ValueIndex, range(3))


def test_a_matmul():
    assignment = undecided(lambda x, w: x @ w, (16, 8), (8, 32))
    atoms, classes = assignment.structure.atoms, assignment.classes

    assert [list(atoms.atoms_of(v, d)) for v in (X, W, Y) for d in (0, 1)] == [[0], [1], [2], [3], [4], [5]]
    assert atoms.shapes[0].sizes == (16, 32, 8)
    assert classes.of_node.tolist() == [0, 1, 1, 2, 0, 2, 0, 2, 1]
    assert classes.size == [16, 8, 32]


def test_conversions_undo_each_other():
    assignment = undecided(lambda x, w: x @ w + (x @ w) @ w, (8, 8), (8, 8))
    atoms = assignment.structure.atoms

    for row, shape in enumerate(atoms.shapes):
        position = RowIndex(row)
        factors = [atoms.factor_id(position, LocalFactor(f)) for f in range(len(shape.sizes))]
        assert factors == list(atoms.factors_of(position))
        assert [atoms.local_factor(position, factor) for factor in factors] == list(range(len(shape.sizes)))
        assert assignment.classes.of_row(position) == [assignment.classes.of_factor[factor] for factor in factors]
        assert {assignment.classes.row_of_factor[factor] for factor in factors} == {row}
    assert atoms.node_of_factor(FactorId(0)) == atoms.atom_count

"""Split points of reshapes flow to everything that has the dim, and stop where dims are joined."""

import pytest
from tiny import result_of, undecided, value

from partir.sharding import atoms as atoms_

pytestmark = pytest.mark.jax


def heads(x, w):
    """A projection to 12 heads of 64."""
    return (x @ w).reshape(16, 12, 64)


def test_a_reshape_splits_the_weight_before_it():
    assignment = undecided(heads, (16, 8), (8, 768))

    assert assignment.structure.atoms.sizes_of[value(assignment, "w")] == ((8,), (12, 64))
    assert assignment.structure.atoms.sizes_of[value(assignment, "x")] == ((16,), (8,))


def test_an_ops_factors_are_split_alike():
    """The example of `OpShape`."""
    shape = undecided(heads, (16, 8), (8, 768)).structure.atoms.shapes[0]

    assert shape.sizes == (16, 12, 64, 8)
    assert shape.reduction == (False, False, False, True)
    assert shape.slots == (((0,), (3,)), ((3,), (1, 2)), ((0,), (1, 2)))
    assert (shape.kind, shape.operand_count) == ("add", 2)


def test_a_merged_dim_keeps_its_parts():
    assignment = undecided(lambda x, w: x.reshape(32, 8) @ w, (4, 8, 8), (8, 16))

    assert assignment.structure.atoms.sizes_of[result_of(assignment, "dot_general")] == ((4, 8), (16,))


def test_an_atom_knows_its_owner_and_its_place():
    assignment = undecided(heads, (16, 8), (8, 768))
    atoms, w = assignment.structure.atoms, value(assignment, "w")

    owners = [atoms.owner_of(atom) for dim in (0, 1) for atom in atoms.atoms_of(w, dim)]

    assert owners == [(w, 0, 0), (w, 1, 0), (w, 1, 1)]
    assert [atoms.place_in_value(w, dim, part) for _, dim, part in owners] == [0, 1, 2]


def test_a_dim_of_one_element_has_no_atom():
    assignment = undecided(lambda x: x + 1, (1, 8))

    assert assignment.structure.atoms.sizes_of[0] == ((), (8,))
    assert [assignment.structure.atoms.owner_of(atom) for atom in assignment.structure.atoms.atoms_of(0, 1)] == [(0, 1, 0)]


def test_a_joined_dim_is_not_split():
    tables = undecided(lambda x: x.reshape(4, 16) * 2, (64,)).structure.tables

    assert atoms_.build(tables).sizes_of[0] == ((4, 16),)
    assert atoms_.build(tables, [(0, 0, 4)]).sizes_of[0] == ((4, 16),), "4 blocks divide by 4 devices"
    assert atoms_.build(tables, [(0, 0, 8)]).sizes_of[0] == ((64,),), "but not by 8"

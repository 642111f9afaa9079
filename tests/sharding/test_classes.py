"""What is sharded together, and where the order of unions lets refusals fall."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import pytest
from tiny import result_of, undecided, value

from partir import NoEffectError
from partir.sharding.classes import one_of_each
from partir.sharding.indices import ClassId, RowIndex

pytestmark = pytest.mark.jax


def test_a_contraction_ties_what_it_reads_and_makes():
    classes = undecided(lambda x, w: jnp.tanh(x @ w), (4, 8), (8, 16)).classes

    assert classes.arguments_by_class == [[(0, 0, 0)], [(0, 1, 0), (1, 0, 0)], [(1, 1, 0)]]
    assert classes.size == [4, 8, 16]
    assert classes.refused == []


def test_a_square_matrix_is_refused_at_the_operand_of_its_contraction():
    """The example of `build`."""
    assignment = undecided(lambda x, w: jnp.tanh(x @ w + x), (4, 8), (8, 8))
    classes, x, w = assignment.classes, value(assignment, "x"), value(assignment, "w")

    ((atom, node),) = classes.refused
    assert classes.atoms.owner_of(atom) == (x, 1, 0)
    assert classes.of_node[node] == classes.class_of(w, 0)
    assert classes.class_of(w, 1) == classes.class_of(x, 1) == classes.class_of(result_of(assignment, "tanh"), 1)


def test_attention_is_refused_at_a_contraction_and_not_at_the_softmax():
    def attention(q, k, v):
        return jax.nn.softmax(q @ k.T) @ v

    def itself(x):
        return attention(x, x, x)

    assignment = undecided(itself, (8, 4))
    classes, tables = assignment.classes, assignment.structure.tables

    rows = {classes.row_of_factor[node - classes.atoms.atom_count] for _, node in classes.refused}
    assert {tables.rows[row].op.name for row in rows} == {"stablehlo.dot_general"}


def test_a_cut_ends_a_class():
    assignment = undecided(lambda x, w: jnp.tanh(jnp.sin(x) @ w), (4, 8), (8, 16))
    sine = result_of(assignment, "sine")

    whole, ended = assignment.structure.classes(), assignment.structure.classes(frozenset({(sine, 0)}))

    assert whole.class_of(sine, 0) == whole.class_of(result_of(assignment, "tanh"), 0)
    assert ended.class_of(sine, 0) == ended.class_of(value(assignment, "x"), 0)
    assert ended.class_of(sine, 0) != ended.class_of(result_of(assignment, "tanh"), 0)


def test_a_class_is_named_by_an_argument_else_by_a_value():
    assignment = undecided(lambda x, w: jnp.sin(x) @ w @ w.T, (4, 8), (8, 16))
    classes = assignment.classes

    assert classes.address(classes.class_of(value(assignment, "w"), 1)) == ("w", 1)
    assert classes.argument_dim(classes.class_of(value(assignment, "w"), 1)) == (1, 1)


def test_an_inner_part_is_named_by_the_value_that_has_it_outermost():
    assignment = undecided(lambda x, w: (x @ w).reshape(4, 2, 8), (4, 8), (8, 16))
    inner = assignment.classes.class_of(value(assignment, "w"), 1, part=1)

    assert assignment.classes.size[inner] == 8
    assert assignment.classes.argument_dim(inner) is None
    assert assignment.classes.address(inner) == ("@forward:reshape.0", 2)


def test_a_class_without_a_dim_of_its_own_cannot_be_named():
    classes = undecided(lambda x: x * 2, (4,)).classes
    more = replace(classes, size=[*classes.size, 7])

    with pytest.raises(NoEffectError, match="is the outermost part of no dim"):
        more.address(ClassId(classes.count))


def test_one_of_each_class_is_the_first():
    dims = undecided(lambda x, y: x + y, (4, 8), (4, 8)).input_dims

    assert [(dim.name, dim.dim) for dim in one_of_each(dims)] == [("x", 0), ("x", 1)]


def test_the_classes_of_a_row_come_in_the_order_of_its_factors():
    classes = undecided(lambda x, w: x @ w, (4, 8), (8, 16)).classes

    assert classes.of_row(RowIndex(0)) == [0, 2, 1]

"""The reader of compiled text counts what it should: its examples, and one of each collective as XLA compiles it."""

import doctest

import hlo
import jax
import jax.numpy as jnp
import pytest
from equal import mesh_of
from jax import lax
from jax.sharding import PartitionSpec as P

pytestmark = pytest.mark.jax


def _each(x):
    """One of each kind, none of which can be merged with another; x is one row."""
    x = jnp.sin(lax.psum(x, "model"))
    x = jnp.sin(lax.all_gather(x, "data", tiled=True))
    x = jnp.sin(lax.psum_scatter(x, "data", tiled=True))
    x = jnp.sin(lax.all_to_all(x, "data", 1, 0, tiled=True))
    x = jnp.sin(lax.all_to_all(x, "data", 0, 1, tiled=True))
    return lax.ppermute(x, "data", [(0, 1), (1, 0), (2, 3), (3, 2)])


EACH = {"all_gather": 1, "all_reduce": 1, "reduce_scatter": 1, "all_to_all": 2, "collective_permute": 1}


def compiled_text(body):
    mesh = mesh_of("4x2")
    mapped = jax.shard_map(body, mesh=mesh, in_specs=P("data"), out_specs=P("data"), check_vma=False)
    shape = jax.ShapeDtypeStruct((4, 8), "float32", sharding=jax.NamedSharding(mesh, P("data")))
    return jax.jit(mapped).lower(shape).compile().as_text()


def test_examples():
    failed, attempted = doctest.testmod(hlo)

    assert attempted > 0
    assert failed == 0


def test_one_of_each():
    assert hlo.collectives_in(compiled_text(_each)) == EACH


def test_combined_all_reduces_count_each():
    def body(x):
        return x + sum(lax.psum(f(x), "model") for f in (jnp.sin, jnp.cos, jnp.tan))

    assert hlo.collectives_in(compiled_text(body)) == {"all_reduce": 3}


def test_loops_count_as_often_as_they_run():
    def body(x):
        return lax.scan(lambda c, _: (lax.scan(lambda c, _: (_each(c), None), c, length=2)[0], None), x, length=3)[0]

    assert hlo.collectives_in(compiled_text(body)) == {kind: 6 * number for kind, number in EACH.items()}

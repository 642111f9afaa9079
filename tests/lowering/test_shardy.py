"""The program as text for MLIR and Shardy."""

import jax
import jax.numpy as jnp
import pytest
from jax.extend.mlir import ir
from jax.interpreters import mlir

import partir

pytestmark = pytest.mark.jax


def test_mlir_reads_it_and_nothing_of_ours_is_left() -> None:
    def layer(x: jax.Array, w: jax.Array) -> jax.Array:
        with partir.scope("block"):
            hidden = partir.tag(jnp.tanh(x @ w), "hidden")
        return hidden.sum(axis=1)

    shapes = [jax.ShapeDtypeStruct(shape, "float32") for shape in ((16, 8), (8, 4))]
    traced = partir.jit(layer, mesh=partir.Mesh(data=4, model=2)).trace(*shapes)

    text = traced.partition([partir.Manual({"x": 0}, axis="data"), partir.Manual({"w": 1}, axis="model")]).shardy()

    with mlir.make_ir_context():
        read = ir.Module.parse(text)
        shown = str(read)
    assert "partir" not in text
    assert 'sdy.mesh @mesh = <["data"=4, "model"=2]>' in shown
    assert '%arg0: tensor<16x8xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"data"}, {}]>}' in shown
    assert '-> (tensor<16xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"data"}]>})' in shown
    assert traced.program.main.verify() is None
    assert "partir.tag" in str(traced.program.main)

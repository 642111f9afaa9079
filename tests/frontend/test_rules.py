"""Sharding rules, tested by running them: every op, cut along its dimension classes, equals one device."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from equal import assert_same, mesh_of
from jax.experimental import pallas
from op_programs_indexed import OPS
from op_programs_types import TYPES
from thinned import ALL

import partir
from partir.frontend.trace import trace
from partir.lowering.to_spmd import to_spmd
from partir.mesh import Mesh
from partir.runtime.emit import emit
from partir.sharding import plan
from partir.sharding.actions import Action, Tile
from partir.sharding.assignment import Assignment
from partir.sharding.structure import Structure
from partir.viz.report import replicated_lines

pytestmark = pytest.mark.jax

INTERMEDIATE = 4
"""How many of the classes that touch no argument are tried (a random-number generator has dozens)."""
PAIRS = 3 if ALL else 1
"""How many pairs of classes, on the two axes of the mesh, are tried for each op besides the classes alone."""

NOTHING: dict[str, int] = {}
SUM = {"all_reduce": 1}
GATHER = {"all_gather": 1}

OWES = [
    # What is cut, and what that costs. Each dim of a pointwise op; what a contraction sums.
    ("add", "x", 0, NOTHING),
    ("lgamma", "x", 1, NOTHING),
    ("matmul", "x", 1, SUM),
    ("matmul_int8", "w", 1, NOTHING),
    ("attention_scores", "q", 2, NOTHING),
    ("attention_mix", "w", 3, SUM),
    # Partial sums meet before they are reduced, once.
    ("sum_of_sums", "x", 1, SUM),
    ("sum_plus_whole", "x", 1, SUM),
    ("max_of_max", "x", 0, SUM),
    ("any_all", "x", 0, {"all_reduce": 2}),
    # CASES b4: batched decompositions, transforms and sorts need nothing.
    ("vmap_sort", "a", 0, NOTHING),
    ("cholesky", "a", 0, NOTHING),
    ("eigvalsh", "a", 0, NOTHING),
    ("fft", "a", 0, NOTHING),
    ("top_k", "operand", 0, NOTHING),
    # Rows picked by index: each device looks up its own, and writes its own (CASES b7, c9).
    ("embedding", "t", 0, SUM),
    ("embedding", "i", 0, NOTHING),
    ("scatter_add", "t", 0, NOTHING),
    ("scatter_add", "u", 0, SUM),
    ("set_row", "t", 0, NOTHING),
    ("set_column", "t", 1, NOTHING),
    ("scatter_counts", "t", 0, GATHER),
    ("segment_sum", "x", 0, SUM),
    ("embedding_gradient", "i", 0, SUM),
    ("gather_scatter_edges", "s", 0, SUM),
    # Blocks of slices, pads and concatenations.
    ("slice_block", "x", 1, NOTHING),
    ("slice_thirds", "x", 0, NOTHING),
    ("pad_block", "x", 1, NOTHING),
    ("concatenate", "x", 0, NOTHING),
    ("slice_middle", "x", 0, GATHER),
    # Convolutions by batch and by channel; a weight gradient sums over the batch (CASES b6, c10, c11).
    ("convolution", "x", 0, NOTHING),
    ("convolution", "x", 3, SUM),
    ("convolution", "k", 3, NOTHING),
    ("convolution_gradients", "images", 0, SUM),
    ("convolution_grouped", "x", 0, NOTHING),
    ("convolution_grouped_gradients", "images", 0, SUM),
    ("convolution_per_example_gradients", "x", 0, NOTHING),
    # Random numbers are made where they are used; recomputation costs no communication (CASES c5).
    ("random_normal", "x", 0, NOTHING),
    ("remat", "x", 0, SUM),
]


def assignment_of(traced: partir.Traced, *actions: Action) -> Assignment:
    return Assignment(traced.structure, Mesh.of(traced.mesh), actions)


def tiles_of(traced: partir.Traced) -> list[tuple[str, int]]:
    """A (value, dim) for each dimension class that some `Tile` can name: those of arguments, and some of the others."""
    assignment = assignment_of(traced)
    names, shapes = traced.structure.addresses.names, traced.structure.tables.shapes
    found: dict[int, tuple[str, int]] = {}
    for value, shape in enumerate(shapes):
        for dim in range(len(shape)):
            class_ = assignment.class_of(value, dim)
            if class_ is not None:
                found.setdefault(class_, (names[value], dim))
    tiles = list(found.values())
    inner = [tile for tile in tiles if tile[0].startswith("@")]
    outer = [tile for tile in tiles if tile not in inner]
    return outer + inner[:: max(1, len(inner) // INTERMEDIATE)][:INTERMEDIATE]


def assignments_of(tiles: list[tuple[str, int]]) -> list[list[Action]]:
    """Each class over one axis, or over both with the minor one first; then some pairs of classes, one axis each."""
    chosen: list[list[Action]] = []
    for number, (value, dim) in enumerate(tiles):
        axes = (("data",), ("model", "data"))[number % 2]
        chosen.append([Tile(value, dim, axis) for axis in axes])
    pairs = list(itertools.permutations(tiles, 2))
    order = np.random.default_rng(0).permutation(len(pairs))[:PAIRS]
    return chosen + [[Tile(*pairs[i][0], "data"), Tile(*pairs[i][1], "model")] for i in order]


def replayed(traced: partir.Traced, actions: list[Action]) -> partir.Partitioned:
    return traced.replay(partir.Strategy.of(assignment_of(traced, *actions)))


@pytest.mark.parametrize("name", OPS)
def test_each_class_of_an_op_can_be_cut(name: str, x64: None):
    fun, args = OPS[name]
    traced = partir.jit(fun, mesh=mesh_of("4x2")).trace(*args)
    expected = jax.jit(fun)(*args)

    for actions in assignments_of(tiles_of(traced)):
        try:
            assert_same(replayed(traced, actions)(*args), expected)
        except Exception as error:
            error.add_note(f"{name}: {actions}")
            raise


@pytest.mark.parametrize("name", TYPES)
def test_values_of_every_type_can_be_cut(name: str, x64: None):
    fun, args = TYPES[name]
    traced = partir.jit(fun, mesh=mesh_of("4x2")).trace(*args)
    expected = jax.jit(fun)(*args)

    every = assignments_of(tiles_of(traced)) or [[]]  # scalars have no dim to cut: they only run
    for actions in [*every[:2], *every[2:][-1:]]:
        try:
            assert_same(replayed(traced, actions)(*args), expected)
        except Exception as error:
            error.add_note(f"{name}: {actions}")
            raise


@pytest.mark.parametrize(("name", "argument", "dim", "collectives"), OWES)
def test_what_an_op_owes(name: str, argument: str, dim: int, collectives: dict[str, int]):
    fun, args = OPS[name]
    traced = partir.jit(fun, mesh=mesh_of("4x2")).trace(*args)

    part = replayed(traced, [Tile(argument, dim, "data")])

    assert part.collectives == collectives, part.replicated


def test_a_gather_says_why():
    fun, args = OPS["slice_middle"]

    part = replayed(partir.jit(fun, mesh=mesh_of("4x2")).trace(*args), [Tile("x", 0, "data")])

    (line,) = part.replicated
    assert "slice" in line
    assert "op_programs.py" in line
    assert "gathered" in line


def test_a_pallas_kernel_stays_whole():
    """On a TPU it is one call, which nobody sees into; no TPU is needed to plan and write the program."""

    def kernel(x, out):
        out[...] = x[...] * 2

    def fun(x):
        return jnp.sin(pallas.pallas_call(kernel, out_shape=jax.ShapeDtypeStruct(x.shape, x.dtype))(x))

    program = trace(fun, (jax.ShapeDtypeStruct((64, 128), "float32"),), {}, platform="tpu")
    made = plan.make(Assignment(Structure.of(program), Mesh(data=4, model=2), (Tile("x", 0, "data"),)))

    assert made.collectives == GATHER
    (line,) = replicated_lines(made)
    assert "custom_call" in line
    assert "32,768 bytes gathered" in line
    assert "tpu_custom_call" in emit(to_spmd(made), Mesh(data=4, model=2)).text


def test_an_eigendecomposition_on_tpu_needs_its_matrix_whole():
    """Shardy leaves the matrix open; half a matrix has no eigenvalues."""
    program = trace(jax.vmap(jnp.linalg.eigh), (jax.ShapeDtypeStruct((8, 4, 4), "float32"),), {}, platform="tpu")
    structure = Structure.of(program)
    names = [leaf.name for leaf in program.signature.arguments]

    def owed(dim: int) -> dict[str, int]:
        return plan.make(Assignment(structure, Mesh(data=4), (Tile(names[0], dim, "data"),))).collectives

    assert owed(0) == NOTHING
    assert "all_gather" in owed(1)
    assert "all_gather" in owed(2)


def test_random_numbers_without_a_key_are_the_same_on_all_devices():
    """Each device has a generator of its own: they are drawn on one, and sent to the others."""
    step = partir.jit(lambda low: jax.lax.rng_uniform(low, low + 1, (8, 8)), mesh=mesh_of("4x2"), schedule=[])
    part = step.trace(np.float32(2)).partition()

    drawn = part(np.float32(2))

    assert part.collectives == {"all_reduce": 1}
    first, *others = [np.asarray(shard.data) for shard in drawn.addressable_shards]
    assert all(np.array_equal(first, other) for other in others)
    assert first.min() >= 2
    assert first.max() < 3
    assert first.std() > 0


def test_an_fft_runs_after_a_sum_over_devices(x64: None):
    """XLA on CPU lays what it reads out column by column here, and would then refuse to run it."""
    fun, args = TYPES["complex_gradients"]
    traced = partir.jit(fun, mesh=mesh_of("4x2")).trace(*args)

    assert_same(replayed(traced, [Tile("x", 1, "model"), Tile("x", 1, "data")])(*args), jax.jit(fun)(*args))


def test_nan_survives_a_maximum_over_devices():
    """XLA's own all_reduce drops it on CPU."""
    x = np.where(np.arange(64.0).reshape(8, 8) == 20, np.nan, 1.0).astype("float32")
    step = partir.jit(lambda x: (jnp.max(x, 0), jnp.min(x, 0)), mesh=mesh_of("4x2"), schedule=[Tile("x", 0, "data")])

    assert_same(step(x), (np.max(x, 0), np.min(x, 0)))

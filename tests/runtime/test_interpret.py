"""Core IR runs on the host, loops in sequence, with the numbers of the program it was made from."""

from collections.abc import Iterator

import jax
import numpy as np
import pytest
from equal import assert_same
from programs import PROGRAMS

from partir.coreir.materialise import materialise
from partir.dialect.text import parse
from partir.errors import IRError, ProgramError
from partir.frontend.trace import trace
from partir.mesh import Mesh
from partir.runtime.interpret import interpret
from partir.sharding import plan
from partir.sharding.actions import Tile
from partir.sharding.assignment import Assignment
from partir.sharding.structure import Structure

pytestmark = pytest.mark.jax


def assignments_of(structure: Structure) -> Iterator[Assignment]:
    """Two classes of arguments, one axis each; the first over two axes, in both orders; and dims in between over three."""
    start = Assignment(structure, Mesh(data=4, model=2))
    names, classes = structure.addresses.names, structure.classes()
    places = [members[0] for members in classes.arguments_by_class if members and members[0][2] == 0]
    tiles = [(names[argument], dim) for argument, dim, _ in places]
    first, second = tiles[0], tiles[-1]
    yield start.apply(Tile(*first, "data"), Tile(*second, "model"))
    yield start.apply(Tile(*first, "model"), Tile(*first, "data"), Tile(*second, "model"))
    yield start.apply(Tile(*second, "data"), Tile(*first, "data"), Tile(*first, "model"))
    rng = np.random.default_rng(len(names))
    inner = [v for v in range(structure.tables.argument_count, len(names)) if structure.tables.shapes[v]]
    drawn = rng.choice(inner, size=6)
    cube = Assignment(structure, Mesh(data=2, model=2, stage=2))
    shapes = structure.tables.shapes
    yield cube.apply(*(Tile(names[v], int(rng.integers(len(shapes[v]))), cube.mesh.names[k % 3]) for k, v in enumerate(drawn)))


@pytest.mark.parametrize("name", PROGRAMS)
def test_core_computes_what_the_program_computes(name, x64):
    example = PROGRAMS[name]
    args = example.concrete(dtype="float64")
    program = trace(example.fun, args, {})
    expected = jax.jit(example.fun)(*args)

    for assignment in assignments_of(Structure.of(program)):
        module = materialise(plan.make(assignment))
        results = interpret(module, [*jax.tree.leaves(args), *program.constants])

        try:
            assert_same(jax.tree.unflatten(program.trees.results, results), expected)
        except AssertionError as error:
            error.add_note(f"{name}: {assignment.actions} on {assignment.mesh}")
            raise


ROWS = np.arange(24).reshape(12, 2)

LOOPS = {
    "tile": ("[tile<0>]", "tile<0>", "i32", ROWS),
    "outer": ("[tile<0, 3>]", "tile<0, 3>", "i32", ROWS),
    "moved": ("[tile<0>]", "tile<0, 3>", "i32", ROWS.reshape(3, 2, 2, 2).swapaxes(0, 1).reshape(12, 2)),
    "add": ("[reduce<add>]", "tile<0>", "i32", ROWS[:6] + ROWS[6:]),
    "mul": ("[reduce<mul>]", "tile<0>", "i32", ROWS[:6] * ROWS[6:]),
    "max": ("[reduce<max>]", "tile<0>", "i32", ROWS[6:]),
    "min": ("[reduce<min>]", "tile<0>", "i32", ROWS[:6]),
    "and": ("[reduce<and>]", "tile<0>", "i32", ROWS[:6] & ROWS[6:]),
    "or": ("[reduce<or>]", "tile<0>", "i32", ROWS[:6] | ROWS[6:]),
    "any": ("[any]", "tile<0>", "i32", ROWS[:6]),
}  # fmt: skip


@pytest.mark.parametrize("case", LOOPS)
def test_results_of_a_loop_come_together_as_it_says(case):
    results_as, tile, element, expected = LOOPS[case]
    text = f"""
    func.func @main(%x: tensor<12x2x{element}>) -> tensor<{len(expected)}x2x{element}> {{
      %y = partir.loop "a"=2 {results_as} (%i) : tensor<{len(expected)}x2x{element}> {{
        %s = partir.slice %x[%i] {tile} : tensor<12x2x{element}> -> tensor<6x2x{element}>
        partir.yield %s : tensor<6x2x{element}>
      }}
      func.return %y : tensor<{len(expected)}x2x{element}>
    }}"""

    (result,) = interpret(parse(text), [ROWS.astype(np.int32)])

    assert result.tolist() == expected.tolist()


def test_a_loop_may_hold_any_ops_and_its_number_counts_iterations():
    text = """
    func.func @main(%x: tensor<2xi32>) -> (tensor<6xi32>, tensor<i32>) {
      %y, %z = partir.loop "a"=3 [tile<0>, reduce<add>] (%i) : tensor<6xi32>, tensor<i32> {
        %c = partir.coordinate %i : tensor<i32>
        %b = stablehlo.broadcast_in_dim %c, dims = [] : (tensor<i32>) -> tensor<2xi32>
        %s = stablehlo.add %x, %b : tensor<2xi32>
        partir.yield %s, %c : tensor<2xi32>, tensor<i32>
      }
      func.return %y, %z : tensor<6xi32>, tensor<i32>
    }"""

    results = interpret(parse(text), [np.array([10, 20], np.int32)])

    assert [r.tolist() for r in results] == [[10, 20, 11, 21, 12, 22], 3]


def test_arguments_that_do_not_fit_are_refused():
    module = parse("func.func @main(%x: tensor<2xf32>) -> tensor<2xf32> { func.return %x : tensor<2xf32> }")

    with pytest.raises(ProgramError, match=r"it takes float32\[2\]\n.*float64\[3\] were given"):
        interpret(module, [np.zeros(3)])


def test_the_program_of_one_device_is_refused():
    text = """
    func.func @main(%x: tensor<2xf32>) -> tensor<2xf32> {
      %y = spmd.all_reduce add %x ["data"=4] : tensor<2xf32>
      func.return %y : tensor<2xf32>
    }"""

    with pytest.raises(IRError, match=r"cannot run spmd\.all_reduce on one device"):
        interpret(parse(text), [np.zeros(2, np.float32)])

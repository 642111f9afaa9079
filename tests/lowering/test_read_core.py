"""Core IR that somebody wrote: what it is read as, what cannot be read, and the passes."""

import pytest
from xdsl.passes import PassPipeline

from partir.dialect.text import context, parse
from partir.errors import IRError, MeshError, NoEffectError, PartirError, TilingError
from partir.lowering.materialise import materialise
from partir.lowering.read_core import read_core
from partir.sharding import plan
from partir.sharding.actions import Cut, Prefer, Replicate, Tile
from partir.sharding.assignment import Assignment
from partir.universe import PARTIR_UNIVERSE

pytestmark = pytest.mark.core


def core_of(assignment: Assignment):
    return materialise(plan.make(assignment))


MESH = 'sdy.mesh @mesh = <["data"=4, "model"=2]>\n'
X = "%x: tensor<8x16xf32>"


def tiled(op: str, x: str, result: str, *, axis: str = '"data"=4', dim: int = 0, size: tuple[int, int] = (8, 16)) -> str:
    """One op of a matrix in one loop along one dim."""
    whole = f"tensor<{size[0]}x{size[1]}xf32>"
    count = int(axis.split("=")[1])
    part = f"tensor<{size[0] // count}x{size[1]}xf32>" if dim == 0 else f"tensor<{size[0]}x{size[1] // count}xf32>"
    return f"""
      {result} = partir.loop {axis} [tile<{dim}>] (%i) : {whole} {{
        {result}_s = partir.slice {x}[%i] tile<{dim}> : {whole} -> {part}
        {result}_t = stablehlo.{op} {result}_s : {part}
        partir.yield {result}_t : {part}
      }}"""


def main(body: str, arguments: str = X, result: str = "%y", type: str = "tensor<8x16xf32>", mesh: str = MESH) -> str:
    return (
        f"{mesh}func.func @main({arguments}) -> {type} {{\n{body}\nfunc.return {result} : {type.split(' {')[0].strip('(')}\n}}"
    )


SHARDED = 'sdy.sharding = #sdy.sharding<@mesh, [{"data"}, {}]>'


def test_hand_written_loops_are_tiles():
    text = main(tiled("tanh", "%x", "%a") + tiled("cosine", "%a", "%y"))

    read = read_core(parse(text))

    assert read.actions == (Tile("x", 0, "data"),)


def test_a_class_ends_where_loops_end():
    text = main(tiled("tanh", "%x", "%a") + "%y = stablehlo.cosine %a : tensor<8x16xf32>", f"{X} {{{SHARDED}}}")

    read = read_core(parse(text))

    assert read.actions == (Cut("@forward:tanh.0", 0), Tile("x", 0, "data"))
    assert core_of(read).is_structurally_equivalent(core_of(read_core(core_of(read))))


def test_an_argument_kept_whole_is_a_replicate():
    whole = "sdy.sharding = #sdy.sharding<@mesh, [{}, {}]>"

    read = read_core(parse(main(tiled("tanh", "%x", "%y"), f"{X} {{{whole}}}")))

    assert read.actions == (Replicate("x", "data"), Tile("x", 0, "data"))


def test_contrary_orders_are_preferences():
    scoped = '{{partir.origin = #partir.origin<"{}", forward, "">}}'
    first = tiled("tanh", "%x", "%a").replace("tanh %a_s", f"tanh %a_s {scoped.format('a')}")
    second = tiled("tanh", "%a", "%y", dim=1).replace("tanh %y_s", f"tanh %y_s {scoped.format('b')}")

    read = read_core(parse(main(first + second)))

    tiles = {action for action in read.actions if isinstance(action, Tile)}
    assert tiles == {Tile("x", 0, "data"), Tile("x", 1, "data")}
    assert len([action for action in read.actions if isinstance(action, Prefer)]) == 1


def test_a_class_that_does_not_divide_holds_others_off():
    text = main("%y = stablehlo.tanh %x : tensor<6x16xf32>", "%x: tensor<6x16xf32>", type="tensor<6x16xf32>")
    assignment = read_core(parse(text)).apply(Tile("x", 0, "data"), Tile("x", 1, "data"), Tile("x", 1, "model"))

    read = read_core(core_of(assignment))

    assert read.actions == (Tile("x", 1, "model"),)  # nothing shows of the other two
    assert read.same_effect(assignment)


def test_a_module_without_loops_starts_from_its_shardings_and_constraints():
    constrained = '%y = sdy.sharding_constraint %x <@mesh, [{}, {"model"}]> : tensor<8x16xf32>'
    fixed = '(tensor<8x16xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"data"}, {}]>})'

    read = read_core(parse(main(constrained, f"{X} {{{SHARDED}}}", type=fixed)))

    assert read.actions == (Tile("x", 0, "data"), Tile("@forward:sharding_constraint.0", 1, "model"))
    assert read.outputs == ((0, (("data",), ())),)


def test_what_is_replicated_is_said():
    pinned = 'sdy.sharding = #sdy.sharding<@mesh, [{}, {}], replicated={"data"}>'
    plain = parse(main("%y = stablehlo.tanh %x : tensor<8x16xf32>", f"{X} {{{pinned}}}"))

    read = read_core(plain)

    assert read.actions == (Replicate("x", "data"),)
    assert read_core(core_of(read.apply(Tile("x", 0, "data")))).argument_axes == [((), ())]


# ---- what cannot be read

TANH = tiled("tanh", "%x", "%y")
TWO_OPS = TANH.replace("partir.yield %y_t", "%y_u = stablehlo.cosine %y_t : tensor<2x16xf32>\npartir.yield %y_u")
GATHER = """
  %y = partir.loop "data"=4 [reduce<add>] (%i) : tensor<8x16xf32> {
    %s = partir.slice %t[%i] tile<0> : tensor<32x16xf32> -> tensor<8x16xf32>
    %c = stablehlo.constant dense<0> : tensor<8x1xi32>
    %n = stablehlo.maximum %j, %c : tensor<8x1xi32>
    %g = "stablehlo.gather"(%s, %n) <{dimension_numbers = #stablehlo.gather<offset_dims = [1], collapsed_slice_dims = [0],
      start_index_map = [0], index_vector_dim = 1>, indices_are_sorted = false, slice_sizes = array<i64: 1, 16>}>
      : (tensor<8x16xf32>, tensor<8x1xi32>) -> tensor<8x16xf32>
    partir.yield %g : tensor<8x16xf32>
  } attributes_here"""
GATHER_RULE = (
    "attributes {sdy.sharding_rule = #sdy.op_sharding_rule<([k, j], [i, l])->([i, j]) {i=8, j=16, k=32, l=1} "
    "reduction={k} need_replication={l}>} {"
)
GATHER = GATHER.replace(" attributes_here", "").replace("tensor<8x16xf32> {\n", f"tensor<8x16xf32> {GATHER_RULE}\n", 1)

UNREADABLE = {
    "no mesh": (main(TANH, mesh=""), "the module has no mesh"),
    "two meshes": (main(TANH, mesh=MESH + MESH.replace("@mesh", "@other")), "the module has 2 meshes"),
    "device order": (main(TANH, mesh='sdy.mesh @mesh = <["data"=2], device_ids=[1, 0]>\n'), "mesh @mesh has device_ids"),
    "no main": (MESH + "func.func @step() { func.return }", "no function @main"),
    "a second function": (main(TANH) + "func.func @f() { func.return }", "holds more than @main and a mesh: func.func"),
    "no body": (MESH + "func.func private @main() -> ()", "@main is not one block that ends with func.return"),
    "indices made of nothing": (
        main(GATHER.replace("maximum %j", "maximum %c"), "%t: tensor<32x16xf32>"),
        "it reads a constant that is made inside it",
    ),
    "indices made of two": (
        main(GATHER.replace("%j, %c", "%j, %k"), "%t: tensor<32x16xf32>, %j: tensor<8x1xi32>, %k: tensor<8x1xi32>"),
        "stablehlo.maximum in it combines values",
    ),
    "two ops": (main(TWO_OPS), "its innermost body has 2 ops"),
    "not what the op gives": (
        main(TANH.replace("yield %y_t", "yield %y_s")),
        "a loop in it does not yield the results of stablehlo.tanh",
    ),
    "a loop beside an op": (
        main(f'%y = partir.loop "model"=2 [any] (%k) : tensor<8x16xf32> {{ {tiled("tanh", "%x", "%c")} '
             "%b = stablehlo.cosine %c : tensor<8x16xf32>\n partir.yield %b : tensor<8x16xf32> }"),
        "a loop around another holds nothing else but slices",
    ),
    "around a constant": (
        main('%y = partir.loop "data"=4 [any] (%i) : tensor<f32> { %c = stablehlo.constant dense<0.0> : tensor<f32>\n'
             "partir.yield %c : tensor<f32> }", type="tensor<f32>"),
        "a loop stands around stablehlo.constant",
    ),
    "another size": (main(tiled("tanh", "%x", "%y", axis='"data"=2')), '"data"=2 is not an axis of the mesh'),
    "no slice": (
        main('%y = partir.loop "data"=4 [any] (%i) : tensor<8x16xf32> { %t = stablehlo.tanh %x : tensor<8x16xf32>\n'
             "partir.yield %t : tensor<8x16xf32> }"),
        'nothing its sharding rule lets be cut is what "data" slices',
    ),
    "more slices than one factor": (
        main(
            """
            %y = partir.loop "data"=4 [tile<0>] (%i) : tensor<8x4xf32> {
              %s = partir.slice %x[%i] tile<0> : tensor<8x16xf32> -> tensor<2x16xf32>
              %v = partir.slice %w[%i] tile<1> : tensor<16x16xf32> -> tensor<16x4xf32>
              %t = stablehlo.dot_general %s, %v, contracting_dims = [1] x [0]
                : (tensor<2x16xf32>, tensor<16x4xf32>) -> tensor<2x4xf32>
              partir.yield %t : tensor<2x4xf32>
            }""",
            f"{X}, %w: tensor<16x16xf32>",
            type="tensor<8x4xf32>",
        ),
        '"data" slices or puts together something else',
    ),
    "what no action says": (
        main(
            """
            %c = stablehlo.constant dense<1.0> : tensor<8x16xf32>
            %d = stablehlo.constant dense<1.0> : tensor<16x4xf32>
            %y = partir.loop "data"=4 [reduce<add>] (%i) : tensor<8x4xf32> {
              %s = partir.slice %c[%i] tile<1> : tensor<8x16xf32> -> tensor<8x4xf32>
              %v = partir.slice %d[%i] tile<0> : tensor<16x4xf32> -> tensor<4x4xf32>
              %t = stablehlo.dot_general %s, %v, contracting_dims = [1] x [0]
                : (tensor<8x4xf32>, tensor<4x4xf32>) -> tensor<8x4xf32>
              partir.yield %t : tensor<8x4xf32>
            }""",
            type="tensor<8x4xf32>",
        ),
        'it is cut along its factor of 16 over "data", while by the loops of the other ops it is whole',
    ),
    "a mask that partir does not write": (
        main(GATHER, "%t: tensor<32x16xf32>, %j: tensor<8x1xi32>"),
        "the loops around stablehlo.gather compute something else",
    ),
    "an argument that does not divide": (
        main(TANH, f"{X}, %z: tensor<6x2xf32> {{{SHARDED}}}"),
        r"argument z cannot be sharded as it says\n.*dim 0 of \[6, 2\] over data",
    ),
    "one axis twice": (
        main(TANH, X + ' {sdy.sharding = #sdy.sharding<@mesh, [{"data"}, {"data"}]>}'),
        r"argument x is not sharded as the loops say\n.*says \[{data}, {data}\]\n.*make it \[{data}, {}\]",
    ),
    "a result that does not divide": (
        main(tiled("tanh", "%x", "%a") + "%y = stablehlo.constant dense<0.0> : tensor<6x2xf32>",
             type=f"(tensor<6x2xf32> {{{SHARDED}}})"),
        "result 0 cannot be sharded as it says",
    ),
    "a pair of two shapes": (
        main(TANH, X, type="(tensor<8x16xf32> {partir.argument = 1 : i64})"),
        "result 0 is paired with argument 1",
    ),
    "a role": (main(TANH, f'{X} {{partir.role = "weights"}}'), 'an argument has the role "weights"'),
    "part of an axis": (
        main(TANH, X + ' {sdy.sharding = #sdy.sharding<@mesh, [{"data":(1)2}, {}]>}'),
        "it has unreduced axes or parts of axes",
    ),
    "an axis that is not there": (main(TANH, f"{X} {{{SHARDED.replace('data', 'z')}}}"), 'no mesh axis "z"'),
    "another mesh": (
        main(TANH, X + ' {sdy.sharding = #sdy.sharding<mesh<["data"=2]>, [{"data"}, {}]>}'),
        "sharded over another mesh",
    ),
    "the program of one device": (
        main('%y = spmd.all_reduce add %x ["data"=4] : tensor<8x16xf32>'),
        "spmd.all_reduce stands where no Core IR has it",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", UNREADABLE)
def test_what_cannot_be_read_is_refused(case):
    text, message = UNREADABLE[case]

    with pytest.raises(PartirError, match=message):
        read_core(parse(text))


# ---- passes

REFUSED = {
    "partir-tile{value=x dim=0 axis=data}": (IRError, r'the module has no mesh\n(.*\n)*.*partir-mesh{axes="data=4"}'),
    'partir-mesh{axes="data=4 model=2"}': (MeshError, 'not a mesh: "data=4 model=2"'),
    'partir-mesh{axes="data=4"},partir-tile{value=x dim=0 axis=model}': (MeshError, 'no mesh axis "model"'),
    'partir-mesh{axes="data=4"},partir-tile{value=x dim=2 axis=data}': (TilingError, r"(?s)along dim 2.*\[8, 16\]"),
    'partir-mesh{axes="data=3"},partir-tile{value=x dim=0 axis=data}': (TilingError, r"8 mod 3 = 2"),
    'partir-mesh{axes="data=4"},partir-cut{value=x dim=0}': (NoEffectError, r"Cut\(value='x', dim=0\) changes nothing"),
    'partir-mesh{axes="data=4"},partir-tile{value=x dim=0 axis=data},partir-replicate{value=x axis=data}': (
        NoEffectError,
        r"Replicate\(value='x', axis='data'\) changes nothing",
    ),
    'partir-mesh{axes="data=4"},partir-tile{value=x dim=0 axis=data},partir-mesh{axes="data=2"}': (
        IRError,
        "the module has loops over its mesh already",
    ),
}


@pytest.mark.parametrize("pipeline", REFUSED)
def test_passes_refuse_what_they_cannot_do(pipeline):
    error, message = REFUSED[pipeline]
    module = parse(main("%y = stablehlo.tanh %x : tensor<8x16xf32>", mesh=""))
    passes = PassPipeline.parse_spec({**PARTIR_UNIVERSE.all_passes}, pipeline)

    with pytest.raises(error, match=message):
        passes.apply(context(), module)

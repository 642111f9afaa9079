"""Core IR that somebody wrote: what it is read as, what is refused, and the passes."""

import dataclasses

import pytest
from xdsl.passes import PassPipeline

from partir.coreir import boundary
from partir.coreir.materialise import materialise
from partir.coreir.read import read_core
from partir.dialect.core import ActionsAttr
from partir.dialect.text import context, parse, to_generic, to_text
from partir.errors import IRError, MeshError, NoEffectError, PartirError, TilingError
from partir.sharding import plan
from partir.sharding.actions import KINDS, Cut, GatherOnce, Prefer, Replicate, Tile
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


BY_ROWS = 'tile value="x" dim=0 axis="data"'


def main(
    body: str,
    arguments: str = X,
    result: str = "%y",
    type: str = "tensor<8x16xf32>",
    mesh: str = MESH,
    actions: str | None = BY_ROWS,
) -> str:
    """A module, with the actions it carries, if any."""
    own = f"func.func @main({arguments}) -> {type} {{\n{body}\nfunc.return {result} : {type.split(' {')[0].strip('(')}\n}}"
    carried = "" if actions is None else f"attributes {{partir.actions = #partir.actions<{actions}>}}"
    return f"builtin.module {carried} {{\n{mesh}{own}\n}}"


SHARDED = 'sdy.sharding = #sdy.sharding<@mesh, [{"data"}, {}]>'


def test_hand_written_loops_are_read_by_their_actions():
    text = main(tiled("tanh", "%x", "%a") + tiled("cosine", "%a", "%y"))

    read = read_core(parse(text))

    assert read.actions == (Tile("x", 0, "data"),)
    assert read_core(parse(to_text(core_of(read)))).actions == read.actions


def test_a_class_ends_where_actions_say():
    text = main(
        tiled("tanh", "%x", "%a") + "%y = stablehlo.cosine %a : tensor<8x16xf32>",
        f"{X} {{{SHARDED}}}",
        actions=f'cut value="@forward:tanh.0" dim=0, {BY_ROWS}',
    )

    read = read_core(parse(text))

    assert read.actions == (Cut("@forward:tanh.0", 0), Tile("x", 0, "data"))


def test_an_argument_kept_whole_says_so():
    whole = 'sdy.sharding = #sdy.sharding<@mesh, [{}, {}], replicated={"data"}>'
    text = main(tiled("tanh", "%x", "%y"), f"{X} {{{whole}}}", actions=f'replicate value="x" axis="data", {BY_ROWS}')

    read = read_core(parse(text))

    assert read.actions == (Replicate("x", "data"), Tile("x", 0, "data"))


def test_contrary_orders_are_preferences():
    scoped = '{{partir.origin = #partir.origin<"{}", forward, "">}}'
    first = tiled("tanh", "%x", "%a").replace("tanh %a_s", f"tanh %a_s {scoped.format('a')}")
    second = tiled("tanh", "%a", "%y", dim=1).replace("tanh %y_s", f"tanh %y_s {scoped.format('b')}")
    tiles = f'{BY_ROWS}, tile value="x" dim=1 axis="data"'

    read = read_core(parse(main(first + second, actions=f'{tiles}, prefer scope="b" value="x" dim=1 axis="data"')))

    assert read.actions == (Tile("x", 0, "data"), Tile("x", 1, "data"), Prefer("b", "x", 1, "data"))
    with pytest.raises(IRError, match="another results_as"):
        read_core(parse(main(first + second, actions=tiles)))


def test_actions_without_an_effect_are_kept():
    text = main("%y = stablehlo.tanh %x : tensor<6x16xf32>", "%x: tensor<6x16xf32>", type="tensor<6x16xf32>", actions=None)
    actions = Tile("x", 0, "data"), Tile("x", 1, "data"), Tile("x", 1, "model"), GatherOnce("x")

    read = read_core(core_of(read_core(parse(text)).apply(*actions)))

    assert read.actions == actions


def test_nothing_decided_is_not_the_same_as_undecided():
    constrained = '%y = sdy.sharding_constraint %x <@mesh, [{}, {"model"}]> : tensor<8x16xf32>'

    assert read_core(parse(main(constrained, actions=""))).actions == ()
    assert len(read_core(parse(main(constrained, actions=None))).actions) == 1


def test_a_module_without_loops_starts_from_its_shardings_and_constraints():
    constrained = '%y = sdy.sharding_constraint %x <@mesh, [{}, {"model"}]> : tensor<8x16xf32>'
    fixed = '(tensor<8x16xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"data"}, {}]>})'

    read = read_core(parse(main(constrained, f"{X} {{{SHARDED}}}", type=fixed, actions=None)))

    assert read.actions == (Tile("x", 0, "data"), Tile("@forward:sharding_constraint.0", 1, "model"))
    assert read.outputs == ((0, (("data",), ())),)


def test_what_is_replicated_is_said():
    pinned = 'sdy.sharding = #sdy.sharding<@mesh, [{}, {}], replicated={"data"}>'
    plain = parse(main("%y = stablehlo.tanh %x : tensor<8x16xf32>", f"{X} {{{pinned}}}", actions=None))

    read = read_core(plain)

    assert read.actions == (Replicate("x", "data"),)
    assert read_core(core_of(read.apply(Tile("x", 0, "data")))).argument_axes == [((), ())]


# ---- what cannot be read

TANH = tiled("tanh", "%x", "%y")
TWO_OPS = TANH.replace("partir.yield %y_t", "%y_u = stablehlo.cosine %y_t : tensor<2x16xf32>\npartir.yield %y_u")
ADD = """
  %y = partir.loop "data"=4 [tile<0>] (%i) : tensor<8x16xf32> {
    %y_s = partir.slice %x[%i] tile<0> : tensor<8x16xf32> -> tensor<2x16xf32>
    %y_u = partir.slice %z[%i] tile<0> : tensor<8x16xf32> -> tensor<2x16xf32>
    %y_t = stablehlo.add %y_s, %y_u : tensor<2x16xf32>
    partir.yield %y_t : tensor<2x16xf32>
  }"""
WHILE = f"""
  %y = stablehlo.while(%v = %x) : tensor<8x16xf32> cond {{
    %p = stablehlo.constant dense<false> : tensor<i1>
    stablehlo.return %p : tensor<i1>
  }} do {{
    {tiled("tanh", "%v", "%b")}
    stablehlo.return %b : tensor<8x16xf32>
  }}"""
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

LOOPS = "the loops are not those that the module's actions make"
UNREADABLE = {
    "loops without actions": (
        main(TANH, actions=None),
        r"has loops, but not the actions that make them\n.*tensor<8x16xf32>\n.*partir\.actions on the module.*\n"
        r".*partir-erase-loops",
    ),
    "loops without actions in control flow": (main(WHILE, actions=None), "has loops, but not the actions that make them"),
    "loops in control flow": (main(WHILE, actions='tile value="x" dim=1 axis="data"'), f"{LOOPS}: another results_as"),
    "an action that is none": (main(TANH, actions='twist value="x" dim=0'), r"not an action.*\n.*kind must be one of tile"),
    "a field of another type": (main(TANH, actions='tile value="x" dim="0" axis="data"'), "dim must be int, not '0'"),
    "a field that is missing": (main(TANH, actions='tile value="x" dim=0'), r"not an action.*\n.*axis"),
    "actions of another kind": (main(TANH).replace("#partir.actions<", "[").replace(f"{BY_ROWS}>", "]"), "holds no actions"),
    "an address": (main(TANH, actions='tile value="y" dim=0 axis="data"'), 'no argument matches "y"'),
    "an axis of an action": (main(TANH, actions='tile value="x" dim=0 axis="z"'), 'no mesh axis "z"'),
    "a loop too many": (
        main(TANH, actions=""),
        f"{LOOPS}\n.*where   partir.loop : tensor<8x16xf32>\n"
        r'.*the text has +%y = partir\.loop "data"=4 \[tile<0>\].*\n.*the actions make +%\d = stablehlo\.tanh %x',
    ),
    "a loop too few": (
        main("%y = stablehlo.tanh %x : tensor<8x16xf32>"),
        f"{LOOPS}\n.*where   stablehlo.tanh : tensor<8x16xf32>\n"
        r'.*the text has .* = stablehlo\.tanh .*\n.*the actions make .* = partir\.loop "data"=4 \[tile<0>\]',
    ),
    "another dim": (main(tiled("tanh", "%x", "%y", dim=1)), f"{LOOPS}: another results_as"),
    "another axis": (main(tiled("tanh", "%x", "%y", axis='"model"=2')), f"{LOOPS}: another axis"),
    "other operands": (
        main(ADD.replace("%y_s, %y_u", "%y_s, %y_s"), f"{X}, %z: tensor<8x16xf32>", actions=BY_ROWS), LOOPS,
    ),
    "another order": (
        main(ADD.replace("%y_s, %y_u", "%y_u, %y_s").replace("add", "subtract"), f"{X}, %z: tensor<8x16xf32>"),
        f"{LOOPS}: another|other",
    ),
    "another op": (
        main(ADD.replace("partir.slice %z[%i]", "partir.slice %x[%i]"), f"{X}, %z: tensor<8x16xf32>"),
        rf"{LOOPS}: another op\n.*\n.*the text has .*partir\.slice.*\n.*the actions make .*stablehlo\.add",
    ),
    "a fixed result of another rank": (
        main(TANH, type='(tensor<8x16xf32> {partir.fixed = #sdy.sharding<@mesh, [{"data"}]>})'), "1 dims are sharded, it has 2",
    ),
    "a fixed result that does not divide": (
        main(tiled("tanh", "%x", "%a") + "%y = stablehlo.constant dense<0.0> : tensor<6x2xf32>",
             type=f"(tensor<6x2xf32> {{{SHARDED.replace('sdy.sharding =', 'partir.fixed =')}}})"),
        "result 0 cannot be sharded as it says\n.*\n.*6 does not divide by the 4 devices of data",
    ),
    "no sharding": (main(TANH, f"{X} {{sdy.sharding = 1 : i64}}"), "sdy.sharding of x is no sharding"),
    "a result sharded otherwise": (
        main(TANH, type='(tensor<8x16xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}, {}]>})'),
        "result result0 is not sharded as the module's actions make it",
    ),
    "no mesh": (main(TANH, mesh=""), "the module has no mesh"),
    "two meshes": (main(TANH, mesh=MESH + MESH.replace("@mesh", "@other")), "the module has 2 meshes"),
    "device order": (main(TANH, mesh='sdy.mesh @mesh = <["data"=2], device_ids=[1, 0]>\n'), "mesh @mesh has device_ids"),
    "no main": (MESH + "func.func @step() { func.return }", "no function @main"),
    "a second function": (main(TANH)[:-1] + "func.func @f() { func.return } }", "holds more than @main and a mesh: func.func"),
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
        rf"{LOOPS}\n.*\n.*the text has .*partir\.loop .*\n.*the actions make .*stablehlo\.constant",
    ),
    "another size": (main(tiled("tanh", "%x", "%y", axis='"data"=2')), f"{LOOPS}: another size"),
    "no slice": (
        main('%y = partir.loop "data"=4 [any] (%i) : tensor<8x16xf32> { %t = stablehlo.tanh %x : tensor<8x16xf32>\n'
             "partir.yield %t : tensor<8x16xf32> }"),
        rf"{LOOPS}: another results_as",
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
        rf"{LOOPS}: another op",
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
        rf"{LOOPS}\n.*where   partir\.loop : tensor<8x4xf32>\n.*\n.*the actions make .* = stablehlo\.dot_general",
    ),
    "a mask that partir does not write": (
        main(GATHER, "%t: tensor<32x16xf32>, %j: tensor<8x1xi32>", actions='tile value="t" dim=0 axis="data"'),
        rf'{LOOPS}: another op\n.*\n.*the text has .*stablehlo\.maximum.*\n.*the actions make .*stablehlo\.constant dense<31>',
    ),
    "an argument that does not divide": (
        main(TANH, f"{X}, %z: tensor<6x2xf32> {{{SHARDED}}}"),
        r'argument z is not sharded as the module\'s actions make it\n.*\[{"data"}, {}\].*\n.*the actions make .*\[{}, {}\]',
    ),
    "one axis twice": (
        main(TANH, X + ' {sdy.sharding = #sdy.sharding<@mesh, [{"data"}, {"data"}]>}'),
        r'argument x is not sharded as the module\'s actions make it\n.*\[{"data"}, {"data"}\].*\n.*make .*\[{"data"}, {}\]',
    ),
    "a result that does not divide": (
        main("%y = stablehlo.constant dense<0.0> : tensor<6x2xf32>", type=f"(tensor<6x2xf32> {{{SHARDED}}})", actions=None),
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
        main('%y = spmd.all_reduce add %x ["data"=4] : tensor<8x16xf32>', actions=None),
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
    'partir-mesh{axes="data=4"},partir-replicate{value=x axis=data},partir-mesh{axes="data=2"}': (
        IRError,
        "the module has actions on its mesh already",
    ),
}


@pytest.mark.parametrize("pipeline", REFUSED)
def test_passes_refuse_what_they_cannot_do(pipeline):
    error, message = REFUSED[pipeline]
    module = parse(main("%y = stablehlo.tanh %x : tensor<8x16xf32>", mesh="", actions=None))
    passes = PassPipeline.parse_spec({**PARTIR_UNIVERSE.all_passes}, pipeline)

    with pytest.raises(error, match=message):
        passes.apply(context(), module)


def test_passes_add_to_the_actions_of_the_module():
    module = parse(main("%y = stablehlo.tanh %x : tensor<8x16xf32>", actions=None))
    pipeline = "partir-replicate{value=x axis=model},partir-tile{value=x dim=0 axis=data},partir-tile{value=x dim=1 axis=model}"
    passes = PassPipeline.parse_spec({**PARTIR_UNIVERSE.all_passes}, pipeline)
    taken_away = PassPipeline.parse_spec({**PARTIR_UNIVERSE.all_passes}, "partir-erase-loops")

    passes.apply(context(), module)

    assert boundary.actions_of(module) == (Replicate("x", "model"), Tile("x", 0, "data"), Tile("x", 1, "model"))
    taken_away.apply(context(), module)
    assert boundary.actions_of(module) is None
    assert not module.attributes


@pytest.mark.parametrize("kind", KINDS)
def test_actions_of_every_kind_are_text(kind):
    known = {"dtype": "bfloat16"}
    texts = {f.name: known.get(f.name, f'a "{f.name}"') for f in dataclasses.fields(KINDS[kind])}
    fields = texts | {f.name: 3 for f in dataclasses.fields(KINDS[kind]) if f.type in (int, "int")}
    action = KINDS[kind](**fields)
    module = parse(main("%y = stablehlo.tanh %x : tensor<8x16xf32>", actions=None))

    module.attributes[ActionsAttr.KEY] = boundary.actions_attr([action, action])

    assert boundary.actions_of(parse(to_text(module))) == (action, action)
    assert boundary.actions_of(parse(to_generic(module))) == (action, action)

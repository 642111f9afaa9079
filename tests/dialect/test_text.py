"""Text in and out: errors say the line, memos keep one object per text, big programs stay cheap."""

import subprocess
import sys

import pytest
from xdsl.dialects.builtin import ModuleOp

from partir.dialect.text import attribute_text, parse, parse_attribute, to_text, verify
from partir.errors import IRError

pytestmark = pytest.mark.core

PROGRAM = """func.func @f(%x: tensor<8xf32>) -> tensor<8xf32> {
  %y = stablehlo.add %x, %x : tensor<8xf32>
  func.return %y : tensor<8xf32>
}
"""


def test_a_module_goes_round() -> None:
    module = parse(PROGRAM)

    assert isinstance(module, ModuleOp)
    assert to_text(parse(to_text(module))) == to_text(module)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (
            PROGRAM.replace("stablehlo.add", "stablehlo.plus"),
            "line 2 is not IR: Operation stablehlo.plus is not registered\n"
            "  where   <text>:2:23: %y = stablehlo.plus %x, %x : tensor<8xf32>",
        ),
        (PROGRAM.replace("%y :", "%z :"), "line 4 is not IR: values used but not defined: [%z]"),
        (PROGRAM.removesuffix("}\n"), "line 3 is not IR:"),
        (PROGRAM.replace("tensor<8xf32>)", "tensor<8xq99>)"), "line 1 is not IR:"),
        (PROGRAM.replace("%x, %x", "%x"), "line 2 is not IR:"),
        ("\x00", "line 1 is not IR:"),
        ("}", "line 1 is not IR:"),
        ('"', "line 1 is not IR:"),
    ],
)
def test_syntax_errors_say_the_line(wrong: str, message: str) -> None:
    with pytest.raises(IRError) as error:
        parse(wrong)

    assert str(error.value).startswith(message)


def test_broken_rules_show_the_op() -> None:
    wrong = PROGRAM.replace("stablehlo.add %x, %x : tensor<8xf32>", "stablehlo.iota dim = 1 : tensor<8xf32>")

    with pytest.raises(IRError) as error:
        parse(wrong)

    assert str(error.value) == (
        "the IR breaks a rule of its dialect\n"
        '  where   %y = "stablehlo.iota"() <{iota_dimension = 1 : i64}> : () -> tensor<8xf32>\n'
        "  why     Iota dimension cannot go beyond the output rank."
    )


def test_verify_after_a_change() -> None:
    module = parse(PROGRAM)
    function = module.body.block.first_op
    function.body.block.last_op.detach()

    with pytest.raises(IRError, match="terminat"):
        verify(module)


def test_the_same_text_is_the_same_object() -> None:
    assert parse_attribute("tensor<8x16xf32>") is parse_attribute("tensor<8x16xf32>")
    assert attribute_text(parse_attribute("tensor<8x16xf32>")) == "tensor<8x16xf32>"


def test_a_module_has_its_types_rules_and_origins_once() -> None:
    rule, origin = "#sdy.op_sharding_rule<([i], [i])->([i]) {i=8}>", '#partir.origin<"a/b", forward, "c:1">'
    said = f"{{sdy.sharding_rule = {rule}, partir.origin = {origin}}} : tensor<8xf32>"
    body = f"%z = stablehlo.add %x, %x {said}\n%y = stablehlo.add %z, %z {said}"
    module = parse(PROGRAM.replace("%y = stablehlo.add %x, %x : tensor<8xf32>", body))

    first, second, _ = module.body.block.first_op.body.block.ops
    assert first.results[0].type is second.results[0].type is parse_attribute("tensor<8xf32>")
    assert len(first.attributes) == 2
    for name, attribute in first.attributes.items():
        assert second.attributes[name] is attribute


def test_long_literals_are_not_kept() -> None:
    text = f"dense<[{', '.join(map(str, range(2000)))}]> : tensor<2000xi32>"

    assert parse_attribute(text) == parse_attribute(text)
    assert parse_attribute(text) is not parse_attribute(text)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("tensor<8xf32> tensor<8xf32>", "something follows the attribute"),
        ("", "attribute expected"),
        ("#sdy.mesh<", "line 1 is not IR"),
        ("[1, 2", "line 1 is not IR"),
        ('{a = "b}', "line 1 is not IR"),
    ],
)
def test_wrong_attributes_are_refused(text: str, message: str) -> None:
    with pytest.raises(IRError, match=message):
        parse_attribute(text)


def test_no_jax_is_imported() -> None:
    code = "import partir.dialect.text, sys; print([m for m in sys.modules if m in ('jax', 'jaxlib')])"

    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout

    assert loaded == "[]\n"

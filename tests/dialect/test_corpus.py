"""Whatever JAX lowers to passes both ways, on both sides: attributes, types, whole modules."""

from collections.abc import Iterator
from typing import Any

import pytest
from dialect.corpus import PROGRAMS
from jax.extend.mlir import ir
from jax.interpreters import mlir

from partir.dialect.text import attribute_text, parse, parse_attribute, to_generic, to_text

pytestmark = pytest.mark.jax

CASES = [
    pytest.param(name, platform, id=f"{name}-{platform}")
    for name, program in PROGRAMS.items()
    for platform in program.platforms
]


def operations(op: Any) -> Iterator[Any]:
    yield op
    for region in op.regions:
        for block in region.blocks:
            for inner in block.operations:
                yield from operations(inner.operation)


def attribute_texts(op: Any) -> list[str]:
    try:
        return [str(named.attr if hasattr(named, "attr") else op.attributes[named]) for named in op.attributes]
    except TypeError:  # jaxlib's bindings cannot look at dense complex numbers; the op's text has them
        text = op.get_asm(print_generic_op_form=True, use_local_scope=True)
        return [text[text.index("<{") + 1 : text.rindex("}>") + 1]]


@pytest.mark.parametrize(("name", "platform"), CASES)
def test_programs_pass_both_ways(name: str, platform: str) -> None:
    module = PROGRAMS[name].lower(platform)
    expected = str(module)
    attributes, types = set(), set()
    for op in operations(module.operation):
        attributes.update(attribute_texts(op))
        types.update(str(value.type) for value in [*op.operands, *op.results])

    ours = parse(module.operation.get_asm(print_generic_op_form=True))
    text = to_text(ours)

    with mlir.make_ir_context():
        for attribute in attributes:
            assert str(ir.Attribute.parse(attribute_text(parse_attribute(attribute)))) == attribute
        for type in types:
            assert str(ir.Type.parse(attribute_text(parse_attribute(type)))) == type
        assert str(ir.Module.parse(to_generic(ours))) == expected
        assert str(ir.Module.parse(to_generic(parse(text)))) == expected

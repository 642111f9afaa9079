"""Defines op classes in one line each, for ops whose names and properties are checked but that need no parser of their own."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from xdsl.dialects.builtin import ArrayAttr, DenseArrayBase, DenseIntOrFPElementsAttr, IntegerAttr, i1, i32, i64
from xdsl.ir import Attribute
from xdsl.irdl import (
    AttrConstraint,
    AttrSizedOperandSegments,
    AttrSizedResultSegments,
    IRDLOperation,
    IRDLOption,
    ParsePropInAttrDict,
    SameVariadicOperandSize,
    base,
    eq,
    irdl_op_definition,
    operand_def,
    opt_operand_def,
    opt_prop_def,
    prop_def,
    region_def,
    result_def,
    traits_def,
    var_operand_def,
    var_region_def,
    var_result_def,
)
from xdsl.irdl.declarative_assembly_format import CustomDirective
from xdsl.traits import NoMemoryEffect, OpTrait, RecursiveMemoryEffect
from xdsl_jax.dialects.stablehlo.custom_directives import SameOperandsAndResultType
from xdsl_jax.xdsl_extras.traits import Elementwise, SameOperandsAndResultShape

Property = AttrConstraint[Attribute]

I32: Property = IntegerAttr.constr(eq(i32))
I64: Property = IntegerAttr.constr(eq(i64))
BOOL: Property = IntegerAttr.constr(eq(i1))
I64S: Property = DenseArrayBase.constr(i64)
BOOLS: Property = DenseArrayBase.constr(i1)
ELEMENTS: Property = base(DenseIntOrFPElementsAttr)
LIST: Property = base(ArrayAttr)


@dataclass(frozen=True)
class Optional:
    """A property that may be left out."""

    of: Property


def define(
    name: str,
    signature: str,
    /,
    *,
    regions: str = "",
    effects: bool = False,
    segments: bool = False,
    traits: tuple[OpTrait, ...] = (),
    syntax: str = "",
    directives: tuple[type[CustomDirective], ...] = (),
    **properties: Property | Optional,
) -> type[IRDLOperation]:
    """An op class named after the op, with the operands and results its signature names.

    >>> define("stablehlo.sort", "inputs* -> results*", regions="comparator", dimension=Optional(I64)).__name__
    'SortOp'

    In a signature and in `regions`, `*` marks what may occur any number of times and `?` what may be left out; two lists
    of operands have the same length unless `segments` says that a property holds their lengths. `effects` marks ops
    that do more than compute their results. `syntax` is an xDSL assembly format; without it the op prints in generic form.
    """
    operands, results = (side.replace(",", " ").split() for side in signature.split("->"))
    fields: dict[str, Any] = {"name": name, "__module__": __name__, "__doc__": f"`{name}`: {signature}"}
    for text in operands:
        fields[text.rstrip("*?")] = {"*": var_operand_def, "?": opt_operand_def}.get(text[-1], operand_def)()
    for text in results:
        fields[text.rstrip("*")] = (var_result_def if text.endswith("*") else result_def)()
    for text in regions.split():
        fields[text.rstrip("*")] = (var_region_def if text.endswith("*") else region_def)("single_block")
    for key, value in properties.items():
        fields[_python_name(key)] = (
            opt_prop_def(value.of, prop_name=key) if isinstance(value, Optional) else prop_def(value, prop_name=key)
        )
    options: tuple[IRDLOption, ...] = ()
    if syntax:
        options = (ParsePropInAttrDict(),)
        fields |= {"assembly_format": syntax, "custom_directives": directives}
    if segments:
        options += (AttrSizedOperandSegments(as_property=True), AttrSizedResultSegments(as_property=True))
    elif sum(text.endswith("*") for text in operands) > 1:
        options += (SameVariadicOperandSize(),)
    fields["irdl_options"] = options
    if not effects:
        traits = (*traits, RecursiveMemoryEffect() if regions else NoMemoryEffect())
    fields["traits"] = traits_def(*traits)
    words = name.split(".")[-1].replace("-", "_").strip("_").split("_")
    return irdl_op_definition(type("".join(map(str.capitalize, words)) + "Op", (IRDLOperation,), fields))


def elementwise(name: str, operands: str, /, *, arguments: str = "", **properties: Property | Optional) -> type[IRDLOperation]:
    """An op that keeps its operands' shape, with the short syntax of StableHLO: `stablehlo.tanh %x : tensor<4xf32>`.

    `arguments` is what the syntax has between operands and attributes.
    """
    names = operands.replace(",", " ").split()
    return define(
        name,
        f"{operands} -> result",
        traits=(SameOperandsAndResultShape(), Elementwise()),
        syntax=f"{' `,` '.join('$' + name for name in names)} {arguments} attr-dict `:` "
        "custom<SameOperandsAndResultType>(type(operands), type(results))",
        directives=(SameOperandsAndResultType,),
        **properties,  # pyright: ignore[reportArgumentType]  # a property is never called like a parameter
    )


def _python_name(key: str) -> str:
    """The Python name of a property: `name`, `attributes` and the like would hide members of every op and get an underscore."""
    return key + "_" if key in dir(IRDLOperation) or key == "name" else key

"""The `sdy` dialect (Shardy): meshes, shardings, constraints and manual computations, parsed and printed as Shardy does.

Its attributes are defined in `sdy_attributes` and can be imported from here.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from xdsl.dialects.builtin import StringAttr, SymbolNameConstraint
from xdsl.ir import Dialect, Operation, Region, SSAValue
from xdsl.irdl import (
    AnyAttr,
    IRDLOperation,
    base,
    irdl_op_definition,
    operand_def,
    prop_def,
    region_def,
    result_def,
    traits_def,
    var_operand_def,
    var_result_def,
)
from xdsl.parser import Parser
from xdsl.printer import Printer
from xdsl.traits import IsolatedFromAbove, IsTerminator, NoMemoryEffect, Pure, RecursiveMemoryEffect, SymbolOpInterface
from xdsl.utils.exceptions import VerifyException

from partir.dialect import syntax
from partir.dialect.define import ELEMENTS, I64, Optional, define
from partir.dialect.sdy_attributes import AxisRef as AxisRef
from partir.dialect.sdy_attributes import DimSharding as DimSharding
from partir.dialect.sdy_attributes import ManualAxesAttr as ManualAxesAttr
from partir.dialect.sdy_attributes import MeshAttr as MeshAttr
from partir.dialect.sdy_attributes import MeshShape as MeshShape
from partir.dialect.sdy_attributes import OpShardingRuleAttr as OpShardingRuleAttr
from partir.dialect.sdy_attributes import Sharding as Sharding
from partir.dialect.sdy_attributes import ShardingRule as ShardingRule
from partir.dialect.sdy_attributes import TensorShardingAttr as TensorShardingAttr
from partir.dialect.sdy_attributes import TensorShardingPerValueAttr as TensorShardingPerValueAttr
from partir.dialect.sdy_attributes import factor_symbol as factor_symbol
from partir.dialect.stablehlo_attributes import raw

SHARDING = base(TensorShardingAttr)
PER_VALUE = base(TensorShardingPerValueAttr)


@irdl_op_definition
class MeshOp(IRDLOperation):
    """Name a mesh.

    ```mlir
    sdy.mesh @mesh = <["data"=4, "model"=2]>
    ```
    """

    name = "sdy.mesh"

    sym_name = prop_def(SymbolNameConstraint())
    mesh = prop_def(MeshAttr)

    traits = traits_def(SymbolOpInterface())

    def __init__(self, name: str, mesh: MeshAttr) -> None:
        super().__init__(properties={"sym_name": StringAttr(name), "mesh": mesh})

    @classmethod
    def parse(cls, parser: Parser) -> MeshOp:
        name = parser.parse_symbol_name()
        parser.parse_punctuation("=")
        mesh = MeshAttr(MeshAttr.parse_parameter(parser))
        attributes = parser.parse_optional_attr_dict()
        return cls.create(properties={"sym_name": name, "mesh": mesh}, attributes=attributes)

    def print(self, printer: Printer) -> None:
        printer.print_string(" ")
        printer.print_symbol_name(self.sym_name.data)
        printer.print_string(" = ")
        self.mesh.print_parameter(printer)
        printer.print_op_attributes(self.attributes)


@irdl_op_definition
class ShardingConstraintOp(IRDLOperation):
    """Say how a value is to be sharded, as `jax.lax.with_sharding_constraint` does.

    ```mlir
    %y = sdy.sharding_constraint %x <@mesh, [{"data"}, {}]> : tensor<8x16xf32>
    ```
    """

    name = "sdy.sharding_constraint"

    REFUSED: ClassVar[str] = "partir.refused"
    """The attribute with the requests that the import dropped, because the mesh has no such axes: `dim: axis of mesh` each."""

    input = operand_def()
    sharding = prop_def(TensorShardingAttr)
    result = result_def()

    traits = traits_def(NoMemoryEffect())

    def __init__(self, input: SSAValue | Operation, sharding: TensorShardingAttr) -> None:
        input = SSAValue.get(input)
        super().__init__(operands=[input], result_types=[input.type], properties={"sharding": sharding})

    def verify_(self) -> None:
        if self.input.type != self.result.type:
            raise VerifyException(f"a constraint passes its value on: {self.input.type} is not {self.result.type}")

    @classmethod
    def parse(cls, parser: Parser) -> ShardingConstraintOp:
        operand = parser.parse_unresolved_operand()
        sharding = TensorShardingAttr(TensorShardingAttr.parse_parameter(parser))
        attributes = parser.parse_optional_attr_dict()
        parser.parse_punctuation(":")
        type = parser.parse_type()
        return cls.create(
            operands=[parser.resolve_operand(operand, type)],
            result_types=[type],
            properties={"sharding": sharding},
            attributes=attributes,
        )

    def print(self, printer: Printer) -> None:
        printer.print_string(" ")
        printer.print_ssa_value(self.input)
        printer.print_string(" ")
        self.sharding.print_parameter(printer)
        printer.print_op_attributes(self.attributes)
        printer.print_string(" : ")
        printer.print_attribute(self.result.type)


@irdl_op_definition
class ManualComputationOp(IRDLOperation):
    """A region written for one device over some axes, as `jax.shard_map` makes.

    ```mlir
    %y = sdy.manual_computation(%x) in_shardings=[<@mesh, [{"data"}]>] out_shardings=[<@mesh, [{"data"}]>]
        manual_axes={"data"} (%a: tensor<2xf32>) {
      sdy.return %a : tensor<2xf32>
    } : (tensor<8xf32>) -> tensor<8xf32>
    ```
    """

    name = "sdy.manual_computation"

    tensors = var_operand_def()
    in_shardings = prop_def(TensorShardingPerValueAttr)
    out_shardings = prop_def(TensorShardingPerValueAttr)
    manual_axes = prop_def(ManualAxesAttr)
    outputs = var_result_def()
    body = region_def("single_block")

    traits = traits_def(IsolatedFromAbove(), RecursiveMemoryEffect())

    def verify_(self) -> None:
        last = self.body.block.last_op
        if not isinstance(last, ReturnOp):
            raise VerifyException("the body of a manual computation ends with sdy.return")
        counts = {
            "operands": (len(self.operands), len(self.in_shardings.data), len(self.body.block.args)),
            "results": (len(self.results), len(self.out_shardings.data), len(last.operands)),
        }
        for what, (values, shardings, inner) in counts.items():
            if not values == shardings == inner:
                raise VerifyException(f"{values} {what}, {shardings} shardings for them and {inner} inside the body")

    @classmethod
    def parse(cls, parser: Parser) -> ManualComputationOp:
        operands = parser.parse_comma_separated_list(Parser.Delimiter.PAREN, parser.parse_unresolved_operand)
        properties = {}
        for key in ("in_shardings", "out_shardings"):
            parser.parse_keyword(key)
            parser.parse_punctuation("=")
            properties[key] = TensorShardingPerValueAttr(TensorShardingPerValueAttr.parse_bracketed(parser))
        parser.parse_keyword("manual_axes")
        parser.parse_punctuation("=")
        manual_axes = ManualAxesAttr(ManualAxesAttr.parse_parameter(parser))
        arguments = parser.parse_comma_separated_list(Parser.Delimiter.PAREN, parser.parse_argument)
        body: Region = parser.parse_region(arguments)
        attributes = parser.parse_optional_attr_dict()
        parser.parse_punctuation(":")
        position = parser.pos
        types = parser.parse_function_type()
        return cls.create(
            operands=parser.resolve_operands(operands, types.inputs.data, position),
            result_types=types.outputs.data,
            properties={**properties, "manual_axes": manual_axes},
            attributes=attributes,
            regions=[body],
        )

    def print(self, printer: Printer) -> None:
        printer.print_operands(self.operands)
        printer.print_string(" in_shardings=")
        self.in_shardings.print_bracketed(printer)
        printer.print_string(" out_shardings=")
        self.out_shardings.print_bracketed(printer)
        printer.print_string(" manual_axes=")
        self.manual_axes.print_parameter(printer)
        printer.print_string(" ")
        with printer.in_parens():
            printer.print_list(self.body.block.args, printer.print_block_argument)
        printer.print_string(" ")
        printer.print_region(self.body, print_entry_block_args=False)
        printer.print_op_attributes(self.attributes)
        printer.print_string(" : ")
        printer.print_operation_type(self)


@irdl_op_definition
class ReturnOp(IRDLOperation):
    """End a region of an sdy op.

    ```mlir
    sdy.return %a : tensor<2xf32>
    ```
    """

    name = "sdy.return"

    values = var_operand_def()

    traits = traits_def(IsTerminator(), Pure())

    def __init__(self, *values: SSAValue | Operation) -> None:
        super().__init__(operands=[values])

    @classmethod
    def parse(cls, parser: Parser) -> ReturnOp:
        before = parser.parse_optional_attr_dict()  # Shardy prints the attributes first
        operands, attributes = syntax.parse_typed_operands(parser)
        return cls.create(operands=operands, attributes={**before, **attributes})

    def print(self, printer: Printer) -> None:
        printer.print_op_attributes(self.attributes)
        syntax.print_typed_operands(printer, self.operands, {})


# Ops that only later passes of Shardy make: they are parsed and printed in generic form, and not interpreted.

ListOfAxisRefListsAttr = raw("sdy.list_of_axis_ref_lists")
AxisRefListAttr = raw("sdy.axis_ref_list")
AllToAllParamListAttr = raw("sdy.all_to_all_param_list")

_LISTS = base(ListOfAxisRefListsAttr)
_AXES = base(AxisRefListAttr)
_ENUM = AnyAttr()
OP = Optional(_ENUM)
LATER: Sequence[type[IRDLOperation]] = (
    define("sdy.reshard", "input -> result", sharding=SHARDING),
    define("sdy.sharding_group", "input ->", effects=True, group_id=I64),
    define("sdy.propagation_barrier", "input -> result", allowed_direction=_ENUM),
    define("sdy.constant", "-> output", value=ELEMENTS),
    define("sdy.data_flow_edge", "input -> result", sharding=Optional(SHARDING)),
    define("sdy.func_data_flow_edge", "operand -> result"),
    define(
        "sdy.named_computation", "operands_* -> results_*", regions="body",
        name=base(StringAttr), in_shardings=Optional(PER_VALUE), out_shardings=Optional(PER_VALUE),
    ),
    define("sdy.all_gather", "tensor -> result", gathering_axes=_LISTS, out_sharding=SHARDING),
    define("sdy.all_slice", "tensor -> result", slicing_axes=_LISTS, out_sharding=SHARDING),
    define("sdy.all_to_all", "tensor -> result", params=base(AllToAllParamListAttr), out_sharding=SHARDING),
    define("sdy.all_reduce", "tensor -> result", reduction_axes=_AXES, reduction_op=OP, out_sharding=SHARDING),
    define(
        "sdy.reduce_scatter", "tensor -> result",
        reduce_scatter_axes=_LISTS, reduction_op=OP, out_sharding=SHARDING,
    ),
    define("sdy.collective_permute", "tensor -> result", out_sharding=SHARDING),
    define("sdy.replicated_to_unreduced", "tensor -> result", axes=_AXES, out_sharding=SHARDING),
    define("sdy.sharded_to_unreduced", "tensor -> result", axes=_LISTS, out_sharding=SHARDING),
)  # fmt: skip

SDY = Dialect(
    "sdy",
    [MeshOp, ShardingConstraintOp, ManualComputationOp, ReturnOp, *LATER],
    [
        MeshAttr,
        TensorShardingAttr,
        TensorShardingPerValueAttr,
        ManualAxesAttr,
        OpShardingRuleAttr,
        ListOfAxisRefListsAttr,
        AxisRefListAttr,
        AllToAllParamListAttr,
    ],
)

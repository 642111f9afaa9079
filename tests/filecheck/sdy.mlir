// RUN: partir opt %s | filecheck %s
// RUN: partir opt %s --generic | partir opt | filecheck %s

sdy.mesh @mesh = <["data"=4, "model"=2]>
sdy.mesh @first = <[], device_ids=[0]>

func.func @f(%x: tensor<8x16xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"data", ?}, {"model":(1)2}p1], replicated={"a"}>}) -> tensor<8x16xf32> {
  %y = sdy.sharding_constraint %x <@mesh, [{"data", "model"}, {?}]> : tensor<8x16xf32>
  %z = sdy.manual_computation(%y) in_shardings=[<@mesh, [{"data"}, {}]>] out_shardings=[<@mesh, [{"data"}, {}]>] manual_axes={"data"} (%a: tensor<2x16xf32>) {
    %b = stablehlo.add %a, %a {sdy.sharding_rule = #sdy.op_sharding_rule<([i, jk], [i, jk])->([i, jk]) {i=2, j=4, k=4} need_replication={k}, custom>} : tensor<2x16xf32>
    sdy.return %b : tensor<2x16xf32>
  } : (tensor<8x16xf32>) -> tensor<8x16xf32>
  func.return %z : tensor<8x16xf32>
}

// CHECK:       sdy.mesh @mesh = <["data"=4, "model"=2]>
// CHECK-NEXT:  sdy.mesh @first = <[], device_ids=[0]>
// CHECK-NEXT:  func.func @f(%x: tensor<8x16xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"data", ?}, {"model":(1)2}p1], replicated={"a"}>})
// CHECK-NEXT:    %y = sdy.sharding_constraint %x <@mesh, [{"data", "model"}, {?}]> : tensor<8x16xf32>
// CHECK-NEXT:    %z = sdy.manual_computation(%y) in_shardings=[<@mesh, [{"data"}, {}]>] out_shardings=[<@mesh, [{"data"}, {}]>] manual_axes={"data"} (%a: tensor<2x16xf32>) {
// CHECK-NEXT:      %b = stablehlo.add %a, %a {sdy.sharding_rule = #sdy.op_sharding_rule<([i, jk], [i, jk])->([i, jk]) {i=2, j=4, k=4} need_replication={k}, custom>} : tensor<2x16xf32>
// CHECK-NEXT:      sdy.return %b : tensor<2x16xf32>
// CHECK-NEXT:    } : (tensor<8x16xf32>) -> tensor<8x16xf32>

// RUN: partir opt %s -p 'partir-tile{value=x dim=1 axis=data}' | filecheck %s

// A merged dim is cut inside each of its outer blocks; what follows it knows the parts it is made of.

sdy.mesh @mesh = <["data"=4]>

func.func @main(%x: tensor<3x8x16xf32>) -> tensor<24x16xf32> {
  %0 = stablehlo.reshape %x {sdy.sharding_rule = #sdy.op_sharding_rule<([i, j, k])->([ij, k]) {i=3, j=8, k=16}>} : (tensor<3x8x16xf32>) -> tensor<24x16xf32>
  %1 = stablehlo.tanh %0 : tensor<24x16xf32>
  func.return %1 : tensor<24x16xf32>
}

// CHECK:       -> (tensor<24x16xf32> {{.*}}sdy.sharding = #sdy.sharding<@mesh, [{}, {}]>})
// CHECK-NEXT:    %0 = partir.loop "data"=4 [tile<0, 3>] (%data) : tensor<24x16xf32>
// CHECK-NEXT:      %1 = partir.slice %x[%data] tile<1> : tensor<3x8x16xf32> -> tensor<3x2x16xf32>
// CHECK-NEXT:      %2 = stablehlo.reshape %1 : (tensor<3x2x16xf32>) -> tensor<6x16xf32>
// CHECK-NEXT:      partir.yield %2 : tensor<6x16xf32>
// CHECK-NEXT:    }
// CHECK-NEXT:    partir.loop "data"=4 [tile<0, 3>]
// CHECK-NEXT:      partir.slice %0[%data_1] tile<0, 3> : tensor<24x16xf32> -> tensor<6x16xf32>
// CHECK-NEXT:      stablehlo.tanh

// RUN: partir opt %s -p partir-to-spmd | filecheck %s
// RUN: partir opt %s -p 'partir-tile{value=w dim=1 axis=model},partir-to-spmd' | filecheck %s --check-prefix MORE

// The shardings of a plain module's arguments and its constraints are what is decided first.

sdy.mesh @mesh = <["data"=4, "model"=2]>

func.func @main(%x: tensor<16x8xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"data"}, {}]>}, %w: tensor<8x32xf32>) -> (tensor<32xf32>, tensor<16x32xf32>) {
  %0 = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0] : (tensor<16x8xf32>, tensor<8x32xf32>) -> tensor<16x32xf32>
  %1 = stablehlo.tanh %0 : tensor<16x32xf32>
  %zero = stablehlo.constant dense<0.0> : tensor<f32>
  %2 = stablehlo.reduce(%1 init: %zero) applies stablehlo.add across dimensions = [0] : (tensor<16x32xf32>, tensor<f32>) -> tensor<32xf32>
  %3 = sdy.sharding_constraint %1 <@mesh, [{"data"}, {}]> : tensor<16x32xf32>
  func.return %2, %3 : tensor<32xf32>, tensor<16x32xf32>
}

// CHECK:      func.func public @main([[X:%[0-9]+]]: tensor<4x8xf32> {{.*}}, [[W:%[0-9]+]]: tensor<8x32xf32> {{.*}}) -> (tensor<32xf32> {{.*}}, tensor<4x32xf32> {{.*}})
// CHECK-NEXT:   [[DOT:%[0-9]+]] = stablehlo.dot_general [[X]], [[W]]
// CHECK-NEXT:   [[TANH:%[0-9]+]] = stablehlo.tanh [[DOT]]
// CHECK:        [[PART:%[0-9]+]] = stablehlo.reduce([[TANH]]
// CHECK-NEXT:   [[SUM:%[0-9]+]] = spmd.all_reduce add [[PART]] ["data"=4] : tensor<32xf32>
// CHECK-NEXT:   func.return [[SUM]], [[TANH]]

// MORE:       [[TANH:%[0-9]+]] = stablehlo.tanh {{.*}} : tensor<4x16xf32>
// MORE:       [[SUM:%[0-9]+]] = spmd.all_reduce add {{.*}} ["data"=4] : tensor<16xf32>
// MORE-NEXT:  [[WHOLE:%[0-9]+]] = spmd.all_gather [[TANH]] tile<1> ["model"=2] : tensor<4x16xf32> -> tensor<4x32xf32>
// MORE-NEXT:  func.return [[SUM]], [[WHOLE]]

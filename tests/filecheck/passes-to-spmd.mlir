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

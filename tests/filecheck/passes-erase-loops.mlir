// RUN: partir opt %s -p partir-erase-loops | filecheck %s
// RUN: partir opt %s -p partir-unroll | filecheck %s --check-prefix UNROLLED
// RUN: partir opt %s -p 'partir-erase-loops,partir-mesh{axes="x=2"},partir-tile{value=x dim=0 axis=x}' | filecheck %s --check-prefix AGAIN

sdy.mesh @mesh = <["data"=2]>

func.func @main(%x: tensor<4x8xf32>) -> (tensor<4x8xf32>, tensor<4xf32>) {
  %zero = stablehlo.constant dense<0.0> : tensor<f32>
  %0 = partir.loop "data"=2 [tile<1>] (%i) : tensor<4x8xf32> {
    %s = partir.slice %x[%i] tile<1> : tensor<4x8xf32> -> tensor<4x4xf32>
    %t = stablehlo.tanh %s : tensor<4x4xf32>
    partir.yield %t : tensor<4x4xf32>
  }
  %1 = partir.loop "data"=2 [reduce<add>] (%i) : tensor<4xf32> {
    %s = partir.slice %0[%i] tile<1> : tensor<4x8xf32> -> tensor<4x4xf32>
    %r = stablehlo.reduce(%s init: %zero) applies stablehlo.add across dimensions = [1] : (tensor<4x4xf32>, tensor<f32>) -> tensor<4xf32>
    partir.yield %r : tensor<4xf32>
  }
  func.return %0, %1 : tensor<4x8xf32>, tensor<4xf32>
}

// CHECK:      sdy.mesh @mesh = <["data"=2]>
// CHECK-NEXT: func.func public @main(%x: tensor<4x8xf32> {partir.path = ["x"]})
// CHECK-NEXT:   %0 = stablehlo.constant
// CHECK-NEXT:   %1 = stablehlo.tanh %x {sdy.sharding_rule = {{.*}}} : tensor<4x8xf32>
// CHECK-NEXT:   %2 = stablehlo.reduce(%1 init: %0) applies stablehlo.add across dimensions = [1] {{.*}} -> tensor<4xf32>
// CHECK-NEXT:   func.return %1, %2

// UNROLLED:      [[A:%[0-9]+]] = stablehlo.slice %x [0:4, 0:4] : (tensor<4x8xf32>) -> tensor<4x4xf32>
// UNROLLED-NEXT: [[TA:%[0-9]+]] = stablehlo.tanh [[A]]
// UNROLLED-NEXT: [[B:%[0-9]+]] = stablehlo.slice %x [0:4, 4:8] : (tensor<4x8xf32>) -> tensor<4x4xf32>
// UNROLLED-NEXT: [[TB:%[0-9]+]] = stablehlo.tanh [[B]]
// UNROLLED-NEXT: [[T:%[0-9]+]] = stablehlo.concatenate [[TA]], [[TB]], dim = 1
// UNROLLED-NEXT: stablehlo.slice [[T]] [0:4, 0:4]
// UNROLLED-NEXT: [[RA:%[0-9]+]] = stablehlo.reduce
// UNROLLED-NEXT: stablehlo.slice [[T]] [0:4, 4:8]
// UNROLLED-NEXT: [[RB:%[0-9]+]] = stablehlo.reduce
// UNROLLED-NEXT: [[R:%[0-9]+]] = stablehlo.add [[RA]], [[RB]]
// UNROLLED-NEXT: func.return [[T]], [[R]]

// AGAIN:      sdy.mesh @mesh = <["x"=2]>
// AGAIN:      partir.loop "x"=2 [tile<0>] (%x_1) : tensor<4x8xf32>
// AGAIN:      partir.loop "x"=2 [tile<0>] (%x_2) : tensor<4xf32>

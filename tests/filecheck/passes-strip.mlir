// RUN: partir opt %s -p partir-strip | filecheck %s
// RUN: partir opt %s -p partir-unroll | filecheck %s --check-prefix UNROLLED
// RUN: partir opt %s -p 'partir-strip,partir-mesh{axes="x=2"},partir-tile{value=x dim=0 axis=x}' | filecheck %s --check-prefix AGAIN

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

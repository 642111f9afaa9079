// RUN: partir opt %s -p 'partir-mesh{axes="data=4,model=2"},partir-tile{value=x dim=0 axis=data}' | filecheck %s --check-prefix BATCH
// RUN: partir opt %s -p 'partir-mesh{axes="data=4,model=2"},partir-tile{value=x dim=0 axis=data},partir-tile{value="params/w" dim=0 axis=model}' | filecheck %s --check-prefix BOTH
// RUN: partir opt %s -p 'partir-mesh{axes="data=4,model=2"},partir-tile{value=x dim=0 axis=model},partir-tile{value=x dim=0 axis=data}' | filecheck %s --check-prefix ONE-DIM

// Ops of hand-written text get the sharding rule of their kind; arguments are called by their names or their partir.path.

func.func @main(%x: tensor<16x8xf32>, %w: tensor<8x32xf32> {partir.path = ["params", "w"]}) -> tensor<16xf32> {
  %0 = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0] : (tensor<16x8xf32>, tensor<8x32xf32>) -> tensor<16x32xf32>
  %1 = stablehlo.tanh %0 : tensor<16x32xf32>
  %zero = stablehlo.constant dense<0.0> : tensor<f32>
  %2 = stablehlo.reduce(%1 init: %zero) applies stablehlo.add across dimensions = [1] : (tensor<16x32xf32>, tensor<f32>) -> tensor<16xf32>
  func.return %2 : tensor<16xf32>
}

// RUN: partir opt %s -p 'partir-tile{value=x dim=0 axis=data},partir-tile{value=w dim=1 axis=data}' | filecheck %s --check-prefix FIRST
// RUN: partir opt %s -p 'partir-tile{value=x dim=0 axis=data},partir-tile{value=w dim=1 axis=data},partir-prefer{scope=head value=w dim=1 axis=data}' | filecheck %s --check-prefix PREFER
// RUN: partir opt %s -p 'partir-replicate{value=w axis=data},partir-tile{value=x dim=0 axis=data},partir-tile{value=w dim=1 axis=data}' | filecheck %s --check-prefix WHOLE
// RUN: partir opt %s -p 'partir-cut{value=x dim=0},partir-tile{value=x dim=0 axis=data}' | filecheck %s --check-prefix CUT

// Both dims of the product want one axis: the first to claim it has it, unless another is preferred there.

sdy.mesh @mesh = <["data"=4]>

func.func @main(%x: tensor<16x8xf32>, %w: tensor<8x32xf32>) -> tensor<16x32xf32> {
  %0 = stablehlo.tanh %x : tensor<16x8xf32>
  %1 = stablehlo.dot_general %0, %w, contracting_dims = [1] x [0] {partir.origin = #partir.origin<"head/logits", forward, "m.py:1">} : (tensor<16x8xf32>, tensor<8x32xf32>) -> tensor<16x32xf32>
  func.return %1 : tensor<16x32xf32>
}

// RUN: partir opt %s -p 'partir-tile{value=x dim=0 axis=data},partir-tile{value=w dim=1 axis=data}' | filecheck %s --check-prefix FIRST
// RUN: partir opt %s -p 'partir-tile{value=x dim=0 axis=data},partir-tile{value=w dim=1 axis=data},partir-prefer{scope=head value=w dim=1 axis=data}' | filecheck %s --check-prefix PREFER
// RUN: partir opt %s -p 'partir-replicate{value=w axis=data},partir-tile{value=w dim=1 axis=data}' | filecheck %s --check-prefix WHOLE
// RUN: partir opt %s -p 'partir-tile{value=x dim=0 axis=data},partir-cut{value="@forward:tanh.0" dim=0}' | filecheck %s --check-prefix CUT

// Both dims of the product want one axis: the first to claim it has it, unless another is preferred there.

sdy.mesh @mesh = <["data"=4]>

func.func @main(%x: tensor<16x8xf32>, %w: tensor<8x32xf32>) -> tensor<16x32xf32> {
  %0 = stablehlo.tanh %x : tensor<16x8xf32>
  %1 = stablehlo.dot_general %0, %w, contracting_dims = [1] x [0] {partir.origin = #partir.origin<"head/logits", forward, "m.py:1">} : (tensor<16x8xf32>, tensor<8x32xf32>) -> tensor<16x32xf32>
  func.return %1 : tensor<16x32xf32>
}

// FIRST:      %x: tensor<16x8xf32> {{.*}}#sdy.sharding<@mesh, [{"data"}, {}]>},
// FIRST-SAME: %w: tensor<8x32xf32> {{.*}}#sdy.sharding<@mesh, [{}, {"data"}]>})
// FIRST:      %0 = partir.loop "data"=4 [tile<0>]
// FIRST:        stablehlo.tanh
// FIRST:      partir.loop "data"=4 [tile<0>]
// FIRST-NEXT:   [[ROWS:%[0-9]+]] = partir.slice %0[%data_1] tile<0>
// FIRST-NEXT:   stablehlo.dot_general [[ROWS]], %w,

// PREFER:      %0 = partir.loop "data"=4 [tile<0>]
// PREFER:        stablehlo.tanh
// PREFER:      partir.loop "data"=4 [tile<1>]
// PREFER-NEXT:   [[COLUMNS:%[0-9]+]] = partir.slice %w[%data_1] tile<1>
// PREFER-NEXT:   stablehlo.dot_general %0, [[COLUMNS]],

// WHOLE:      %w: tensor<8x32xf32> {{.*}}#sdy.sharding<@mesh, [{}, {}], replicated={"data"}>})
// WHOLE:      partir.loop "data"=4 [tile<1>]
// WHOLE-NEXT:   [[COLUMNS:%[0-9]+]] = partir.slice %w[%data] tile<1>
// WHOLE-NEXT:   stablehlo.dot_general {{.*}}, [[COLUMNS]],

// CUT:      %0 = partir.loop "data"=4 [tile<0>]
// CUT:        stablehlo.tanh
// CUT:      %3 = stablehlo.dot_general %0, %w,

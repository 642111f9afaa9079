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

// BATCH:       func.func public @main(%x: tensor<16x8xf32> {partir.path = ["x"], sdy.sharding = #sdy.sharding<@mesh, [{"data"}, {}]>},
// BATCH-SAME:    %params.w: tensor<8x32xf32> {partir.path = ["params", "w"], sdy.sharding = #sdy.sharding<@mesh, [{}, {}]>})
// BATCH-SAME:    -> (tensor<16xf32> {{.*}}sdy.sharding = #sdy.sharding<@mesh, [{"data"}]>})
// BATCH-NEXT:    %0 = partir.loop "data"=4 [tile<0>] (%data) : tensor<16x32xf32> attributes {sdy.sharding_rule = #sdy.op_sharding_rule<([i, k], [k, j])->([i, j])
// BATCH-NEXT:      %1 = partir.slice %x[%data] tile<0> : tensor<16x8xf32> -> tensor<4x8xf32>
// BATCH-NEXT:      %2 = stablehlo.dot_general %1, %params.w
// BATCH-NEXT:      partir.yield %2 : tensor<4x32xf32>
// BATCH-NEXT:    }
// BATCH-NEXT:    %3 = partir.loop "data"=4 [tile<0>]
// BATCH-NEXT:      partir.slice %0
// BATCH-NEXT:      stablehlo.tanh
// BATCH:         %6 = stablehlo.constant
// BATCH-NEXT:    partir.loop "data"=4 [tile<0>]
// BATCH-NEXT:      %8 = partir.slice %3
// BATCH-NEXT:      stablehlo.reduce(%8 init: %6)

// BOTH:        %x: tensor<16x8xf32> {{.*}}sdy.sharding = #sdy.sharding<@mesh, [{"data"}, {"model"}]>}
// BOTH:        %0 = partir.loop "data"=4 [tile<0>] (%data) : tensor<16x32xf32>
// BOTH-NEXT:     %1 = partir.slice %x[%data] tile<0> : tensor<16x8xf32> -> tensor<4x8xf32>
// BOTH-NEXT:     %2 = partir.loop "model"=2 [reduce<add>] (%model) : tensor<4x32xf32> {
// BOTH-NEXT:       %3 = partir.slice %1[%model] tile<1> : tensor<4x8xf32> -> tensor<4x4xf32>
// BOTH-NEXT:       %4 = partir.slice %params.w[%model] tile<0> : tensor<8x32xf32> -> tensor<4x32xf32>
// BOTH-NEXT:       %5 = stablehlo.dot_general %3, %4
// BOTH-NEXT:       partir.yield %5 : tensor<4x32xf32>
// BOTH-NEXT:     }
// BOTH-NEXT:     partir.yield %2 : tensor<4x32xf32>

// ONE-DIM:       %x: tensor<16x8xf32> {{.*}}sdy.sharding = #sdy.sharding<@mesh, [{"model", "data"}, {}]>}
// ONE-DIM:       %0 = partir.loop "model"=2 [tile<0>] (%model)
// ONE-DIM-NEXT:    %1 = partir.slice %x[%model] tile<0> : tensor<16x8xf32> -> tensor<8x8xf32>
// ONE-DIM-NEXT:    %2 = partir.loop "data"=4 [tile<0>] (%data)
// ONE-DIM-NEXT:      %3 = partir.slice %1[%data] tile<0> : tensor<8x8xf32> -> tensor<2x8xf32>
// ONE-DIM-NEXT:      stablehlo.dot_general %3, %params.w

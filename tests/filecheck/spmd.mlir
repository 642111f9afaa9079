// RUN: partir opt %s | filecheck %s
// RUN: partir opt %s --generic | partir opt | filecheck %s
// RUN: partir opt %s --generic | filecheck %s --check-prefix GENERIC

sdy.mesh @mesh = <["data"=4, "model"=2]>

func.func @step(%x: tensor<2x16xf32>, %w: tensor<4x4xf32>) -> tensor<2x2xf32> {
  %g = spmd.all_gather %w tile<0> ["data"=4] {spmd.cause = "stage 3: %w is sharded"} : tensor<4x4xf32> -> tensor<16x4xf32>
  %p = stablehlo.dot_general %x, %g, contracting_dims = [1] x [0] : (tensor<2x16xf32>, tensor<16x4xf32>) -> tensor<2x4xf32>
  %r = spmd.all_reduce add %p ["data"=4, "model"=2] : tensor<2x4xf32>
  %s = spmd.reduce_scatter max %r tile<1> ["model"=2] : tensor<2x4xf32> -> tensor<2x2xf32>
  %l = spmd.all_slice %r tile<1, 2> ["model"=2] : tensor<2x4xf32> -> tensor<2x2xf32>
  %a = spmd.all_to_all %l tile<0> -> tile<1> ["model"=2] : tensor<2x2xf32> -> tensor<4x1xf32>
  %c = spmd.coordinate ["data"=4, "model"=2] : tensor<i32>
  %q = spmd.collective_permute %s [0->1, 1->2, 2->3] ["data"=4] : tensor<2x2xf32>
  func.return %q : tensor<2x2xf32>
}

// CHECK:       sdy.mesh @mesh = <["data"=4, "model"=2]>
// CHECK:       func.func @step
// CHECK-NEXT:    %g = spmd.all_gather %w tile<0> ["data"=4] {spmd.cause = "stage 3: %w is sharded"} : tensor<4x4xf32> -> tensor<16x4xf32>
// CHECK-NEXT:    %p = stablehlo.dot_general
// CHECK-NEXT:    %r = spmd.all_reduce add %p ["data"=4, "model"=2] : tensor<2x4xf32>
// CHECK-NEXT:    %s = spmd.reduce_scatter max %r tile<1> ["model"=2] : tensor<2x4xf32> -> tensor<2x2xf32>
// CHECK-NEXT:    %l = spmd.all_slice %r tile<1, 2> ["model"=2] : tensor<2x4xf32> -> tensor<2x2xf32>
// CHECK-NEXT:    %a = spmd.all_to_all %l tile<0> -> tile<1> ["model"=2] : tensor<2x2xf32> -> tensor<4x1xf32>
// CHECK-NEXT:    %c = spmd.coordinate ["data"=4, "model"=2] : tensor<i32>
// CHECK-NEXT:    %q = spmd.collective_permute %s [0->1, 1->2, 2->3] ["data"=4] : tensor<2x2xf32>

// GENERIC:       "spmd.all_gather"(%w) <{tile = #partir.tile<0>, axes = #spmd.axes<"data"=4>}> {spmd.cause = "stage 3: %w is sharded"}
// GENERIC:       "spmd.all_reduce"(%p) <{kind = #partir<kind add>, axes = #spmd.axes<"data"=4, "model"=2>}>
// GENERIC:       "spmd.all_to_all"(%l) <{source = #partir.tile<0>, target = #partir.tile<1>, axes = #spmd.axes<"model"=2>}>
// GENERIC:       "spmd.collective_permute"(%s) <{axes = #spmd.axes<"data"=4>, pairs = array<i64: 0, 1, 1, 2, 2, 3>}>

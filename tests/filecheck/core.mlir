// RUN: partir opt %s | filecheck %s
// RUN: partir opt %s --generic | partir opt | filecheck %s
// RUN: partir opt %s --generic | filecheck %s --check-prefix GENERIC

func.func @matmul(%x: tensor<8x16xf32>, %w: tensor<16x4xf32>) -> tensor<8x4xf32> {
  %t = partir.tag "hidden" %x : tensor<8x16xf32>
  %y = partir.loop "data"=4 [tile<0>] (%i) : tensor<8x4xf32> {
    %xs = partir.slice %t[%i] tile<0> : tensor<8x16xf32> -> tensor<2x16xf32>
    %z = partir.loop "model"=2 [reduce<add>] (%j) : tensor<2x4xf32> {
      %xj = partir.slice %xs[%j] tile<1> : tensor<2x16xf32> -> tensor<2x8xf32>
      %wj = partir.slice %w[%j] tile<0> : tensor<16x4xf32> -> tensor<8x4xf32>
      %p = stablehlo.dot_general %xj, %wj, contracting_dims = [1] x [0] {partir.origin = #partir.origin<"mlp", forward, "m.py:3">} : (tensor<2x8xf32>, tensor<8x4xf32>) -> tensor<2x4xf32>
      partir.yield %p : tensor<2x4xf32>
    }
    partir.yield %z : tensor<2x4xf32>
  }
  func.return %y : tensor<8x4xf32>
}

// CHECK:       func.func @matmul
// CHECK-NEXT:    %t = partir.tag "hidden" %x : tensor<8x16xf32>
// CHECK-NEXT:    %y = partir.loop "data"=4 [tile<0>] (%i) : tensor<8x4xf32> {
// CHECK-NEXT:      %xs = partir.slice %t[%i] tile<0> : tensor<8x16xf32> -> tensor<2x16xf32>
// CHECK-NEXT:      %z = partir.loop "model"=2 [reduce<add>] (%j) : tensor<2x4xf32> {
// CHECK-NEXT:        %xj = partir.slice %xs[%j] tile<1> : tensor<2x16xf32> -> tensor<2x8xf32>
// CHECK-NEXT:        %wj = partir.slice %w[%j] tile<0> : tensor<16x4xf32> -> tensor<8x4xf32>
// CHECK-NEXT:        %p = stablehlo.dot_general
// CHECK-SAME:          partir.origin = #partir.origin<"mlp", forward, "m.py:3">
// CHECK-NEXT:        partir.yield %p : tensor<2x4xf32>
// CHECK-NEXT:      }
// CHECK-NEXT:      partir.yield %z : tensor<2x4xf32>
// CHECK-NEXT:    }
// CHECK-NEXT:    func.return %y : tensor<8x4xf32>

// GENERIC:       "partir.tag"(%x) <{label = "hidden"}> : (tensor<8x16xf32>) -> tensor<8x16xf32>
// GENERIC-NEXT:  "partir.loop"() <{axis = "data", size = 4 : i64, results_as = [#partir.tile<0>]}> ({
// GENERIC-NEXT:  ^bb0(%i: index):
// GENERIC-NEXT:    "partir.slice"(%t, %i) <{tile = #partir.tile<0>}> : (tensor<8x16xf32>, index) -> tensor<2x16xf32>

func.func @merged_dim(%x: tensor<12x4xf32>) -> (tensor<12x4xf32>, tensor<i32>) {
  %y, %c = partir.loop "model"=2 [tile<0, 3>, any] (%i) : tensor<12x4xf32>, tensor<i32> attributes {note = "kept"} {
    %xs = partir.slice %x[%i] tile<0, 3> : tensor<12x4xf32> -> tensor<6x4xf32>
    %n = partir.coordinate %i : tensor<i32>
    partir.yield %xs, %n : tensor<6x4xf32>, tensor<i32>
  }
  %a, %b = partir.barrier %y, %c : tensor<12x4xf32>, tensor<i32>
  func.return %a, %b : tensor<12x4xf32>, tensor<i32>
}

// CHECK:       func.func @merged_dim
// CHECK-NEXT:    %y, %c = partir.loop "model"=2 [tile<0, 3>, any] (%i) : tensor<12x4xf32>, tensor<i32> attributes {note = "kept"} {
// CHECK-NEXT:      %xs = partir.slice %x[%i] tile<0, 3> : tensor<12x4xf32> -> tensor<6x4xf32>
// CHECK-NEXT:      %n = partir.coordinate %i : tensor<i32>
// CHECK-NEXT:      partir.yield %xs, %n : tensor<6x4xf32>, tensor<i32>
// CHECK-NEXT:    }
// CHECK-NEXT:    %a, %b = partir.barrier %y, %c : tensor<12x4xf32>, tensor<i32>

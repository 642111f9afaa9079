// RUN: partir opt %s --split-input-file --verify-diagnostics | filecheck %s

func.func @uneven(%x: tensor<6x16xf32>) {
  %y = partir.loop "data"=4 [tile<0>] (%i) : tensor<8x16xf32> {
    %xs = partir.slice %x[%i] tile<0> : tensor<6x16xf32> -> tensor<2x16xf32>
    partir.yield %xs : tensor<2x16xf32>
  }
  func.return
}
// CHECK: dim 0 of tensor<6x16xf32> does not divide by 4 parts

// -----

func.func @wrong_result(%x: tensor<8x16xf32>) {
  %y = partir.loop "data"=4 [tile<1>] (%i) : tensor<8x16xf32> {
    %xs = partir.slice %x[%i] tile<0> : tensor<8x16xf32> -> tensor<2x16xf32>
    partir.yield %xs : tensor<2x16xf32>
  }
  func.return
}
// CHECK: result 0 is tensor<8x16xf32>, but 4 x tensor<2x16xf32> as tile<1> make tensor<2x64xf32>

// -----

func.func @nested() {
  partir.loop "data"=4 [] (%i) {
    partir.loop "data"=4 [] (%j) {
      partir.yield
    }
    partir.yield
  }
  func.return
}
// CHECK: loop over "data" inside another loop over "data"

// -----

func.func @foreign_index(%x: tensor<8x16xf32>, %i: index) {
  %xs = partir.slice %x[%i] tile<0> : tensor<8x16xf32> -> tensor<2x16xf32>
  func.return
}
// CHECK: the index of a slice is the index of an enclosing partir.loop

// -----

func.func @and_of_floats(%x: tensor<8x16xf32>) {
  %y = partir.loop "data"=4 [reduce<and>] (%i) : tensor<8x16xf32> {
    partir.yield %x : tensor<8x16xf32>
  }
  func.return
}
// CHECK: kind and needs integers or booleans, not f32

// RUN: not partir opt %s -p 'partir-erase-loops' 2>&1 | filecheck %s

func.func @main(%x: tensor<8x16xf32>) -> tensor<8x16xf32> {
  %0 = partir.loop "data"=4 [tile<0>] (%i) : tensor<8x16xf32> {
    %s = partir.slice %x[%i] tile<0> : tensor<8x16xf32> -> tensor<2x16xf32>
    %t = stablehlo.tanh %s : tensor<2x16xf32>
    %u = stablehlo.cosine %t : tensor<2x16xf32>
    partir.yield %u : tensor<2x16xf32>
  }
  func.return %0 : tensor<8x16xf32>
}

// CHECK:       cannot read a loop as one op that is tiled
// CHECK-NEXT:  where   partir.loop : tensor<8x16xf32>
// CHECK-NEXT:  why     its innermost body has 2 ops

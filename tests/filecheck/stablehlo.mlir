// RUN: partir opt %s | filecheck %s
// RUN: partir opt %s --generic | partir opt | filecheck %s

func.func @f(%x: tensor<8x16xf32>, %n: tensor<i32>) -> tensor<8xf32> {
  %c = stablehlo.constant dense<0xFF800000> : tensor<f32>
  %big = stablehlo.constant dense<1.5> : tensor<4096x4096xf32>
  %m = stablehlo.reduce(%x init: %c) applies stablehlo.maximum across dimensions = [1] : (tensor<8x16xf32>, tensor<f32>) -> tensor<8xf32>
  %e = chlo.erf %m : tensor<8xf32> -> tensor<8xf32>
  %k, %y = stablehlo.while(%i = %n, %v = %e) : tensor<i32>, tensor<8xf32> cond {
    %p = stablehlo.compare LT, %i, %n, SIGNED : (tensor<i32>, tensor<i32>) -> tensor<i1>
    stablehlo.return %p : tensor<i1>
  } do {
    %q = stablehlo.add %v, %m : tensor<8xf32>
    stablehlo.return %i, %q : tensor<i32>, tensor<8xf32>
  }
  func.return %y : tensor<8xf32>
}

// CHECK:       %c = stablehlo.constant dense<0xff800000> : tensor<f32>
// CHECK-NEXT:  %big = stablehlo.constant dense<1.500000e+00> : tensor<4096x4096xf32>
// CHECK-NEXT:  %m = stablehlo.reduce(%x init: %c) applies stablehlo.maximum across dimensions = [1] : (tensor<8x16xf32>, tensor<f32>) -> tensor<8xf32>
// CHECK-NEXT:  %e = chlo.erf %m : tensor<8xf32> -> tensor<8xf32>
// CHECK-NEXT:  %k, %y = stablehlo.while(%i = %n, %v = %e) : tensor<i32>, tensor<8xf32> cond {
// CHECK-NEXT:    %p = stablehlo.compare LT, %i, %n, SIGNED : (tensor<i32>, tensor<i32>) -> tensor<i1>
// CHECK-NEXT:    stablehlo.return %p : tensor<i1>
// CHECK-NEXT:  } do {
// CHECK-NEXT:    %q = stablehlo.add %v, %m : tensor<8xf32>
// CHECK-NEXT:    stablehlo.return %i, %q : tensor<i32>, tensor<8xf32>
// CHECK-NEXT:  }

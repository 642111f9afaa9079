// RUN: partir opt %s -p 'partir-tile{value=x dim=1 axis=data},partir-reduce-in{axis=data dtype=float32},partir-to-spmd' | filecheck %s
// RUN: partir opt %s -p 'partir-reduce-in{axis=data dtype=float32},partir-tile{value=x dim=1 axis=data},partir-to-spmd' | filecheck %s
// RUN: partir opt %s -p 'partir-tile{value=x dim=1 axis=data},partir-reduce-in{axis=data dtype=float32},partir-reduce-in{axis=data dtype=float16},partir-to-spmd' | filecheck %s --check-prefix LAST
// RUN: not partir opt %s -p 'partir-reduce-in{axis=data dtype=int32}' 2>&1 | filecheck %s --check-prefix WHOLE
// RUN: not partir opt %s -p 'partir-reduce-in{axis=rows dtype=float32}' 2>&1 | filecheck %s --check-prefix AXIS

sdy.mesh @mesh = <["data"=4]>

func.func @main(%x: tensor<16x8xbf16>, %w: tensor<8x32xbf16>) -> tensor<16x32xbf16> {
  %0 = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0] : (tensor<16x8xbf16>, tensor<8x32xbf16>) -> tensor<16x32xbf16>
  func.return %0 : tensor<16x32xbf16>
}

// CHECK:       %[[PART:.*]] = stablehlo.dot_general {{.*}} -> tensor<16x32xbf16>
// CHECK-NEXT:  %[[WIDE:.*]] = stablehlo.convert %[[PART]] {{.*}}(tensor<16x32xbf16>) -> tensor<16x32xf32>
// CHECK-NEXT:  %[[SUM:.*]] = spmd.all_reduce add %[[WIDE]] ["data"=4]
// CHECK-NEXT:  stablehlo.convert %[[SUM]] {{.*}}(tensor<16x32xf32>) -> tensor<16x32xbf16>

// LAST:        stablehlo.convert {{.*}} -> tensor<16x32xf16>
// LAST-NEXT:   spmd.all_reduce add {{.*}} tensor<16x32xf16>

// WHOLE:       sums cannot be made in int32
// WHOLE:       it is no floating-point dtype

// AXIS:        rows

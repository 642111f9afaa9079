// RUN: partir opt %s -p 'partir-tile{value=x dim=0 axis=data},partir-pin{value=y dim=1 axes=data}' | filecheck %s
// RUN: partir opt %s -p 'partir-tile{value=x dim=0 axis=data},partir-pin{value=y dim=1 axes=data},partir-to-spmd' | filecheck %s --check-prefix SPMD
// RUN: partir opt %s -p 'partir-tile{value=x dim=0 axis=data},partir-pin{value=y dim=0}' | partir opt -p partir-to-spmd | filecheck %s --check-prefix WHOLE
// RUN: not partir opt %s -p 'partir-pin{value=y dim=1 axes=rows}' 2>&1 | filecheck %s --check-prefix AXIS

// The second argument lies along its columns; the sum wants its rows.

sdy.mesh @mesh = <["data"=4]>

func.func @main(%x: tensor<8x16xf32>, %y: tensor<8x16xf32>) -> tensor<8x16xf32> {
  %0 = stablehlo.add %x, %y : tensor<8x16xf32>
  func.return %0 : tensor<8x16xf32>
}

// CHECK:       pin value="y" dim=1 axes="data"
// CHECK:       %y: tensor<8x16xf32> {{.*}}[{}, {"data"}]
// CHECK:       partir.loop "data"=4 [tile<0>]

// SPMD:        %[[MOVED:.*]] = spmd.all_to_all %{{.*}} tile<1> -> tile<0> ["data"=4] {{.*}}tensor<8x4xf32> -> tensor<2x16xf32>
// SPMD:        stablehlo.add {{.*}}, %[[MOVED]]

// WHOLE:       spmd.all_slice {{.*}} tile<0> ["data"=4]

// AXIS:        no mesh axis "rows"

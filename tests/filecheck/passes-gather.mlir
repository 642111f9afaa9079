// RUN: partir opt %s -p 'partir-tile{value=table dim=0 axis=data}' | filecheck %s
// RUN: partir opt %s -p 'partir-tile{value=table dim=0 axis=data}' | partir opt -p partir-erase-loops | filecheck %s --check-prefix STRIPPED
// RUN: partir opt %s -p 'partir-tile{value=table dim=1 axis=data}' | filecheck %s --check-prefix COLUMNS
// RUN: partir opt %s -p 'partir-tile{value=table dim=1 axis=data},partir-erase-loops' | filecheck %s --check-prefix STRIPPED

// Each iteration picks the rows it has and zeros for the others; the sum is what the whole table gives.

sdy.mesh @mesh = <["data"=4]>

func.func @main(%table: tensor<4x16xf32>, %i: tensor<8x1xi32>) -> tensor<8x16xf32> {
  %0 = "stablehlo.gather"(%table, %i) <{dimension_numbers = #stablehlo.gather<offset_dims = [1], collapsed_slice_dims = [0], start_index_map = [0], index_vector_dim = 1>, indices_are_sorted = false, slice_sizes = array<i64: 1, 16>}> {sdy.sharding_rule = #sdy.op_sharding_rule<([k, j], [i, l])->([i, j]) {i=8, j=16, k=4, l=1} reduction={k} need_replication={l}>} : (tensor<4x16xf32>, tensor<8x1xi32>) -> tensor<8x16xf32>
  func.return %0 : tensor<8x16xf32>
}

// CHECK:       %0 = partir.loop "data"=4 [reduce<add>] (%data) : tensor<8x16xf32>
// CHECK-NEXT:    %1 = partir.slice %table[%data] tile<0> : tensor<4x16xf32> -> tensor<1x16xf32>
// CHECK:         partir.coordinate %data : tensor<i32>
// CHECK:         [[OWN:%[0-9]+]] = stablehlo.subtract
// CHECK:         [[FROM:%[0-9]+]] = stablehlo.compare GE, [[OWN]],
// CHECK-NEXT:    [[TO:%[0-9]+]] = stablehlo.compare LE, [[OWN]],
// CHECK-NEXT:    stablehlo.and [[FROM]], [[TO]]
// CHECK:         [[PICKED:%[0-9]+]] = "stablehlo.gather"(%1,
// CHECK:         stablehlo.select {{.*}}, [[PICKED]],
// CHECK-NEXT:    partir.yield

// STRIPPED:      %0 = "stablehlo.gather"(%table, %i)
// STRIPPED-SAME:   slice_sizes = array<i64: 1, 16>
// STRIPPED-SAME:   sdy.sharding_rule = #sdy.op_sharding_rule<([k, j], [i, l])->([i, j])
// STRIPPED-NEXT: func.return %0

// COLUMNS:       partir.loop "data"=4 [tile<1>] (%data) : tensor<8x16xf32>
// COLUMNS-SAME:    partir.properties = {slice_sizes = array<i64: 1, 16>}
// COLUMNS-NEXT:    %1 = partir.slice %table[%data] tile<1> : tensor<4x16xf32> -> tensor<4x4xf32>
// COLUMNS-NEXT:    "stablehlo.gather"(%1, %i)
// COLUMNS-SAME:      slice_sizes = array<i64: 1, 4>

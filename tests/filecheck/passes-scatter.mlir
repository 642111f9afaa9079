// RUN: partir opt %s -p 'partir-tile{value=u dim=0 axis=data}' | filecheck %s --check-prefix UPDATES
// RUN: partir opt %s -p 'partir-tile{value=table dim=0 axis=data},partir-tile{value=table dim=0 axis=model}' | filecheck %s --check-prefix ROWS
// RUN: partir opt %s -p 'partir-tile{value=table dim=1 axis=data}' | filecheck %s --check-prefix COLUMNS

// Cut along its updates a scatter adds to its operand in the first iteration only, to zeros in the others; cut along its rows
// it counts rows from the first it has, and what points elsewhere is dropped.

sdy.mesh @mesh = <["data"=4, "model"=2]>

func.func @main(%table: tensor<32x16xf32>, %i: tensor<8x1xi32>, %u: tensor<8x16xf32>) -> tensor<32x16xf32> {
  %0 = "stablehlo.scatter"(%table, %i, %u) <{indices_are_sorted = false, scatter_dimension_numbers = #stablehlo.scatter<update_window_dims = [1], inserted_window_dims = [0], scatter_dims_to_operand_dims = [0], index_vector_dim = 1>, unique_indices = false}> ({
  ^bb0(%a: tensor<f32>, %b: tensor<f32>):
    %s = stablehlo.add %a, %b : tensor<f32>
    stablehlo.return %s : tensor<f32>
  }) {sdy.sharding_rule = #sdy.op_sharding_rule<([k, j], [i, l], [i, j])->([k, j]) {i=8, j=16, k=32, l=1} reduction={i} need_replication={l}>} : (tensor<32x16xf32>, tensor<8x1xi32>, tensor<8x16xf32>) -> tensor<32x16xf32>
  func.return %0 : tensor<32x16xf32>
}

// UPDATES:      partir.loop "data"=4 [reduce<add>] (%data) : tensor<32x16xf32>
// UPDATES-NEXT:   %1 = partir.slice %i[%data] tile<0> : tensor<8x1xi32> -> tensor<2x1xi32>
// UPDATES-NEXT:   %2 = partir.slice %u[%data] tile<0> : tensor<8x16xf32> -> tensor<2x16xf32>
// UPDATES-NEXT:   %3 = partir.coordinate %data : tensor<i32>
// UPDATES:        [[FIRST:%[0-9]+]] = stablehlo.compare EQ, %3,
// UPDATES:        [[ONCE:%[0-9]+]] = stablehlo.select [[FIRST]], %table,
// UPDATES-NEXT:   "stablehlo.scatter"([[ONCE]], %1, %2)

// ROWS:      partir.loop "data"=4 [tile<0>] (%data)
// ROWS-NEXT:   %1 = partir.slice %table[%data] tile<0>
// ROWS-NEXT:   partir.loop "model"=2 [tile<0>] (%model)
// ROWS-NEXT:     %3 = partir.slice %1[%model] tile<0> : tensor<8x16xf32> -> tensor<4x16xf32>
// ROWS-NEXT:     %4 = partir.coordinate %data : tensor<i32>
// ROWS-NEXT:     %5 = partir.coordinate %model : tensor<i32>
// ROWS-NEXT:     %6 = stablehlo.constant dense<2>
// ROWS-NEXT:     %7 = stablehlo.multiply %4, %6
// ROWS-NEXT:     %8 = stablehlo.add %7, %5
// ROWS:          [[OWN:%[0-9]+]] = stablehlo.subtract %i,
// ROWS-NEXT:     "stablehlo.scatter"(%3, [[OWN]], %u)

// COLUMNS:      partir.loop "data"=4 [tile<1>] (%data)
// COLUMNS-NEXT:   %1 = partir.slice %table[%data] tile<1>
// COLUMNS-NEXT:   %2 = partir.slice %u[%data] tile<1>
// COLUMNS-NEXT:   "stablehlo.scatter"(%1, %i, %2)

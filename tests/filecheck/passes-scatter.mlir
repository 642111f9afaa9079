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

// RUN: partir opt %s -p 'partir-tile{value=table dim=0 axis=data}' > %t
// RUN: filecheck %s < %t
// RUN: partir opt %t -p partir-strip | filecheck %s --check-prefix STRIPPED

// Each iteration picks the rows it has and zeros for the others; the sum is what the whole table gives.

sdy.mesh @mesh = <["data"=4]>

func.func @main(%table: tensor<4x16xf32>, %i: tensor<8x1xi32>) -> tensor<8x16xf32> {
  %0 = "stablehlo.gather"(%table, %i) <{dimension_numbers = #stablehlo.gather<offset_dims = [1], collapsed_slice_dims = [0], start_index_map = [0], index_vector_dim = 1>, indices_are_sorted = false, slice_sizes = array<i64: 1, 16>}> {sdy.sharding_rule = #sdy.op_sharding_rule<([k, j], [i, l])->([i, j]) {i=8, j=16, k=4, l=1} reduction={k} need_replication={l}>} : (tensor<4x16xf32>, tensor<8x1xi32>) -> tensor<8x16xf32>
  func.return %0 : tensor<8x16xf32>
}

// RUN: partir opt %s --split-input-file --verify-diagnostics | filecheck %s

func.func @gather(%x: tensor<2x16xf32>) {
  %y = spmd.all_gather %x tile<0> ["data"=4] : tensor<2x16xf32> -> tensor<4x16xf32>
  func.return
}
// CHECK: result is tensor<4x16xf32>, but spmd.all_gather of tensor<2x16xf32> over <"data"=4> is tensor<8x16xf32>

// -----

func.func @scatter(%x: tensor<6x16xf32>) {
  %y = spmd.reduce_scatter add %x tile<0> ["data"=4] : tensor<6x16xf32> -> tensor<1x16xf32>
  func.return
}
// CHECK: dim 0 of tensor<6x16xf32> does not divide by 4 parts

// -----

func.func @permute(%x: tensor<2x16xf32>) {
  %y = spmd.collective_permute %x [0->1, 0->2] ["data"=4] : tensor<2x16xf32>
  func.return
}
// CHECK: source devices [0, 0] are not all different

// -----

func.func @exchange(%x: tensor<2x16xf32>) {
  %y = spmd.all_to_all %x tile<0> -> tile<0> ["data"=4] : tensor<2x16xf32> -> tensor<2x16xf32>
  func.return
}
// CHECK: source and target are both tile<0>: nothing to exchange

// RUN: partir opt %s -p 'partir-tile{value=x dim=1 axis=data}' | filecheck %s

// A merged dim is cut inside each of its outer blocks; what follows it knows the parts it is made of.

sdy.mesh @mesh = <["data"=4]>

func.func @main(%x: tensor<3x8x16xf32>) -> tensor<24x16xf32> {
  %0 = stablehlo.reshape %x {sdy.sharding_rule = #sdy.op_sharding_rule<([i, j, k])->([ij, k]) {i=3, j=8, k=16}>} : (tensor<3x8x16xf32>) -> tensor<24x16xf32>
  %1 = stablehlo.tanh %0 : tensor<24x16xf32>
  func.return %1 : tensor<24x16xf32>
}

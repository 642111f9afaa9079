// RUN: not partir opt %s -p 'partir-mesh{axes="data=4"},partir-tile{value=y dim=0 axis=data}' 2>&1 | filecheck %s --check-prefix NO-VALUE
// RUN: not partir opt %s -p 'partir-mesh{axes="data=3"},partir-tile{value=x dim=0 axis=data}' 2>&1 | filecheck %s --check-prefix UNEVEN

func.func @main(%x: tensor<8x16xf32>) -> tensor<8x16xf32> {
  %0 = stablehlo.tanh %x : tensor<8x16xf32>
  func.return %0 : tensor<8x16xf32>
}

// NO-VALUE:      no argument matches "y"
// NO-VALUE:      try     one of x
// UNEVEN:        cannot do Tile(value='x', dim=0, axis='data')
// UNEVEN:        8 does not divide by 3 (8 mod 3 = 2)

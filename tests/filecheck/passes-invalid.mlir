// RUN: not partir opt %s -p 'partir-tile{value=x dim=0 axis=data}' 2>&1 | filecheck %s --check-prefix NO-MESH
// RUN: not partir opt %s -p 'partir-mesh{axes="data=4"},partir-tile{value=y dim=0 axis=data}' 2>&1 | filecheck %s --check-prefix NO-VALUE
// RUN: not partir opt %s -p 'partir-mesh{axes="data=4"},partir-tile{value=x dim=0 axis=model}' 2>&1 | filecheck %s --check-prefix NO-AXIS
// RUN: not partir opt %s -p 'partir-mesh{axes="data=4"},partir-tile{value=x dim=2 axis=data}' 2>&1 | filecheck %s --check-prefix NO-DIM
// RUN: not partir opt %s -p 'partir-mesh{axes="data=3"},partir-tile{value=x dim=0 axis=data}' 2>&1 | filecheck %s --check-prefix UNEVEN
// RUN: not partir opt %s -p 'partir-mesh{axes="data=4"},partir-cut{value=x dim=0}' 2>&1 | filecheck %s --check-prefix IDLE
// RUN: not partir opt %s -p 'partir-mesh{axes="data=4 model=2"}' 2>&1 | filecheck %s --check-prefix MESH

func.func @main(%x: tensor<8x16xf32>) -> tensor<8x16xf32> {
  %0 = stablehlo.tanh %x : tensor<8x16xf32>
  func.return %0 : tensor<8x16xf32>
}

// NO-MESH:       the module has no mesh
// NO-MESH:       try {{.*}}partir-mesh{axes="data=4"}
// NO-VALUE:      no argument matches "y"
// NO-VALUE:      try     one of x
// NO-AXIS:       no mesh axis "model"
// NO-DIM:        cannot tile x along dim 2
// NO-DIM:        where   x has shape [8, 16]
// UNEVEN:        8 does not divide by 3 (8 mod 3 = 2)
// IDLE:          Cut(value='x', dim=0) changes nothing
// MESH:          not a mesh: "data=4 model=2"

// RUN: not partir opt %s -p 'partir-to-spmd' 2>&1 | filecheck %s --check-prefix NO-ACTIONS
// RUN: partir opt %s -p 'partir-erase-loops,partir-tile{value=x dim=0 axis=data},partir-to-spmd' | filecheck %s --check-prefix ANEW
// RUN: sed 's/builtin.module/builtin.module attributes {partir.actions = #partir.actions<tile value="x" dim=1 axis="data">}/' %s | not partir opt -p 'partir-to-spmd' 2>&1 | filecheck %s --check-prefix OTHER
// RUN: sed 's/builtin.module/builtin.module attributes {partir.actions = #partir.actions<tile value="x" dim=0 axis="data">}/' %s | partir opt -p 'partir-to-spmd' | filecheck %s --check-prefix ANEW

// Loops do not say who decided what: a module carries its actions, and its loops must be those that they make.

builtin.module {
  sdy.mesh @mesh = <["data"=4]>

  func.func @main(%x: tensor<8x16xf32>) -> tensor<8x16xf32> {
    %0 = partir.loop "data"=4 [tile<0>] (%i) : tensor<8x16xf32> {
      %s = partir.slice %x[%i] tile<0> : tensor<8x16xf32> -> tensor<2x16xf32>
      %t = stablehlo.tanh %s : tensor<2x16xf32>
      partir.yield %t : tensor<2x16xf32>
    }
    func.return %0 : tensor<8x16xf32>
  }
}

// NO-ACTIONS:       the module has loops, but not the actions that make them
// NO-ACTIONS-NEXT:  where   partir.loop : tensor<8x16xf32>
// NO-ACTIONS-NEXT:  why     loops do not say who decided what: partir.actions on the module does
// NO-ACTIONS-NEXT:  try     write it with `partir show --ir core`, or with the passes that decide (partir-tile, ...)

// ANEW: func.func public @main([[X:%[0-9]+]]: tensor<2x16xf32>

// OTHER:       the loops are not those that the module's actions make: another results_as
// OTHER-NEXT:  where   partir.loop : tensor<8x16xf32>
// OTHER-NEXT:  why     the text has      {{.*}} = partir.loop "data"=4 [tile<0>]
// OTHER-NEXT:          the actions make  {{.*}} = partir.loop "data"=4 [tile<1>]

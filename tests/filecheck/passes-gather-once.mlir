// RUN: partir opt %s -p 'partir-tile{value=x dim=0 axis=data},partir-tile{value=w dim=0 axis=data},partir-to-spmd' | filecheck %s --check-prefix AGAIN
// RUN: partir opt %s -p 'partir-tile{value=x dim=0 axis=data},partir-tile{value=w dim=0 axis=data},partir-gather-once{value=w}' | filecheck %s --check-prefix CORE
// RUN: partir opt %s -p 'partir-tile{value=x dim=0 axis=data},partir-tile{value=w dim=0 axis=data},partir-gather-once{value=w},partir-to-spmd' | filecheck %s --check-prefix ONCE
// RUN: not partir opt %s -p 'partir-gather-once{value=x}' 2>&1 | filecheck %s --check-prefix IDLE

// The weights are cut, and read whole forward and backward. Each phase gathers them, a barrier keeps the second gather until there:
// what forward gathered can go in between. Gathered once, both phases read one gather.

sdy.mesh @mesh = <["data"=4]>

func.func @main(%w: tensor<8x8xf32> {partir.role = "state"}, %x: tensor<16x8xf32>) -> (tensor<16x8xf32>) {
  %1 = stablehlo.dot_general %x, %w, contracting_dims = [1] x [1] {partir.origin = #partir.origin<"up", forward, "m.py:1">} : (tensor<16x8xf32>, tensor<8x8xf32>) -> tensor<16x8xf32>
  %2 = stablehlo.dot_general %1, %w, contracting_dims = [1] x [1] {partir.origin = #partir.origin<"up", backward, "m.py:1">} : (tensor<16x8xf32>, tensor<8x8xf32>) -> tensor<16x8xf32>
  func.return %2 : tensor<16x8xf32>
}

// AGAIN:      func.func public @main([[W:%[0-9]+]]: tensor<2x8xf32> {{.*}}, [[X:%[0-9]+]]: tensor<4x8xf32>
// AGAIN-NEXT:   [[FIRST:%[0-9]+]] = spmd.all_gather [[W]] tile<0> ["data"=4]
// AGAIN-NEXT:   [[UP:%[0-9]+]] = stablehlo.dot_general [[X]], [[FIRST]]
// AGAIN-NEXT:   [[HELD:%[0-9]+]], {{%[0-9]+}} = partir.barrier [[W]], [[UP]]
// AGAIN-NEXT:   spmd.all_gather [[HELD]] tile<0> ["data"=4]

// CORE:       builtin.module attributes {partir.actions = #partir.actions<
// CORE-NEXT:    tile value="x" dim=0 axis="data",
// CORE-NEXT:    tile value="w" dim=0 axis="data",
// CORE-NEXT:    gather_once value="w"
// CORE-NEXT:  >} {
// CORE:       func.func public @main(%w: tensor<8x8xf32> {partir.path = ["w"], partir.role = "state", sdy.sharding = #sdy.sharding<@mesh, [{"data"}, {}]>}
// CORE:       partir.loop "data"=4 [tile<0>]

// ONCE:       func.func public @main([[W:%[0-9]+]]: tensor<2x8xf32> {{.*}}, [[X:%[0-9]+]]: tensor<4x8xf32>
// ONCE-NEXT:    [[ALL:%[0-9]+]] = spmd.all_gather [[W]] tile<0> ["data"=4]
// ONCE-NEXT:    [[UP:%[0-9]+]] = stablehlo.dot_general [[X]], [[ALL]]
// ONCE-NEXT:    stablehlo.dot_general [[UP]], [[ALL]]
// ONCE-NEXT:    func.return

// IDLE: GatherOnce(value='x') changes nothing

"""The IR dialects, in xDSL: partir's own (`core`, `spmd`), and those that it reads and writes (`stablehlo`, `chlo`, `sdy`)."""

"""What can be said: the IR of partir (`core`, `spmd`), and of the programs it reads and writes (`stablehlo`, `sdy`)."""

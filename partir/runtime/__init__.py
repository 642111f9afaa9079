"""JAX goes out: emission to MLIR, execution on devices."""

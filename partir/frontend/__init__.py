"""JAX comes in: tracing, the bridge from MLIR to xDSL, scopes, sharding rules, and the marks of model authors."""

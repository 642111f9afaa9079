"""Imports JAX functions: tracing, the bridge from MLIR to xDSL, scopes, sharding rules, and the marks that authors set."""

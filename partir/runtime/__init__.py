"""Runs what was planned: emission of SPMD IR to MLIR, and execution on the devices of a JAX mesh."""

"""From plan to device-local program: `to_spmd` writes the plan, `localise` the ops on slices, `verify` holds the result."""

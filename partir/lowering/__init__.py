"""Lowers a plan to the program of one device: `to_spmd` writes it, `localise` writes ops on shards, `verify` checks it."""

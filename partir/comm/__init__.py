"""Collectives as algorithms: how many messages, how many bytes over the busiest link."""

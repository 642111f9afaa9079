"""Core IR shows the decisions of an assignment as loops over mesh axes. It is written, read back, and unrolled to be run."""

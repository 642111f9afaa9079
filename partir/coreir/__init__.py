"""Core IR: the decisions of an assignment as loops over mesh axes - written, read back, and run as their meaning is."""

"""What a plan costs on a machine: compute, communication, memory, each with its cause."""

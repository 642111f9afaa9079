"""Checks predictions against real compilers: compiles programs, and reads memory, time and collectives off the result."""

"""The sans-IO core: no clock, no randomness, no I/O, no async library."""

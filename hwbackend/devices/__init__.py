"""Devices, one a file: the CPU by NumPy, a GPU by CuPy."""

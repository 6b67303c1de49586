"""Kernels: CUDA C++ sources and what launches them, NumPy implementations, float64 references."""

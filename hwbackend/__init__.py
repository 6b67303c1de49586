"""The real device: microbenchmarks, kernels, and a miniature engine that runs the simulator's policies."""

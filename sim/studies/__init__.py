"""Questions asked by running the simulator many times."""

"""Curves of a profile: one term of the step cost a file, each a frozen model with a vectorised `seconds`."""

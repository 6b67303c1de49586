"""Ranges of addresses: which are free, and where the next one goes."""

"""Traces, generators and transformations: everything that becomes an immutable stream of requests."""

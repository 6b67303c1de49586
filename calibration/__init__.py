"""Measurements become a Profile (the cost of work), with residuals and provenance."""

"""Microbenchmarks, one a file: each names its axes, says what a call moves and computes, and prepares calls.

`hwbackend.harness` alone times them; `hwbackend.microbench.all` lists them.
"""

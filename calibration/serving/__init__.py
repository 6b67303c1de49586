"""Measured serving runs, and what the twin says of them.

measured_run.py     one run of a real engine: what was offered, on what, and what came out
readers/            one data set or client format a file, each to measured runs
predict.py          the same runs, simulated blind from their inputs
scores.py           errors per metric: MAPE, bias, worst case; by what runs have in common
tolerances.py       limits that scores have to keep
validation.py       `servetwin validate serving`: runs in, scores out; _files.py and _text.py write and print them
"""

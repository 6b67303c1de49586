"""`servetwin confirm`: a decision made in simulation, repeated on the device in front of you.

runs      calibration loads, probes and arms on the device, in turns; each run simulated beside it
service   what both sides stand on: the device as a profile, the same KV memory and limits
cost      prices of a step, fitted to the engine's own steps
outcome   what was found, and the verdict
confirm   all of it in order
shipped   the questions that come with the package, their scenarios in `scenarios/`
"""

"""KV below HBM: host memory and disk.

store.py      one tier: which content it holds, and which goes first
lower.py      both of them: what is found, what is written, what moves down
movement.py   what is on its way between tiers
rates.py      how long bytes take over the links
recompute.py  how long tokens take to compute
reload.py     how much of what was found to bring back
swapping.py   whether a preempted sequence leaves its KV in host memory
crossover.py  from which context on reloading beats computing
account.py    what was found where, and how much moved
setup.py      the tiers of an engine, and the allocator on them
"""

"""Which KV pages a decode step reads. One pattern a file: its config, its model, its build.

reads.py        what a pattern answers, and the protocol
hashing.py      random numbers that depend on coordinates alone
recording.py    recorded accesses, sampled from a real attention or from a model
recording_files.py  their file format: reader and writer
heat_map.py     layer x distance histograms of reads
reuse.py        what a recording says by layer: reads that repeat, beside chance
"""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from sim.kv.access.full import Full
from sim.kv.access.recorded import Recorded
from sim.kv.access.sliding_window import SlidingWindow
from sim.kv.access.top_k import TopK

AnyAccess = Annotated[Full | SlidingWindow | TopK | Recorded, Field(discriminator="name")]

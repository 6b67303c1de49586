"""Real attention, watched: which KV pages a decode step really needs, as a recording that the simulator replays.

mass.py           attention mass of tokens, and of the pages that hold them
choice.py         which pages count as read: those that hold a share of the mass, or the heaviest
sampler.py        collects the mass of successive decode steps, and makes the recording
source.py         what a source of attention is, and how one is recorded
engine_source.py  the miniature engine on any device: queries and the keys of its KV pool
torch_source.py   a model of Hugging Face transformers, where PyTorch is installed
"""

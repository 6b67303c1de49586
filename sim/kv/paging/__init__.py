"""KV in host memory, with a cache of its pages in HBM.

host_paging.py   the whole: steps and landed bytes go in, bytes to wait for and bytes to prefetch come out
page_table.py    numbers of the pages of each sequence
page_cache.py    which pages are in HBM, least recently used first
account.py       what became of every byte
study.py         all prefetchers over one load, on a link of given bandwidth
"""

"""`servetwin access`: recordings of KV accesses.

command.py  record, record-hf, stats
engine.py   the miniature engine of a scenario as a source of attention
text.py     what a recording shows, as a document and as a table
"""

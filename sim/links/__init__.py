"""Links and the flows that share them: HBM, PCIe each way, NVLink, NIC, disk.

fabric.py          all links of a run: starts, ends, cancellations, on the simulated clock
link.py            a link, and the account of who used it
flow.py            a flow along a path of links
rate_class.py      flows that always run at one rate, and when the first of them ends
sharing.py         max-min fair rates, in exact fractions
history.py         who used which link when, as change points
stretch.py         what an engine step costs beside flows on HBM
machine.py         the links of a GPU and its host, from a profile, and the routes over them
shared_cost.py     prices of steps on a GPU whose HBM is shared
replica_links.py   one replica's transfers, its steps beside them, and what it waited for
background.py      flows of others, once or again and again
network.py         the links of all replicas of a run
report.py          what they did: a summary, and columns
"""

"""Links and the flows that share them: HBM, PCIe each way, NVLink, NIC, disk.

sharing.py   max-min fair rates, in exact fractions
flow.py      a flow, and the flows that always run at one rate
link.py      a link, and who used it
fabric.py    all links of a run: starts, ends, cancellations, on the simulated clock
history.py   who used which link when, as change points
stretch.py   what a step costs beside flows on HBM
"""

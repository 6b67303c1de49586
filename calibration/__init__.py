"""Measurements become profiles here: kernel tables -> curves with residuals, serving rows -> host overhead.

The shipped profiles are made by

    servetwin profile fit --kernels DATA/kernels --out sim/profiles --force

and judged again by `servetwin profile validate NAME --kernels DATA/kernels`. A device of one's own is measured by
`servetwin calibrate`, a server of one's own by `servetwin profile fit --engine-log`.
"""

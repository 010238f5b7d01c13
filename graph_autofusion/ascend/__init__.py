"""Printers for Ascend: MLIR, Ascend C and PTO text from the same schedule as the host's kernels.

What they print was not run on hardware. All three take programs of rows and columns: a core takes every so-many-th
tile of rows, loads it whole, computes and stores it.
"""

"""Measurements of graphjit beside its peers: one command, one process, one run.

__main__       the command
settings       how much is measured
devices        CUDA through CuPy, or the simulated device
workloads      the functions that are measured
subjects       a way of running a workload: graphjit's, eager; checked before it is timed
peers          the same with CuPy's own graphs and with torch's
timing         samples, taken in turn from all subjects
times, costs   what is measured: times of calls; memory, signatures, first calls
stages         what a hit in Python is made of (``--profile``)
bars           what was promised, and whether it holds
report, plots  Markdown and drawings
"""

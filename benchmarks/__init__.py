"""``python -m benchmarks NAME`` in a clone: measurements for developers, which the wheel does not have.

The modules have the form of those of `workbench.bench`, and use its arms, turns, reports and plots.
"""

from workbench.bench import Suite

BENCHES = {
    "apps": "transpose, merge and SVD on workers with mpi://, against ones with tcp://",
    "idle": "CPU of a cluster that does nothing, with mpi:// against tcp://",
    "overhead": "fits of workbench.ml on both engines, against the same kernels in bare MPI",
    "peers": "fits of workbench.ml, against dask-ml, daal4py and Dask's own decomposition",
    "metrics": "what metrics add to MPI operations and fits; head and dashboard with many simulated ranks",
    "training": "training of nets of PyTorch, against gloo, a parameter server of Dask and DataLoader",
    "hybrid": "training in layouts of pipeline stages and replicas: time and memory, against one process",
    "strips": "memory of a net of PyTorch on strips of an image, against one process",
    "tune": "trials of an Optuna study on groups of ranks, against an ideal schedule",
}
"""What can be measured, by the name of its module."""
SUITE = Suite("python -m benchmarks", __name__, BENCHES)

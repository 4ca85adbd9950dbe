"""The kernel of the SPMD bench, as each rank computes it: in the body of a call, and in a bare MPI program."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from workbench.bench import turns

if TYPE_CHECKING:
    from mpi4py.MPI import Intracomm

COLUMNS = 32
"""Of the block of each rank."""


@dataclass(frozen=True)
class Turn:
    """What one rank did in one turn."""

    seconds: float
    """Time that the kernel took, again and again."""
    cpu_seconds: float
    """CPU time of its thread."""
    gradient: np.ndarray
    """Shape (columns,): the last result."""
    setting: tuple[str | int | None, ...]
    """What the speed depends on beside: number of threads, of cores, alignment of the block."""


def gradient(X: np.ndarray, y: np.ndarray, w: np.ndarray) -> np.ndarray:
    """Return the gradient of the logistic loss at the weights `w`."""
    product: np.ndarray = X.T @ (1 / (1 + np.exp(-(X @ w))) - y)
    return product


def block(comm: Intracomm, rows: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the block of a rank and its labels, shapes (rows, columns) and (rows,)."""
    random = np.random.default_rng(comm.rank)
    return random.standard_normal((rows, COLUMNS)), random.integers(0, 2, rows).astype(float)


def turn(comm: Intracomm, X: np.ndarray, y: np.ndarray, repeats: int) -> Turn:
    """Compute the kernel `repeats` times on every rank; all begin simultaneously."""
    w = np.linspace(-1, 1, X.shape[1])
    comm.Barrier()
    begin, cpu = time.perf_counter(), time.thread_time()
    for _ in range(repeats):
        result = gradient(X, y, w)
    took, used = time.perf_counter() - begin, time.thread_time() - cpu
    setting = (os.environ.get("OMP_NUM_THREADS"), len(os.sched_getaffinity(0)), X.ctypes.data % 64)
    return Turn(took, used, result, setting)


def measure(address: str, rows: int) -> None:
    """Serve requests for a number of repeats from this address. Runs on every rank of a bare world."""
    from mpi4py import MPI

    from workbench.placement.in_use import aligned

    comm = MPI.COMM_WORLD
    X, y = map(aligned, block(comm, rows))
    turns.serve(address, comm.rank, lambda repeats: turn(comm, X, y, repeats))

"""Functions that tests of metrics run on ranks, which import this file by its name."""

from __future__ import annotations

import ctypes
import os
import time
from pathlib import Path

import numpy as np


def ring(comm, sizes):
    """Send to the next rank as many bytes as there are for this one, and one number to all by a reduction."""
    sent, received = np.zeros(sizes[comm.rank], "b"), np.zeros(sizes[comm.rank - 1], "b")
    comm.Sendrecv(sent, (comm.rank + 1) % comm.size, 0, received, (comm.rank - 1) % comm.size)
    total = np.zeros(1)
    comm.Allreduce(np.ones(1), total)
    return float(total[0])


def wait_for(comm, path):
    """Have all ranks wait in a barrier until there is a file."""
    if comm.rank == 0:
        while not Path(path).exists():
            time.sleep(0.01)
    comm.Barrier()


def come_late(comm, times):
    """Meet again and again, with rank 0 late by a tenth of a second."""
    for _ in range(times):
        if comm.rank == 0:
            time.sleep(0.1)
        comm.Allreduce(np.ones(1), np.zeros(1))


def let_wait(comm, times, seconds):
    """Meet in barriers, with rank 1 late each time."""
    for _ in range(times):
        if comm.rank == 1:
            time.sleep(seconds)
        comm.Barrier()


def spin(seconds):
    """Compute in Python."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        pass


def spin_until(path):
    """Compute in Python until there is a file."""
    while not Path(path).exists():
        pass


def hold_the_interpreter(pipe):
    """Wait in C code that does not release the interpreter, until a test writes."""
    libc = ctypes.PyDLL(None)
    file = libc.open(os.fsencode(pipe), os.O_RDONLY)
    libc.read(file, ctypes.create_string_buffer(1), 1)
    libc.close(file)


def train(comm, steps):
    """Report the values of a training."""
    import workbench

    if comm.rank == 0:
        for step in range(steps):
            workbench.report(step, name="mine", loss=1 / (step + 1))

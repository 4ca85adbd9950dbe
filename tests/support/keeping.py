"""Functions on the ranks for tests of kept values. Ranks import this file by its name, so it imports little itself."""

from __future__ import annotations

import time
import warnings
from pathlib import Path

import workbench
from support.patience import DEADLINE
from workbench import run_on_ranks, spmd

STEP_S = 0.1
"""Seconds of a step of the training."""


def forget(client):
    """Keep nothing any more, from a notebook and its calls."""
    workbench.keep(end=True)
    nothing = dict.fromkeys(vars(workbench.restore(client=client)))
    run_on_ranks(keep, client=client, **nothing)
    workbench.keep(**nothing)


def keep(comm, *, rows=False, **named):
    """Keep values; a function is called with the communicator for the value of its rank."""
    named = {name: value(comm) if callable(value) else value for name, value in named.items()}
    workbench.keep(comm, rows=rows, **named)


def kept(comm, name, default=None):
    """Return the value of this rank."""
    return workbench.kept(comm, name, default)


def keep_torn(comm, **named):
    """Keep values on rank 0 only, as rank 1 fails before."""
    if comm.rank == 1:
        raise ArithmeticError("rank 1 fails between two keeps")
    workbench.keep(comm, **named)


def add(_, X, number):
    """Change a block in place."""
    X += number


def stops(comm):
    """Return whether this call should stop."""
    return workbench.should_stop(comm)


def keep_until_told(comm, began):
    """Keep the number of each step until the job ends; a file shows that the first step is kept."""
    step, deadline = 0, time.monotonic() + DEADLINE
    while not workbench.should_stop(comm) and comm.bcast(time.monotonic() < deadline):
        step += 1
        workbench.keep(comm, last=step)
        Path(began).touch()
    return step


def keep_until_warned(comm, **named):
    """Keep values until a version fails; return the text of the warning, which rank 0 gets."""
    deadline, text = time.monotonic() + DEADLINE, ""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        while not text and comm.bcast(time.monotonic() < deadline):
            workbench.keep(comm, **named)
            text = comm.bcast(str(caught[0].message) if caught else "")
        return text


def keep_until_written(comm, root, **named):
    """Keep values until a version in a folder has them, without an end of the call; return whether one has."""
    from workbench.checkpoint import folder

    def written():
        found = folder.versions(Path(root))[0] if any(Path(root).glob("v*")) else []
        return time.monotonic() > deadline or any(named.keys() <= version.entries.keys() for version in found)

    deadline = time.monotonic() + DEADLINE
    while not comm.bcast(written() if comm.rank == 0 else False):
        workbench.keep(comm, **named)
    return time.monotonic() < deadline


@spmd(result="root")
def train(comm, X, last):
    """Add all numbers once in each step, from the last kept step on, as far as the job lasts; return step and sum."""
    step, total = workbench.kept(comm, "state", (0, 0.0))
    while step < last and not workbench.should_stop(comm):
        time.sleep(STEP_S)
        step, total = step + 1, total + comm.allreduce(float(X.sum()))
        workbench.keep(comm, state=(step, total))
    return step, total

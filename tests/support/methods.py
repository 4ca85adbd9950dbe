"""A class with methods that run on all ranks, which import this file by its name."""

from __future__ import annotations

from workbench import spmd


class Scale:
    """Of which each rank gets a copy."""

    def __init__(self, by):
        self.by = by

    @spmd(result="root")
    def total(self, comm, X):
        return self.by * comm.allreduce(X.sum())

    @spmd
    def twice(self, comm, X):
        # a communicator makes it the plain method
        return 2 * self.total(comm, X)

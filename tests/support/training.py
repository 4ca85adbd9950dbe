"""What the tests of clusters on several nodes run on ranks; imported there by its name, so it imports little itself."""

from __future__ import annotations

import os
from functools import reduce
from operator import add

import numpy as np
import psutil

from workbench import comm


def place():
    """Return the rank in the workbench and in MPI, the size of its world, and the node."""
    from mpi4py.MPI import COMM_WORLD

    import workbench.rank

    return workbench.rank.current().rank, COMM_WORLD.rank, COMM_WORLD.size, os.environ["SLURMD_NODENAME"]


def listening():
    """Return the IPv4 addresses that this process listens at."""
    connections = psutil.Process().net_connections("inet4")
    return sorted({one.laddr.ip for one in connections if one.status == psutil.CONN_LISTEN})


def received_by_mpi(peer):
    """Return how many bytes have come from a rank over MPI."""
    return sum(row["received_bytes"] for row in comm.traffic() if (row["peer"], row["way"]) == (peer, "mpi"))


def loss_and_gradient(X, y, w):
    """Log-loss of one block and its gradient, in one vector, so that blocks add up."""
    margin = y * (X @ w)
    slope = -y / (1 + np.exp(margin))
    return np.concatenate([[np.logaddexp(0, -margin).sum()], slope @ X])


def weights_by_ranks(client, X, y):
    """Return the weights of a logistic regression (penalty 1, no intercept) that all ranks train together."""
    from scipy.optimize import minimize

    from workbench import map_blocks

    def objective(w):
        loss, *gradient = reduce(add, client.gather(map_blocks(loss_and_gradient, X, y, w)))
        return loss + w @ w / 2, np.array(gradient) + w

    return minimize(objective, np.zeros(X.shape[1]), jac=True, method="L-BFGS-B", options={"gtol": 1e-6}).x

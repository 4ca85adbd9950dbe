"""What the ranks of ``collectives --torch`` do: each collective of torch.distributed, and the operation of MPI for it.

torch's go by `workbench.torch.distributed`, those of MPI by the plain communicator, both on the same memory.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from mpi4py import MPI

from workbench.bench.operations import iterations, medians
from workbench.mpi.call_state import CallState
from workbench.mpi.communicator import Communicator

if TYPE_CHECKING:
    import torch

KINDS = ("mpi", "torch")
OPERATIONS = ("all_reduce", "broadcast", "all_gather", "reduce_scatter", "all_to_all")
"""What is measured, in the order of the table."""
# Iterations that make up one measurement up to so many bytes; and iterations at least.
_TRIPS, _SMALL, _LEAST = 20, 1024, 15

Calls = dict[str, Callable[[], Any]]


def measure(sizes: list[int], seconds: float) -> list[dict[str, Any]]:
    """Measure all operations at all sizes. Runs on every rank.

    Parameters
    ----------
    sizes
        Of what a rank gives, in bytes; to each rank, of those that give each rank something else.
    seconds
        About how long to measure each operation at each size.

    Returns
    -------
    rows : list of dict
        ``operation``, ``nbytes``, and of each kind the median time in µs.
    """
    world = MPI.COMM_WORLD.Dup()
    return rows(world, Communicator(world, CallState()), sizes, seconds)


def rows(comm: MPI.Intracomm, ours: MPI.Intracomm, sizes: list[int], seconds: float) -> list[dict[str, Any]]:
    """Return what `measure` does, of MPI by a communicator, and of torch.distributed on ours of the same ranks."""
    from workbench.torch import distributed

    with distributed(ours):
        return [_row(comm, name, nbytes, seconds) for name in OPERATIONS for nbytes in sizes]


def _row(comm: MPI.Intracomm, name: str, nbytes: int, seconds: float) -> dict[str, Any]:
    import torch

    sent = torch.zeros(comm.size, max(1, nbytes // 4)) + comm.rank
    calls, received = _calls(comm, name, sent)
    trips = _TRIPS if nbytes <= _SMALL else 1
    found = []
    for call in calls.values():
        sent.fill_(comm.rank)
        call()
        found.append(received.clone())
    if not torch.equal(*found):
        raise ValueError(f"{name} of torch delivered something else than MPI at {nbytes} bytes")
    # Sums stay what they are, however often they are made.
    sent.zero_()
    repeated = {kind: lambda call=call: [call() for _ in range(trips)] for kind, call in calls.items()}
    number = iterations(comm, repeated, seconds, _LEAST)
    times = medians(comm, repeated, number, trips)
    return {"operation": name, "nbytes": 4 * sent.shape[1]} | {f"{kind}_us": times[kind] * 1e6 for kind in KINDS}


def _calls(comm: MPI.Intracomm, name: str, sent: torch.Tensor) -> tuple[Calls, torch.Tensor]:
    """Return both ways of one operation, and where both leave their results."""
    import torch
    import torch.distributed as dist

    one, all_of_them = sent[0], torch.empty_like(sent)
    part = torch.empty_like(one)
    x, whole, many, few = one.numpy(), sent.numpy(), all_of_them.numpy(), part.numpy()
    ways: dict[str, tuple[Callable[[], Any], Callable[[], Any], torch.Tensor]] = {
        "all_reduce": (lambda: comm.Allreduce(MPI.IN_PLACE, x), lambda: dist.all_reduce(one), one),
        "broadcast": (lambda: comm.Bcast(x), lambda: dist.broadcast(one, 0), one),
        "all_gather": (
            lambda: comm.Allgather(x, many),
            lambda: dist.all_gather_into_tensor(all_of_them.view(-1), one),
            all_of_them,
        ),
        "reduce_scatter": (
            lambda: comm.Reduce_scatter_block(whole, few),
            lambda: dist.reduce_scatter_tensor(part, sent.view(-1)),
            part,
        ),
        "all_to_all": (
            lambda: comm.Alltoall(whole, many),
            lambda: dist.all_to_all_single(all_of_them, sent),
            all_of_them,
        ),
    }
    mpi, by_torch, received = ways[name]
    return {"mpi": mpi, "torch": by_torch}, received

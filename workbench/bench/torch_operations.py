"""What the ranks of ``collectives --torch`` do: each collective of torch.distributed, and the operation of MPI for it.

torch's go by `workbench.torch.distributed`, those of MPI by the plain communicator, both on one memory of the host.
With a GPU, torch's tensors are there, and a third arm is what a program without process group does: copy a tensor to
the host, call MPI, and copy the result back.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from mpi4py import MPI

from workbench.bench.operations import iterations, medians
from workbench.extension import Communicator
from workbench.mpi.call_state import CallState
from workbench.mpi.context import everyone

if TYPE_CHECKING:
    import torch

OPERATIONS = ("all_reduce", "broadcast", "all_gather", "reduce_scatter", "all_to_all")
"""What is measured, in the order of the table."""
# Iterations that make up one measurement up to so many bytes; and iterations at least.
_TRIPS, _SMALL, _LEAST = 20, 1024, 15

Calls = dict[str, Callable[[], Any]]


def measure(sizes: list[int], seconds: float, device: str = "cpu") -> list[dict[str, Any]]:
    """Measure all operations at all sizes. Runs on every rank.

    Parameters
    ----------
    sizes
        Of what a rank gives, in bytes; to each rank, of those that give each rank something else.
    seconds
        About how long to measure each operation at each size.
    device
        Where the tensors of torch are.

    Returns
    -------
    rows : list of dict
        ``operation``, ``nbytes``, and of each arm the median time in µs.
    """
    world = everyone().Dup()
    return rows(world, Communicator(world, CallState()), sizes, seconds, device)


def rows(
    comm: MPI.Intracomm, ours: MPI.Intracomm, sizes: list[int], seconds: float, device: str = "cpu"
) -> list[dict[str, Any]]:
    """Return what `measure` does, of MPI by a communicator, and of torch.distributed on ours of the same ranks."""
    from workbench.torch import distributed

    with distributed(ours):
        return [_row(comm, name, nbytes, seconds, device) for name in OPERATIONS for nbytes in sizes]


def _row(comm: MPI.Intracomm, name: str, nbytes: int, seconds: float, device: str) -> dict[str, Any]:
    import torch

    sent = torch.zeros(comm.size, max(1, nbytes // 4), device=device) + comm.rank
    host = sent.cpu()
    calls, results = _calls(comm, name, sent, host)
    trips = _TRIPS if nbytes <= _SMALL else 1
    found = []
    for kind, call in calls.items():
        sent.fill_(comm.rank)
        host.fill_(comm.rank)
        call()
        found.append(results[kind].to("cpu", copy=True))
    if not all(torch.equal(each, found[0]) for each in found):
        raise ValueError(f"{name} of torch delivered something else than MPI at {nbytes} bytes")
    # Sums stay what they are, however often they are made.
    sent.zero_()
    host.zero_()
    repeated = {kind: lambda call=call: [call() for _ in range(trips)] for kind, call in calls.items()}
    number = iterations(comm, repeated, seconds, _LEAST)
    times = medians(comm, repeated, number, trips)
    return {"operation": name, "nbytes": 4 * sent.shape[1]} | {f"{kind}_us": times[kind] * 1e6 for kind in calls}


def _calls(
    comm: MPI.Intracomm, name: str, sent: torch.Tensor, host: torch.Tensor
) -> tuple[Calls, dict[str, torch.Tensor]]:
    """Return all ways of one operation, and where each leaves its result."""
    import torch
    import torch.distributed as dist

    one, many = sent[0], torch.empty_like(sent)
    part = torch.empty_like(one)
    # The same memory, unless torch's is that of a GPU.
    host_one, host_many, host_part = host[0], many.cpu(), part.cpu()
    x, whole, all_of_them, few = (each.numpy() for each in (host_one, host, host_many, host_part))
    ways: dict[str, tuple[Callable[[], Any], Callable[[], Any], tuple[torch.Tensor, ...]]] = {
        "all_reduce": (
            lambda: comm.Allreduce(MPI.IN_PLACE, x),
            lambda: dist.all_reduce(one),
            (one, host_one, one, host_one),
        ),
        "broadcast": (lambda: comm.Bcast(x), lambda: dist.broadcast(one, 0), (one, host_one, one, host_one)),
        "all_gather": (
            lambda: comm.Allgather(x, all_of_them),
            lambda: dist.all_gather_into_tensor(many.view(-1), one),
            (many, host_many, one, host_one),
        ),
        "reduce_scatter": (
            lambda: comm.Reduce_scatter_block(whole, few),
            lambda: dist.reduce_scatter_tensor(part, sent.view(-1)),
            (part, host_part, sent, host),
        ),
        "all_to_all": (
            lambda: comm.Alltoall(whole, all_of_them),
            lambda: dist.all_to_all_single(many, sent),
            (many, host_many, sent, host),
        ),
    }
    mpi, by_torch, (received, host_received, given, host_given) = ways[name]
    if sent.is_cpu:
        return {"mpi": mpi, "torch": by_torch}, {"mpi": host_received, "torch": received}

    def waiting() -> None:
        by_torch()
        torch.cuda.synchronize()

    def copied() -> None:
        host_given.copy_(given)
        mpi()
        received.copy_(host_received)
        torch.cuda.synchronize()

    calls: Calls = {"mpi": mpi, "torch": waiting, "copied": copied}
    return calls, {"mpi": host_received, "torch": received, "copied": received}

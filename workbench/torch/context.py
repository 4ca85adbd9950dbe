"""torch.distributed on the communicator of a call or a cell, in a context."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, NoReturn

from workbench.errors import InvalidRequest

if TYPE_CHECKING:
    from mpi4py import MPI

BACKEND = "workbench"
"""Name of the backend in torch.distributed."""


@contextmanager
def distributed(comm: MPI.Intracomm) -> Iterator[Any]:
    """Return a context in which torch.distributed is initialized on a communicator; collective.

    Parameters
    ----------
    comm : mpi4py.MPI.Intracomm
        Communicator of a function with `spmd`, of `run_on_ranks` or of a ``%%mpi`` cell; its ranks and their order
        are those of ``torch.distributed.group.WORLD``. In a program that ``mpiexec`` starts: a communicator of mpi4py.

    Yields
    ------
    torch.distributed.ProcessGroup
        The default group, on a duplicate of `comm`.

    Raises
    ------
    InvalidRequest
        If PyTorch is not installed on the rank, or torch.distributed is already initialized in the process.

    Notes
    -----
    A process group in Python (torch's extension ``Backend.register_backend``) translates torch's collectives into
    operations of the communicator, so these are counted, and end with the call. The context opens no port, and needs
    no list of hosts and no shared store. The number of torch's threads becomes that of the rank (``--threads`` of the
    cluster). Tensors in GPU memory are sent by copies in the memory of the host. Torch itself refuses
    `monitored_barrier`, `split_group` and `shrink_group` for all groups except those of gloo or NCCL.

    Examples
    --------
    >>> import torch
    >>> @workbench.spmd(result="root")
    ... def gradient(comm, X):
    ...     with distributed(comm):
    ...         model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(2, 1))
    ...         model(torch.from_numpy(X)).mean().backward()
    ...         return model.module.weight.grad
    >>> gradient(workbench.place(np.arange(8, dtype="float32").reshape(4, 2)))
    tensor([[3., 4.]])
    """
    require_torch()
    import torch
    import torch.distributed as dist

    from workbench.torch.process_group import NO_STORE, MPIProcessGroup

    if dist.is_initialized():
        raise InvalidRequest(
            "torch.distributed is already initialized in this process, and a process has only one default group. "
            "End the other distributed() block, of this call or of a cell, first."
        )
    threads = torch.get_num_threads()
    if not hasattr(dist.Backend, BACKEND.upper()):
        dist.Backend.register_backend(BACKEND, MPIProcessGroup.create, extended_api=True, devices=["cpu", "cuda"])
    try:
        torch.set_num_threads(rank_threads())
        with MPIProcessGroup.parent(comm.Dup()):
            dist.init_process_group(BACKEND, store=NO_STORE, rank=comm.rank, world_size=comm.size)
        group: Any = dist.group.WORLD
        with _separate_models_refused(comm.size):
            yield group
        # A program may have destroyed the group, as programs for torchrun do at their end.
        if dist.group.WORLD is group:
            # After the barrier no rank is in an operation of the group, so the communicators can be freed.
            group.comm.Barrier()
            group.free()
    finally:
        torch.set_num_threads(threads)
        if dist.is_initialized():
            dist.destroy_process_group()


@contextmanager
def _separate_models_refused(ranks: int) -> Iterator[None]:
    """Refuse ``fit`` of Keras, which knows no group of torch.distributed, on several ranks."""
    models = getattr(sys.modules.get("keras"), "Model", None) if ranks > 1 else None
    if models is None:
        yield
        return
    fit = models.fit

    def refuse(*_: object, **__: object) -> NoReturn:
        raise InvalidRequest(
            "fit of Keras would train a separate model on each rank. Train DistributedDataParallel(model) in a loop of "
            "PyTorch, with the backend torch of Keras, or call fit outside of distributed()."
        )

    models.fit = refuse
    try:
        yield
    finally:
        models.fit = fit


def require_torch() -> None:
    """Raise `InvalidRequest` where PyTorch is not installed."""
    if find_spec("torch") is None:
        raise InvalidRequest(
            "PyTorch is not installed here. Run pip install 'mpi-workbench[torch]' in the environment of the cluster."
        )


def rank_threads() -> int:
    """Return the number of threads of this rank: the number of the launcher, else an equal share of the cores."""
    threads = os.environ.get("OMP_NUM_THREADS", "")
    if threads.isdigit() and int(threads):
        return int(threads)
    from workbench.mpi import context

    sharing = context.current().node_ranks if context.is_rank() else 1
    return max(1, len(os.sched_getaffinity(0)) // sharing)

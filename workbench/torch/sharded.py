"""Checkpoints of models that are divided among ranks, which any number of ranks loads."""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict

from workbench.errors import InvalidRequest
from workbench.torch import manifest
from workbench.torch.context import BACKEND
from workbench.torch.epochs import Alone

if TYPE_CHECKING:
    from mpi4py import MPI


_UNWRITTEN = (
    "a file cannot be written, and the former checkpoint is unchanged",
    "Choose a folder with free space, with your permission to write, and whose parent exists",
)
_UNFIT = "the files do not fit the model or the optimizer", "Pass those that were written"


def save_sharded(path: str | os.PathLike[str], model: Any, optimizer: Any = (), **values: Any) -> None:
    """Write a model and its optimizer, each rank its part; collective in a `distributed` block.

    Parameters
    ----------
    path : str or path
        Folder on a file system of all ranks, whose parent exists. A checkpoint in the folder is replaced in one step,
        when the new one is complete.
    model : torch.nn.Module
        Module of `fully_shard`, of `parallelize_module` or of both, or a module that each rank has in full.
    optimizer : torch.optim.Optimizer or sequence of them, default=()
        Optimizers of the model, whose state is written too.
    **values : object
        Plain values that JSON has, for example ``epoch=3``; those of rank 0 are written.

    Raises
    ------
    InvalidRequest
        If the folder or a file cannot be written, other users can change the folder, or a value is not plain. The
        former checkpoint is kept.

    Notes
    -----
    torch.distributed.checkpoint (DCP) writes one file for each rank, and one with the metadata. Outside of a
    `distributed` block this process writes everything. A process that is killed while it writes leaves a folder behind,
    which the next call removes.

    Examples
    --------
    >>> save_sharded("run", model, optimizer, epoch=epoch)  # doctest: +SKIP
    """
    comm, folder = _communicator(), Path(path).expanduser()
    plain, shards = manifest.plain(folder, values), None
    if comm.rank == 0:
        with _worded(folder, *_UNWRITTEN):
            shards = manifest.new_shards(folder)
    shards = comm.bcast(shards)
    with _worded(folder, *_UNWRITTEN):
        saved: Any = dcp.save(_state(model, optimizer), checkpoint_id=shards, no_dist=isinstance(comm, Alone))
        # The list of a folder may be out of date on another node.
        names = sorted({manifest.METADATA, *(its.relative_path for its in saved.storage_data.values())})
        mine = [shards / name for name in names[comm.rank :: comm.size]]
        for file in mine:
            # DCP creates files with the umask, which may let a group write, and load_sharded() would refuse them.
            file.chmod(0o600)
        described = manifest.described(mine)
    files = {name: its for part in comm.allgather(described) for name, its in part.items()}
    if comm.rank == 0:
        with _worded(folder, *_UNWRITTEN):
            manifest.commit(shards, files, plain)
    # No rank returns before the checkpoint is complete.
    comm.bcast(None)


def load_sharded(path: str | os.PathLike[str], model: Any, optimizer: Any = ()) -> dict[str, Any]:
    """Load a checkpoint of `save_sharded` into a model and its optimizer; collective in a `distributed` block.

    Parameters
    ----------
    path : str or path
        Folder of the checkpoint.
    model : torch.nn.Module
        Module with the parameters of the one that was written. The number of ranks and the division of the parameters
        may differ.
    optimizer : torch.optim.Optimizer or sequence of them, default=()
        Optimizers of the model. Without them only the model is loaded.

    Returns
    -------
    dict
        The values of `save_sharded`.

    Raises
    ------
    InvalidRequest
        If the folder has no complete checkpoint, a file is missing, was changed, or belongs to another user, or the
        checkpoint is of another model or optimizer.

    Notes
    -----
    The files of DCP contain pickled objects, which can run code when they are loaded. So the folder and each file must
    belong to the user, other users must not be able to change them, and size and SHA-256 of a file must be those of
    the manifest. Each rank checks the metadata and a part of the other files, and no rank loads before all are checked.
    A checkpoint that another user has written, and the user has copied, passes these checks: load only what you trust.

    Outside of a `distributed` block this process loads everything, for example in a notebook.

    Examples
    --------
    >>> load_sharded("run", model, optimizer)  # doctest: +SKIP
    {'epoch': 3}
    """
    comm, folder = _communicator(), Path(path).expanduser()
    found: dict[str, Any] = comm.bcast(manifest.read(folder) if comm.rank == 0 else None)
    manifest.check(folder, found, comm.rank, comm.size)
    # No rank loads before all files are checked.
    comm.allgather(None)
    state = _state(model, optimizer)
    with _worded(folder, *_UNFIT):
        dcp.load(state, checkpoint_id=folder / found["shards"], no_dist=isinstance(comm, Alone))
    set_state_dict(model, optimizer, model_state_dict=state["model"], optim_state_dict=state["optimizer"])
    values: dict[str, Any] = found["values"]
    return values


def _communicator() -> MPI.Intracomm | Alone:
    """Return the communicator of the `distributed` block, or that of one process."""
    if not dist.is_initialized():
        return Alone()
    # The class of the group is not imported, because that loads MPI, also into a notebook.
    if dist.get_backend() != BACKEND:
        raise InvalidRequest(
            "checkpoint: torch.distributed was not initialized by workbench.torch.distributed(comm); save and load in "
            "a distributed() block"
        )
    comm: MPI.Intracomm = dist.group.WORLD.comm
    return comm


def _state(model: Any, optimizer: Any) -> dict[str, Any]:
    return dict(zip(("model", "optimizer"), get_state_dict(model, optimizer), strict=True))


@contextmanager
def _worded(folder: Path, message: str, remedy: str) -> Iterator[None]:
    """Raise errors of files and of DCP as InvalidRequest, and ignore its warning that there is one process."""
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "torch.distributed is disabled, unavailable or uninitialized")
            yield
    except (OSError, CheckpointException) as error:
        # DCP has the errors of all ranks, each with its traceback.
        reason = error if isinstance(error, OSError) else next(iter(error.failures.values()))[0]
        raise InvalidRequest(f"checkpoint {folder}: {message} ({str(reason).rstrip('.')}). {remedy}.") from error

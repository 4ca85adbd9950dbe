"""Checkpoints of models that are divided among ranks, which any number of ranks loads, and their manifest.

A checkpoint is a folder with ``manifest.json`` and an inner folder, which the manifest names. The replacement of the
manifest makes another inner folder the current one, in one step.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import platform
import shutil
import stat
import uuid
import warnings
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_state_dict, set_state_dict

from workbench.errors import InvalidRequest
from workbench.host import files
from workbench.torch.context import BACKEND
from workbench.torch.epochs import Alone

if TYPE_CHECKING:
    from mpi4py import MPI


MANIFEST = "manifest.json"
_FORMAT = 1
_INNER = "shards-"
_UUID = "[0-9a-f]" * 32
# DCP's description of all other files, a pickle.
METADATA = ".metadata"


def new_shards(folder: Path) -> Path:
    """Create an inner folder for the files of a new checkpoint, and the folder if it is missing.

    Raises
    ------
    InvalidRequest
        If a folder cannot be created, or another user owns the folder, or can change it.
    """
    shards = folder / f"{_INNER}{uuid.uuid4().hex}"
    try:
        folder.mkdir(mode=0o755, exist_ok=True)
        _check_owner(folder.resolve())
        # Other users cannot change what they cannot enter.
        shards.mkdir(mode=0o700)
    except OSError as error:
        raise InvalidRequest(
            f"checkpoint {folder}: rank 0 on {platform.node()} cannot create the folder {error.filename} "
            f"({error.strerror}); choose a folder whose parent exists, and in which you have permission to write"
        ) from error
    return shards


def check_shared(shards: Path) -> None:
    """Raise InvalidRequest if the folders of `new_shards`, which another rank has created, are not on this node."""
    for path in (shards.parent, shards):
        # A node may remember that a file does not exist; but the file system itself refuses a second folder of a name.
        try:
            path.mkdir(mode=0o700)
        except FileExistsError:
            continue
        except OSError as error:
            reason = error.strerror
        else:
            reason = "a new folder of that name can be created there"
            # Another rank of the node may have created the inner folder in the meantime.
            with contextlib.suppress(OSError):
                path.rmdir()
        raise InvalidRequest(
            f"checkpoint {shards.parent}: rank 0 has created the folder {path}, which {platform.node()} does not have "
            f"({reason}); choose a folder on a file system that all nodes share"
        )


def plain_values(folder: Path, values: dict[str, Any]) -> str:
    """Return values as JSON; raise InvalidRequest if JSON does not have them."""
    try:
        return json.dumps(values)
    except (TypeError, ValueError) as error:
        raise InvalidRequest(
            f"checkpoint {folder}: some of the values {', '.join(values)} are not plain ({error}); pass numbers, "
            "texts, lists and dictionaries"
        ) from error


def describe_files(files: Iterable[Path]) -> dict[str, dict[str, Any]]:
    """Return size and SHA-256 of files by their names."""
    found = {}
    for file in files:
        with file.open("rb") as content:
            digest = hashlib.file_digest(content, "sha256").hexdigest()
        found[file.name] = {"bytes": file.stat().st_size, "sha256": digest}
    return found


def commit(shards: Path, **entries: Any) -> None:
    """Make an inner folder the current checkpoint, with the entries of its manifest, and remove former ones."""
    content = {"format": _FORMAT, "shards": shards.name, **entries}
    content["sha256"] = _digest(content)
    files.sync_folder(shards)  # before the manifest that names its files
    files.replace(shards.parent / MANIFEST, json.dumps(content, indent=1).encode(), 0o644)
    for former in shards.parent.glob(f"{_INNER}{_UUID}"):
        if former != shards:
            shutil.rmtree(former, ignore_errors=True)
    for part in shards.parent.glob(f".{MANIFEST}.{_UUID}"):
        part.unlink()


def _digest(entries: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(entries).encode()).hexdigest()


def read(folder: Path) -> dict[str, Any]:
    """Return the manifest of a folder; raise InvalidRequest if it is missing, damaged, or of another user."""
    file = folder / MANIFEST
    try:
        _check_owner(folder.resolve())
        # The file that is checked is the one that is read, although its name may change.
        with open(os.open(file, os.O_RDONLY | os.O_NOFOLLOW), "rb") as content:
            _check_owner(file, os.fstat(content.fileno()))
            text = content.read()
    except FileNotFoundError as error:
        raise InvalidRequest(
            f"checkpoint {folder}: the folder has no {MANIFEST}, so save_sharded() has completed no checkpoint there; "
            "choose another folder"
        ) from error
    except OSError as error:
        raise InvalidRequest(
            f"checkpoint {folder}: {MANIFEST} must be a file that you can read, and no link ({error.strerror}); "
            "restore the file, or load another checkpoint"
        ) from error
    try:
        manifest: dict[str, Any] = json.loads(text)
        names = {manifest["shards"], *manifest["files"]}
        whole = manifest.pop("sha256") == _digest(manifest) and manifest["format"] == _FORMAT
        whole = whole and manifest.keys() >= {"model", "stepped", "values"}
        whole = whole and METADATA in manifest["files"] and all(Path(name).name == name for name in names)
    except (ValueError, KeyError, TypeError, AttributeError):
        whole = False
    if not whole:
        raise InvalidRequest(
            f"checkpoint {folder}: {MANIFEST} is damaged, or was written by another version of the workbench; restore "
            "the file, or load another checkpoint"
        )
    return manifest


def check(folder: Path, manifest: dict[str, Any], rank: int, size: int) -> None:
    """Raise InvalidRequest if the folders, DCP's metadata or the part of a rank of the other files are not as written.

    Each rank loads the metadata, a pickle, so each rank checks the metadata and the folders.
    """
    shards, files = folder / manifest["shards"], manifest["files"]
    for part in (folder.resolve(), shards):
        # Without them the metadata is missing, and the error names the metadata.
        if part.exists():
            _check_owner(part)
    for name in (METADATA, *sorted({*files} - {METADATA})[rank::size]):
        _check_file(shards / name, files[name])


def _check_file(file: Path, expected: Any) -> None:
    """Raise InvalidRequest unless a file belongs to the user and has the expected size and SHA-256."""
    if not file.exists():
        raise InvalidRequest(
            f"checkpoint {file.parent.parent}: {file.parent.name} has no file {file.name} on this node; restore the "
            "file, load another checkpoint, or choose a file system that all nodes share"
        )
    _check_owner(file)
    if (found := describe_files([file])[file.name]) != expected:
        raise InvalidRequest(
            f"checkpoint {file.parent.parent}: {file.parent.name}/{file.name} has changed since it was written (found "
            f"{found}, expected {expected}); restore the file, or load another checkpoint",
            given=file.name,
        )


def _check_owner(path: Path, status: os.stat_result | None = None) -> None:
    """Raise InvalidRequest if another user owns a file or a folder, or can change it."""
    status, user = status or path.lstat(), os.geteuid()
    if status.st_uid != user:
        raise InvalidRequest(
            f"checkpoint: {path} belongs to user {status.st_uid}, not to you ({user}), and a checkpoint can run code "
            "when it is loaded; if you trust that user, copy the folder, and load the copy",
            given=status.st_uid,
        )
    if stat.S_IMODE(status.st_mode) & 0o022:
        raise InvalidRequest(
            f"checkpoint: other users can change {path} (mode {stat.S_IMODE(status.st_mode):o}), and a checkpoint can "
            f"run code when it is loaded; if you trust its content, close it with: chmod go-w '{path}'",
            given=f"{stat.S_IMODE(status.st_mode):o}",
        )


_UNWRITTEN = (
    "a file cannot be written, and the former checkpoint is unchanged",
    "Choose a folder with free space in which you have permission to write",
)
_UNFIT = (
    "the files do not fit the model or the optimizer",
    "Pass the model and the optimizer with which the checkpoint was written",
)


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
        If the folder cannot be created, a node does not share it, a file cannot be written, other users can change the
        folder, or a value is not plain. The former checkpoint is kept.

    Notes
    -----
    torch.distributed.checkpoint (DCP) writes one file for each rank, and one with the metadata. Outside of a
    `distributed` block this process writes everything. A process that is killed while it writes leaves a folder behind,
    which the next call removes.

    Examples
    --------
    >>> import torch
    >>> save_sharded("run", torch.nn.Linear(2, 2), epoch=3)
    """
    comm, folder, optimizers = _communicator(), Path(path).expanduser(), _listed(optimizer)
    plain, shards = plain_values(folder, values), None
    if comm.rank == 0:
        shards = new_shards(folder)
    shards = comm.bcast(shards)
    check_shared(shards)
    # No rank writes before all nodes have been checked: DCP would create the folders that are missing.
    comm.allgather(None)
    with _initialized(optimizers) as stepped:
        state = _state(model, optimizers)
    with _worded(folder, *_UNWRITTEN):
        dcp.save(state, checkpoint_id=shards, no_dist=isinstance(comm, Alone))
        names: list[str] = []
        if comm.rank == 0:
            # Only new releases of torch return the names, and the list of a folder may be out of date on another node.
            stored: Any = dcp.FileSystemReader(shards).read_metadata().storage_data
            names = sorted({METADATA, *(storage.relative_path for storage in stored.values())})
        names = comm.bcast(names)
        mine = [shards / name for name in names[comm.rank :: comm.size]]
        for file in mine:
            # DCP creates files with the umask, which may let a group write, and load_sharded() would refuse them.
            file.chmod(0o600)
        described = describe_files(mine)
    files = {name: entry for part in comm.allgather(described) for name, entry in part.items()}
    if comm.rank == 0:
        with _worded(folder, *_UNWRITTEN):
            entries = {"stepped": stepped, "stateless": _stateless(state["optimizer"]), "values": json.loads(plain)}
            commit(shards, files=files, model=sorted(state["model"]), **entries)
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

    An optimizer that had made no step when it was written has made none afterwards. Gradients are kept.

    Outside of a `distributed` block this process loads everything, for example in a notebook.

    Examples
    --------
    >>> import torch
    >>> save_sharded("run", torch.nn.Linear(2, 2), epoch=3)
    >>> load_sharded("run", torch.nn.Linear(2, 2))
    {'epoch': 3}
    """
    comm, folder, optimizers = _communicator(), Path(path).expanduser(), _listed(optimizer)
    found: dict[str, Any] = comm.bcast(read(folder) if comm.rank == 0 else None)
    check(folder, found, comm.rank, comm.size)
    # No rank loads before all files are checked.
    comm.allgather(None)
    with _initialized(optimizers) as stepped, _complete(optimizers):
        state = _state(model, optimizers)
        _check_model(folder, {*found["model"]}, {*state["model"]})
        if len(optimizers) not in {0, len(found["stepped"])}:
            raise InvalidRequest(
                f"checkpoint {folder}: the number of optimizers is {len(optimizers)}, and was {len(found['stepped'])} "
                "when the checkpoint was written. Pass the same number of optimizers, or none.",
                option="optimizers",
            )
        stateless = found.get("stateless", [])
        for name in stateless:
            state["optimizer"].get("state", {}).pop(name, None)
        with _worded(folder, *_UNFIT):
            dcp.load(state, checkpoint_id=folder / found["shards"], no_dist=isinstance(comm, Alone))
        parts = {"model_state_dict": state["model"], "optim_state_dict": state["optimizer"]}
        set_state_dict(model, optimizers, **parts, options=StateDictOptions(strict=not stateless))
        stepped[:] = found["stepped"]
    values: dict[str, Any] = found["values"]
    return values


def _communicator() -> MPI.Intracomm | Alone:
    """Return the communicator of the `distributed` block, or that of one process."""
    if not dist.is_initialized():
        return Alone()
    # The class of the group is not imported, because that loads MPI, also into a notebook.
    if dist.get_backend() != BACKEND:
        raise InvalidRequest(
            "checkpoint: torch.distributed was not initialized with workbench.torch.distributed(comm). Save and load "
            "in a distributed() block."
        )
    comm: MPI.Intracomm = dist.group.WORLD.comm
    return comm


def _listed(optimizer: Any) -> list[torch.optim.Optimizer]:
    return [optimizer] if isinstance(optimizer, torch.optim.Optimizer) else list(optimizer)


def _weights(optimizer: torch.optim.Optimizer) -> list[torch.Tensor]:
    return [weight for group in optimizer.param_groups for weight in group["params"]]


def _state(model: Any, optimizers: list[torch.optim.Optimizer]) -> dict[str, Any]:
    return dict(zip(("model", "optimizer"), get_state_dict(model, optimizers), strict=True))


@contextmanager
def _initialized(optimizers: list[torch.optim.Optimizer]) -> Iterator[list[bool]]:
    """Let PyTorch make missing states of optimizers; yield for each optimizer whether its state is kept afterwards.

    PyTorch makes them by a step without gradients, which counts as a step, and removes existing gradients.
    """
    stepped = [bool(each.state) for each in optimizers]
    weights = [weight for each in optimizers for weight in _weights(each)]
    gradients = [weight.grad for weight in weights]
    for weight in weights:
        weight.grad = None
    try:
        yield stepped
    finally:
        for weight, gradient in zip(weights, gradients, strict=True):
            weight.grad = gradient
        for each, kept in zip(optimizers, stepped, strict=False):
            if not kept:
                each.state.clear()


@contextmanager
def _complete(optimizers: list[torch.optim.Optimizer]) -> Iterator[None]:
    """Let PyTorch make the states of all weights, of which it makes all or none; restore former ones after an error."""
    former = {
        each: dict(each.state)
        for each in optimizers
        if any(weight.requires_grad and weight not in each.state for weight in _weights(each))
    }
    try:
        for each in former:
            each.state.clear()
        yield
    except BaseException:
        for each, states in former.items():
            each.state.clear()
            each.state.update(states)
        raise


def _stateless(state: dict[str, Any]) -> list[str]:
    """Return the weights without a state, such as those that have had no gradient so far."""
    names = {name for group in state.get("param_groups", []) for name in group["params"]}
    return sorted(names - state.get("state", {}).keys())


def _check_model(folder: Path, written: set[str], keys: set[str]) -> None:
    """Raise InvalidRequest if a checkpoint has other weights and buffers than a model."""
    if written == keys:
        return
    only = [
        ", ".join([*sorted(some - others)[:3], *["..."] * (len(some - others) > 3)]) or "none"
        for some, others in ((written, keys), (keys, written))
    ]
    raise InvalidRequest(
        f"checkpoint {folder}: the checkpoint is of another model. Only the checkpoint has: {only[0]}. Only the model "
        f"has: {only[1]}. Pass the model that was written."
    )


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

"""Save placed collections and objects, and restore them on any number of ranks.

The ranks read and write all files, also those of objects, since the file system is theirs: a notebook need not have it.
"""

from __future__ import annotations

import functools
import itertools
import os
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from workbench.checkpoint import arrays, folder, kept, rank, save, values
from workbench.checkpoint.folder import Version
from workbench.checkpoint.protocol import CHECKPOINT, KEEP
from workbench.collective import serialize
from workbench.collective.api import run_on_ranks
from workbench.collective.request import request
from workbench.errors import InvalidRequest, PlacementError, WorkbenchError, did_you_mean
from workbench.launch.options import count
from workbench.placement import pinning, rows, sources
from workbench.placement.pinning import Pin, PinnedTask
from workbench.placement.place import PlacedBlocks
from workbench.session import moves
from workbench.session.current import current_client
from workbench.session.head_client import ClientHead

if TYPE_CHECKING:
    from distributed import Client
    from distributed.deploy.cluster import Cluster

    from workbench.collective.protocol import Call


# The default of `device`.
_SAVED = "as saved"


def checkpoint(cluster: Cluster, path: str | os.PathLike[str], named: Mapping[str, Any], keep: int) -> Path:
    """Write a new version of a checkpoint, and return its folder; see `workbench.MPICluster.checkpoint`."""
    from distributed import Client

    keep = count("keep", keep)
    if cluster.asynchronous:
        raise InvalidRequest("checkpoint() needs a synchronous cluster. Use MPICluster.attach(name) in a thread.")
    if not named:
        raise InvalidRequest("checkpoint: nothing is named. Pass what to save by its name: X=X, model=model.")
    # A client that stays would be the current one of the notebook, and keep the cluster from its idle end. Its end, as
    # by Ctrl-C, ends the save.
    with Client(cluster, set_as_default=False) as client:
        root = absolute_path(path)
        calls = list(_writes(client, root, named).values())
        return _saved(client, CHECKPOINT, path=root, keep=keep, calls=calls)


def keep(comm: Any = None, /, *, rows: bool = False, **named: Any) -> Path | None:
    """Keep data without further attention: the cluster saves them now, from time to time, and before its job ends.

    Parameters
    ----------
    comm : mpi4py.MPI.Intracomm, optional
        In a call or a cell, its communicator: each of its ranks keeps its values, and `workbench.kept` returns them.
        In a notebook nothing.
    rows : bool, default=False
        In a call: the values are arrays that are divided among the ranks by rows, and any number of ranks can read
        them. Otherwise as many ranks as have kept the values.
    **named : object
        What to keep, by its name: as for `workbench.MPICluster.checkpoint`; in a call arrays, plain values, tensors
        and estimators. None: it is kept no longer.

    Returns
    -------
    pathlib.Path or None
        In a notebook the folder of the version that has all that is kept. In a call None.

    Raises
    ------
    InvalidRequest
        If an object is of another kind, a collection is not placed, or in a notebook, a file cannot be written.
    PlacementError
        If no client is connected to a cluster.

    Notes
    -----
    The folder is that of the option ``checkpoint`` of the start, by default ``workbench-kept/NAME-ID`` in the working
    directory of the cluster. `workbench.restore` without a path, or with the name of the cluster, reads it, also when
    the cluster has ended.

    In a call the values are copied at once, and written by a thread every ``every`` (an option of the start). A file
    that cannot be written is a warning, and the call continues.

    Examples
    --------
    >>> X = workbench.place(np.arange(8.0))
    >>> version = workbench.keep(X=X, note="before the training")
    >>> workbench.restore().note
    'before the training'
    """
    if comm is not None:
        kept.keep(comm, named, by_rows=rows)
        return None
    from dask.base import is_dask_collection

    client = current_client()
    calls = _writes(client, "", {name: value for name, value in named.items() if value is not None})
    if unknown := next((name for name in named if not folder.is_name(name)), None):
        raise InvalidRequest(option="name", given=unknown, allowed="a name of a variable")
    version = _saved(client, KEEP, named={**dict.fromkeys(named), **calls}, save=True)
    moves.note(client, {name: named[name] if is_dask_collection(named[name]) else None for name in named})
    return version


def keep_restored(client: Client, named: Mapping[str, Any]) -> None:
    """Keep collections that were restored from what the cluster keeps."""
    if named:
        head, calls = ClientHead(client, "a checkpoint"), _writes(client, "", named)
        client.sync(head.call, KEEP, client=client.id, named=calls, save=False)
        moves.note(client, named)


def _writes(client: Client, root: str, named: Mapping[str, Any]) -> dict[str, Call]:
    """Return the calls that write collections and objects, by name, when all blocks are computed."""
    calls, needs = {}, []
    for name, value in named.items():
        if not folder.is_name(name):
            raise InvalidRequest(option="name", given=name, allowed="a name of a variable")
        if (blocks := _blocks(client, name, value)) is None:
            contents = values.encode(name, value)
            calls[name] = serialize.own_call(
                client.id, "checkpoint", save.write_object, root, name, contents, ranks=[0]
            )
        else:
            options: dict[str, Any] = {"client": client, "result": "root", "limit": None, "timeout": None}
            arguments = [blocks.collection, root, name, blocks.per]
            made = request(save.write, arguments, {}, **options, name="checkpoint", writes=False)
            made.message["work"]["counted"] = False
            calls[name] = made.message
            needs += made.needs
    client.sync(pinning.wait_computed, needs, "a collection of a checkpoint")
    return calls


def _saved(client: Client, operation: str, **message: Any) -> Path:
    """Have the head write a version, and return its folder."""
    head = ClientHead(client, "a checkpoint")
    try:
        answer = client.sync(head.begin, operation, client=client.id, **message)
    except WorkbenchError as error:
        raise error.with_traceback(None) from None  # the message has all facts
    serialize.raise_failure(answer, "checkpoint")
    return Path(serialize.loads(answer["values"][0]))


def absolute_path(path: str | os.PathLike[str], option: str = "path") -> str:
    """Return the absolute path of a folder; raise InvalidRequest with the name of the option if that is no path."""
    try:
        absolute = str(Path(path).expanduser().absolute())
    except (RuntimeError, TypeError):
        absolute = ""
    if not str(path) or not absolute or "\0" in absolute:
        raise InvalidRequest(option=option, given=path, allowed="the path of a folder whose parent exists")
    return absolute


def _blocks(client: Client, name: str, value: Any) -> PlacedBlocks | None:
    """Return the blocks of a placed collection; None for an object."""
    from dask.base import is_dask_collection

    if not is_dask_collection(value):
        return None
    if sources.find_blocks(value) is None:
        raise PlacementError(
            f"checkpoint: {name} is not placed. Place the collection first, {name} = place({name}), or write it "
            "with Dask, for example to_zarr or to_parquet."
        )
    dtype = None if sources.is_frame(value) else value.dtype
    if dtype is not None and arrays.zarr_type(dtype) is None:
        raise InvalidRequest(
            f"checkpoint: {name} has the dtype {dtype}, for which Zarr has no type. Convert {name} to another dtype "
            "first."
        )
    return PlacedBlocks.of(value, client)


def restore(
    path: str | os.PathLike[str] | None = None,
    *names: str,
    version: int | None = None,
    device: str | None = _SAVED,
    client: Client | None = None,
) -> SimpleNamespace:
    """Read a checkpoint of `MPICluster.checkpoint` or `workbench.keep`, on any number of ranks.

    Parameters
    ----------
    path : str or path, optional
        Folder of the checkpoint, on a file system that all nodes share; or the name of a cluster that was started in
        this folder, also of one that has ended, for what it has kept last. Default: what the cluster of the client
        keeps.
    *names : str
        What to restore. Default: all.
    version : int, optional
        Number of the version. Default: the newest one.
    device : str or None, default="as saved"
        Device of PyTorch for the blocks that were on a device; None: NumPy arrays.
    client : distributed.Client, optional
        Default: the current client.

    Returns
    -------
    types.SimpleNamespace
        The collections, placed on the ranks of the client by their rows, and the objects, each as an attribute. Of a
        value that a call keeps: a list with the value of each rank, or with ``rows=True`` the array of all rows.

    Raises
    ------
    CheckpointNotFound
        If the folder has no complete version, or not the one that is named.
    InvalidRequest
        If the version does not have one of the names, a file is missing, was changed or is a link, or others than its
        owner can change the folder.
    PlacementError
        If there is no client, or no rank.

    Notes
    -----
    Collections that were placed together are together again, if they have the same number of rows. The files contain
    no pickles, so that a checkpoint of another user may have wrong numbers, but runs no code.

    Examples
    --------
    >>> version = cluster.checkpoint("run", X=workbench.place(np.arange(8.0)), epoch=3)
    >>> saved = workbench.restore("run")
    >>> int(saved.X.sum().compute()), saved.epoch
    (28, 3)
    """
    client, root = current_client(client), "" if path is None else absolute_path(path)
    on_first = functools.partial(run_on_ranks, client=client, ranks=[0], result="root")
    found: Version = on_first(rank.read_version, root, version)
    for name in names:
        if name not in found.entries:
            where, near = found.folder, did_you_mean(name, found.entries)
            message = f"checkpoint {where.parent}: {where.name} has no {name!r}: {near}"
            raise InvalidRequest(message, option="name", given=name, allowed=found.entries)
    wanted = list(names or found.entries)
    objects = [name for name in wanted if found.entries[name]["kind"] == save.OBJECT]
    by_calls = {name for name in wanted if found.entries[name]["kind"] == kept.CALL}
    limit = sum(info.bytes for name in (*objects, *by_calls) for info in found.files_of(name).values()) + (64 << 20)
    parts = on_first(rank.read_parts, found, wanted, limit=limit)
    restored, blocks = {}, []
    for name, part in parts.items():
        if name in objects:
            restored[name] = _decoded(found, name, part)
        elif name in by_calls:
            restored[name] = part
        else:
            restored[name], futures = _placed(client, found, name, part, device)
            blocks += futures
    # Damaged files are an error here, and not of the first use.
    client.sync(pinning.wait_computed, blocks, f"the checkpoint {found.folder.parent}")
    return SimpleNamespace(**restored)


def _placed(client: Client, version: Version, name: str, meta: Any, device: str | None) -> tuple[Any, list[Any]]:
    """Return a collection whose blocks the ranks read, and the futures of the blocks."""
    entry = version.entries[name]
    if entry["device"] is not None and device != _SAVED:
        entry = {**entry, "device": device}
    places: Sequence[Any]
    is_frame = entry["kind"] in rank.KINDS_OF_FRAMES
    ranks = pinning.target_workers(client, entry["per"])
    sizes = rows.split(sum(entry["rows"]) if is_frame else entry["shape"][0], len(ranks))
    if is_frame:
        places = rows.cuts(entry["rows"], sizes)
        entry = {key: value for key, value in entry.items() if key != "rows"}
    else:
        stops = itertools.accumulate(sizes)
        places = [(stop - size, stop) for size, stop in zip(sizes, stops, strict=True)]
    collection_name = sources.placed_name(entry["per"], uuid.uuid4().int, 0)
    keys = [(collection_name, number, *(0,) * (0 if is_frame else meta.ndim - 1)) for number in range(len(ranks))]
    calls = [
        PinnedTask(key, rank.read_block, (str(version.folder), name, entry, place), pin=Pin(each.address, size))
        for key, place, each, size in zip(keys, places, ranks, sizes, strict=True)
    ]
    futures = pinning.submit(client, calls, keys, priority=1)
    return sources.collection(meta, collection_name, dict(zip(keys, futures, strict=True)), sizes), futures


def _decoded(version: Version, name: str, content: Sequence[bytes]) -> Any:
    try:
        return values.decode(content[0], content[1])
    except Exception as error:
        raise folder.damaged(version.folder, f"{name}/{values.VALUE}") from error

"""Save placed collections and objects, and restore them on any number of ranks.

The ranks read and write all files, also those of objects, since the file system is theirs: a notebook need not have it.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import os
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from workbench.checkpoint import arrays, folder, rank, values
from workbench.checkpoint.folder import FileInfo, Version
from workbench.collective.api import run_on_ranks
from workbench.errors import InvalidRequest, PlacementError, WorkbenchError, did_you_mean
from workbench.launch.options import count
from workbench.placement import pinning, rows, sources
from workbench.placement.pinning import Pin, PinnedTask
from workbench.placement.place import PlacedBlocks
from workbench.session.current import current_client

if TYPE_CHECKING:
    from distributed import Client
    from distributed.deploy.cluster import Cluster


# The default of `device`.
_SAVED = "as saved"


def checkpoint(cluster: Cluster, path: str | os.PathLike[str], named: Mapping[str, Any], keep: int) -> Path:
    """Write a new version of a checkpoint, and return its folder; see `workbench.MPICluster.checkpoint`."""
    from distributed import Client

    keep = count("keep", keep)
    if not named:
        raise InvalidRequest("checkpoint: nothing is named. Pass what to save by its name: X=X, model=model.")
    # A client that stays would be the current one of the notebook, and keep the cluster from its idle end.
    with Client(cluster, set_as_default=False) as client:
        placed, contents = {}, {}
        for name, value in named.items():
            if not folder.is_name(name):
                raise InvalidRequest(option="name", given=name, allowed="a name of a variable")
            if (blocks := _blocks(client, name, value)) is not None:
                placed[name] = blocks
            else:
                contents[name] = values.encode(name, value)
        on_first = functools.partial(run_on_ranks, client=client, ranks=[0], result="root")
        part = on_first(rank.begin, _absolute(path))
        try:
            entries, files = _write(client, part, placed)
            about = {"cluster": cluster.name, "ranks": len(client.has_what())}
            return Path(on_first(rank.commit, part, keep, about | {"entries": entries, "files": files}, contents))
        except BaseException:
            # The error says more than one of the removal, and a later save removes the folder too.
            with contextlib.suppress(WorkbenchError):
                on_first(rank.discard, part, timeout="1 minute")
            raise


def _write(client: Client, part: str, placed: Mapping[str, PlacedBlocks]) -> tuple[dict[str, Any], dict[str, FileInfo]]:
    """Write placed collections, and return the entries of the manifest and the files."""
    entries: dict[str, Any] = {}
    files: dict[str, FileInfo] = {}
    for name, blocks in placed.items():
        results = run_on_ranks(rank.write, blocks.collection, part, name, client=client)
        entries[name] = results[0][0] | {"per": blocks.per}
        for _, written in results:
            files |= written
    return entries, files


def _absolute(path: str | os.PathLike[str]) -> str:
    try:
        absolute = str(Path(path).expanduser().absolute())
    except (RuntimeError, TypeError):
        absolute = ""
    if not str(path) or not absolute or "\0" in absolute:
        raise InvalidRequest(option="path", given=path, allowed="the path of a folder whose parent exists")
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
    path: str | os.PathLike[str],
    *names: str,
    version: int | None = None,
    device: str | None = _SAVED,
    client: Client | None = None,
) -> SimpleNamespace:
    """Read a checkpoint of `MPICluster.checkpoint`, on any number of ranks.

    Parameters
    ----------
    path : str or path
        Folder of the checkpoint, on a file system that all nodes share.
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
        The collections, placed on the ranks of the client by their rows, and the objects, each as an attribute.

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
    client, root = current_client(client), _absolute(path)
    on_first = functools.partial(run_on_ranks, client=client, ranks=[0], result="root")
    found: Version = on_first(rank.read_version, root, version)
    for name in names:
        if name not in found.entries:
            message = f"checkpoint {root}: {found.folder.name} has no {name!r}: {did_you_mean(name, found.entries)}"
            raise InvalidRequest(message, option="name", given=name, allowed=found.entries)
    wanted = list(names or found.entries)
    objects = [name for name in wanted if found.entries[name]["kind"] == rank.OBJECT]
    limit = sum(info.bytes for name in objects for info in found.files_of(name).values()) + (64 << 20)
    parts = on_first(rank.read_parts, found, wanted, limit=limit)
    restored, blocks = {}, []
    for name, part in parts.items():
        if name in objects:
            restored[name] = _decoded(found, name, part)
        else:
            restored[name], futures = _placed(client, found, name, part, device)
            blocks += futures
    # Damaged files are an error here, and not of the first use.
    client.sync(pinning.wait_computed, blocks, f"the checkpoint {root}")
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

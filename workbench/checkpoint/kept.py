"""Values that calls keep: copies in the memory of the ranks, written from time to time, and before the job ends.

Each rank writes its own copies into separate files, in a thread. The next `keep` of all ranks completes the version.
"""

from __future__ import annotations

import threading
import time
import warnings
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from workbench.checkpoint import folder, values
from workbench.checkpoint.folder import FileInfo, Version
from workbench.checkpoint.protocol import KEPT_BY_CALLS, KEPT_VERSIONS
from workbench.errors import CheckpointNotFound, InvalidRequest, WorkbenchError
from workbench.placement import rows
from workbench.session.current import current_worker

CALL = "call"
"""Kind of the entry of a value that a call keeps."""
# Seconds between two versions when the job ends soon.
_SOON = 10.0


@dataclass
class _Copy:
    """A copy of a value of this rank."""

    tree: bytes
    arrays: list[Any]
    rank: int
    """Rank in the call, and the number of its ranks."""
    size: int
    count: int
    """Number of the `keep` of this name, the same on all ranks."""
    rows: int | None
    """Rows of an array that is divided by rows."""


_Known = dict[str, tuple[int, int, int, int | None]]
_Written = tuple[_Known, dict[str, FileInfo]]


@dataclass
class _Store:
    """The values that this rank keeps."""

    root: Path
    """Folder of the checkpoint."""
    cluster: str
    every: float
    """Seconds between two versions."""
    copies: dict[str, _Copy] = field(default_factory=dict)
    dropped: set[str] = field(default_factory=set)
    lock: threading.Lock = field(default_factory=threading.Lock)
    begun: float = field(default_factory=time.monotonic)
    """Time of the last version."""
    part: Path | None = None
    """Folder of a version that is being written."""
    writing: Future[_Written] | None = None
    stops: bool = False
    """Whether the head has asked running calls to stop."""
    announced: bool = False

    def due(self) -> bool:
        return self.writing is None and time.monotonic() - self.begun >= self.every


_stores: list[_Store] = []


def store_folder() -> str:
    """Return the folder of what this cluster keeps."""
    return str(_store().root)


def request_stop() -> None:
    """Ask running calls to stop: the job ends soon."""
    store = _store()
    store.stops, store.begun = True, -store.every
    store.every = min(store.every, _SOON)


def _store() -> _Store:
    if not _stores:
        if (record := getattr(current_worker(), "record", None)) is None:
            raise InvalidRequest(
                "this process is not a rank of a cluster, so a call cannot keep values here. Call the function with "
                "run_on_ranks or spmd."
            )
        _stores.append(_Store(Path(record.kept_in), record.name, record.every))
    return _stores[0]


# -- in a call, on all its ranks -----------------------------------------------------------------------------


def should_stop(comm: Any) -> bool:
    """Return whether the call should return soon, since its job ends; collective.

    Parameters
    ----------
    comm : mpi4py.MPI.Intracomm
        Communicator of the call.

    Returns
    -------
    bool
        The same on all ranks. True from the time when the cluster rejects new work, because its walltime is nearly up
        or the scheduler has requested the end of the job.

    Raises
    ------
    InvalidRequest
        If this process is not a rank of a cluster.

    Examples
    --------
    >>> @workbench.spmd(result="root")
    ... def train(comm):
    ...     step = workbench.kept(comm, "step", 0)
    ...     while step < 3 and not workbench.should_stop(comm):
    ...         step += 1
    ...         workbench.keep(comm, step=step)
    ...     return step
    >>> train()
    3
    """
    stops: bool = comm.bcast(_store().stops if comm.rank == 0 else False)
    return stops


def keep(comm: Any, named: Mapping[str, Any], *, by_rows: bool) -> None:
    """Keep values of a call; see `workbench.keep`."""
    store = _store()
    copies = {name: _copied(comm, name, value, by_rows) for name, value in named.items() if value is not None}
    with store.lock:
        for name in named:
            before = store.copies.pop(name, None)
            if name in copies:
                copies[name].count = 1 + (before.count if before else 0)
        store.copies |= copies
        store.dropped = (store.dropped | named.keys()) - copies.keys()
    if comm.rank == 0 and not store.announced:
        store.announced = True
        _tell_head()
    due, stops = comm.bcast((store.due(), store.stops) if comm.rank == 0 else (False, False))
    if store.writing is not None and (stops or comm.allreduce(int(store.writing.done())) == comm.size):
        _finish(comm, store)
    if due and store.writing is None:
        _begin(comm, store)
        if stops:
            _finish(comm, store)


def kept(comm: Any, name: str, default: Any = None) -> Any:
    """Return a value that a call has kept, also in an earlier job; collective.

    Parameters
    ----------
    comm : mpi4py.MPI.Intracomm
        Communicator of the call.
    name : str
        Name of the value.
    default : object, optional
        The result if there is no value of this name.

    Returns
    -------
    object
        The value of this rank, as of the last `workbench.keep` in which all ranks took part: from the memory of the
        ranks, else from the newest version of the cluster's checkpoint. A value with ``rows=True`` has the rows of
        this rank, divided as `workbench.place` does. Also an object that the notebook keeps.

    Raises
    ------
    InvalidRequest
        If the value was kept on another number of ranks and without ``rows=True``, is a placed collection, a file
        has changed, or this process is not a rank of a cluster.

    Examples
    --------
    >>> workbench.run_on_ranks(lambda comm: workbench.kept(comm, "epoch", 0), result="root")
    0
    """
    store = _store()
    mine = store.copies.get(name)
    known = comm.allgather(None if mine is None else (mine.rank, mine.size, mine.count))
    if mine is not None and known == [(rank, comm.size, mine.count) for rank in range(comm.size)]:
        return values.revived(mine.tree, [array.copy() for array in mine.arrays])
    version = comm.bcast(_newest(store.root) if comm.rank == 0 else None)
    if version is None or name not in version.entries or name in store.dropped:
        return default
    entry = version.entries[name]
    if entry["kind"] == "object":
        return _read(version, name, "")
    if entry["kind"] != CALL:
        raise InvalidRequest(
            f"{name} is a placed collection. Pass the collection as an argument: "
            f"workbench.restore(names...).{name} reads the collection.",
            option="name",
            given=name,
        )
    if entry["rows"] is not None:
        sizes = rows.split(sum(entry["rows"]), comm.size)
        return _rows(version, name, sum(sizes[: comm.rank]), sum(sizes[: comm.rank + 1]))
    if entry["ranks"] != comm.size:
        raise InvalidRequest(
            f"{name} was kept by {entry['ranks']} ranks, and this call has {comm.size}. Use as many ranks, or keep "
            "arrays that are divided by rows with rows=True.",
            option="name",
            given=name,
        )
    return _read(version, name, f"{comm.rank}/")


def _copied(comm: Any, name: str, value: Any, by_rows: bool) -> _Copy:
    if not folder.is_name(name):
        raise InvalidRequest(option="name", given=name, allowed="a name of a variable")
    if by_rows and not isinstance(value, np.ndarray):
        raise InvalidRequest(option=name, given=type(value).__name__, allowed="an array of NumPy with rows=True")
    tree, arrays = values.parts(name, value)
    copies = [np.array(array) for array in arrays]
    return _Copy(tree, copies, comm.rank, comm.size, 0, len(value) if by_rows else None)


def _tell_head() -> None:
    if (worker := current_worker()) is not None:
        worker.loop.add_callback(worker.batched_send, {"op": KEPT_BY_CALLS})


# -- files ---------------------------------------------------------------------------------------------------


def _begin(comm: Any, store: _Store) -> None:
    """Begin a version, whose files a thread of each rank writes; collective."""
    store.begun, found = time.monotonic(), None
    if comm.rank == 0:
        try:
            found = folder.begin(store.root)
        except WorkbenchError as error:
            _warn(error)
    store.part = comm.bcast(found)
    if store.part is not None:
        store.writing = Future()
        threading.Thread(
            target=_run, args=(store.writing, store.part, dict(store.copies)), name="keep", daemon=True
        ).start()


def _run(done: Future[_Written], part: Path, copies: Mapping[str, _Copy]) -> None:
    try:
        done.set_result(_write(part, copies))
    except BaseException as error:  # noqa: BLE001  (raised where the version is completed)
        done.set_exception(error)


def _write(part: Path, copies: Mapping[str, _Copy]) -> _Written:
    """Write the copies of this rank; return what the manifest needs."""
    known, files = {}, {}
    for name, each in copies.items():
        known[name] = each.rank, each.size, each.count, each.rows
        path = f"{name}/{each.rank}"
        with folder.worded(part.parent, f"write {name}"):
            Path(part, name).mkdir(mode=0o700, exist_ok=True)
            Path(part, path).mkdir(mode=0o700)
            files[f"{path}/{values.VALUE}"] = folder.write(Path(part, path, values.VALUE), [each.tree])
            file = folder.NewFile(Path(part, path, values.ARRAYS))
            with file:
                values.write_arrays(file, each.arrays)
            files[f"{path}/{values.ARRAYS}"] = file.info
    return known, files


def _finish(comm: Any, store: _Store) -> None:
    """Complete the version that is being written, or warn; collective."""
    if store.writing is None or store.part is None:
        return
    writing, part, store.writing, store.part = store.writing, store.part, None, None
    error = writing.exception()  # waits
    found = comm.gather(error or writing.result())
    if comm.rank:
        return
    try:
        if failed := next((each for each in found if isinstance(each, BaseException)), None):
            raise failed  # noqa: TRY301  (with the errors of the commit)
        entries, files = joined(found)
        folder.commit(
            part,
            KEPT_VERSIONS,
            without=store.dropped,
            created=time.time(),
            cluster=store.cluster,
            ranks=comm.size,
            entries=entries,
            files=files,
        )
    except Exception as error:  # noqa: BLE001  (the call continues, and the next version may succeed)
        folder.discard(part)
        _warn(error)


def _warn(error: Exception) -> None:
    warnings.warn(f"what the call keeps is not in files, and is kept in memory only: {error}", stacklevel=2)


def flush(comm: Any, part: Path, names: Sequence[str]) -> tuple[dict[str, Any], dict[str, FileInfo], set[str]]:
    """Write the copies of all ranks between two calls, apart from `names`, which the notebook keeps; collective.

    Return the entries, the files, and the names that calls have dropped.
    """
    store = _store()
    if store.writing is not None and store.part is not None:  # a call has ended before the version was complete
        store.writing.exception()
        folder.discard(store.part)
        store.writing = store.part = None
    with store.lock:  # a cell may keep values at this time
        copies = {name: each for name, each in store.copies.items() if name not in names}
        store.dropped.difference_update(names)
        dropped = set(store.dropped)
    entries, files = joined(comm.allgather(_write(part, copies)))
    return entries, files, dropped


def joined(found: Sequence[_Written]) -> tuple[dict[str, Any], dict[str, FileInfo]]:
    """Return the entries of the values that all their ranks have written at the same `keep`, and their files."""
    entries: dict[str, Any] = {}
    written = {path: info for _, files in found for path, info in files.items()}
    for name in dict.fromkeys(name for known, _ in found for name in known):
        pieces = sorted(known[name] for known, _ in found if name in known)
        _, size, count, _ = pieces[0]
        if [piece[:3] for piece in pieces] == [(rank, size, count) for rank in range(size)]:
            lengths = [piece[3] for piece in pieces]
            entries[name] = {"kind": CALL, "ranks": size, "rows": None if lengths[0] is None else lengths}
    return entries, {path: info for path, info in written.items() if path.partition("/")[0] in entries}


def check(name: str, entry: Mapping[str, Any], files: Mapping[str, FileInfo]) -> None:
    """Raise an error if the entry of a value is not valid."""
    lengths, size = entry["rows"], entry["ranks"]
    if lengths is not None and (len(lengths) != size or not all(type(each) is int and each >= 0 for each in lengths)):
        raise ValueError(name)
    for rank in range(size):
        for file in (values.VALUE, values.ARRAYS):
            files[f"{name}/{rank}/{file}"]


def _newest(root: Path) -> Version | None:
    try:
        version = folder.read(root)
    except CheckpointNotFound:
        return None
    for name, entry in version.entries.items():
        if entry["kind"] == CALL:
            check(name, entry, version.files)
    return version


def read(version: Version, name: str) -> Any:
    """Return the value of each rank in a list, or all rows of a value that is divided by rows."""
    entry = version.entries[name]
    if entry["rows"] is not None:
        return _rows(version, name, 0, sum(entry["rows"]))
    return [_read(version, name, f"{rank}/") for rank in range(entry["ranks"])]


def _rows(version: Version, name: str, start: int, stop: int) -> Any:
    """Return rows of a value that is divided by rows."""
    found, first = [], 0
    for rank, length in enumerate(version.entries[name]["rows"]):
        # Of no rows the first file has the shape and the dtype.
        if (first < stop and start < first + length) or (start == stop and rank == 0):
            part = _read(version, name, f"{rank}/")
            found.append(part[max(0, start - first) : max(0, stop - first)])
        first += length
    return np.concatenate(found)


def _read(version: Version, name: str, of_rank: str) -> Any:
    paths = [f"{name}/{of_rank}{file}" for file in (values.VALUE, values.ARRAYS)]
    try:
        return values.decode(*(folder.read_file(version.folder, path, version.files[path]) for path in paths))
    except InvalidRequest:
        raise
    except Exception as error:
        raise folder.damaged(version.folder, paths[0]) from error

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
    number: int
    """Time of the `keep` on its first rank: the same on all its ranks, and of no other `keep`."""
    rows: int | None
    """Rows of an array that is divided by rows."""


# The numbers, ranks, sizes and rows of the copies of a rank, by name.
_Known = dict[str, tuple[int, int, int, int | None]]


@dataclass(frozen=True)
class _Saving:
    """A version that is being written by the ranks of a call."""

    part: Path
    """Its folder."""
    size: int
    """Number of these ranks."""
    entries: Mapping[str, Any]
    files: Future[dict[str, FileInfo]]
    """Those of this rank."""

    def abandon(self) -> None:
        """Remove the folder when this rank writes no more files there."""
        self.files.add_done_callback(lambda _: folder.discard(self.part))


@dataclass(frozen=True)
class _State:
    """What a rank knows at a `keep`."""

    now: int
    due: bool
    stops: bool
    version: tuple[Path, int] | None
    """Folder and number of ranks of the version that is being written."""
    written: bool


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
    saving: _Saving | None = None
    stops: bool = False
    """Whether the head has asked running calls to stop."""
    announced: bool = False

    def state(self, saving: _Saving | None) -> _State:
        return _State(
            now=time.time_ns(),
            due=time.monotonic() - self.begun >= self.every,
            stops=self.stops,
            version=None if saving is None else (saving.part, saving.size),
            written=saving is not None and saving.files.done(),
        )


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
    saving = store.saving  # one time: a save of the head, between two calls, may come during a cell
    states = comm.allgather(store.state(saving))
    with store.lock:
        for name in named:
            store.copies.pop(name, None)
        for each in copies.values():
            each.number = states[0].now
        store.copies |= copies
        store.dropped = (store.dropped | named.keys()) - copies.keys()
    if comm.rank == 0 and not store.announced:
        store.announced = True
        _tell_head()
    due, stops = states[0].due, states[0].stops
    # The ranks differ if a call ended before all of them knew of the version, or had other ranks.
    if {state.version for state in states} not in ({None}, {(saving and saving.part, comm.size)}):
        _abandon(store)
    elif saving is not None:
        if not stops and not all(state.written for state in states):
            return
        _finish(comm, store, saving)
    if due and (saving := _begin(comm, store)) is not None and stops:
        _finish(comm, store, saving)


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
    known = comm.allgather(None if mine is None else (mine.rank, mine.size, mine.number))
    if mine is not None and known == [(rank, comm.size, mine.number) for rank in range(comm.size)]:
        return values.revived(mine.tree, [array.copy() for array in mine.arrays])
    version = comm.bcast(_newest(store.root) if comm.rank == 0 else None)
    entry = None if version is None or name in store.dropped else version.entries.get(name)
    # Ranks of another call may have a value that is not in files yet.
    for _, size, number in filter(None, known):
        if size != comm.size and (entry is None or number > entry.get("number", 0)):
            raise _of_other_ranks(name, size, comm.size)
    if version is None or entry is None:
        return default
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
        raise _of_other_ranks(name, entry["ranks"], comm.size)
    return _read(version, name, f"{comm.rank}/")


def _of_other_ranks(name: str, kept_by: int, ranks: int) -> InvalidRequest:
    return InvalidRequest(
        f"{name} was kept by {kept_by} ranks, and this call has {ranks}. Use as many ranks. Arrays that are divided by "
        "rows (rows=True) can be read by other ranks when they are in files, for example after workbench.keep().",
        option="name",
        given=name,
    )


def _copied(comm: Any, name: str, value: Any, by_rows: bool) -> _Copy:
    if not folder.is_name(name):
        raise InvalidRequest(option="name", given=name, allowed="a name of a variable")
    if by_rows and not (isinstance(value, np.ndarray) and value.ndim):
        allowed = "an array of NumPy with rows, for rows=True"
        raise InvalidRequest(option=name, given=type(value).__name__, allowed=allowed)
    tree, arrays = values.parts(name, value)
    copies = [np.array(array) for array in arrays]
    return _Copy(tree, copies, comm.rank, comm.size, 0, len(value) if by_rows else None)


def _tell_head() -> None:
    if (worker := current_worker()) is not None:
        worker.loop.add_callback(worker.batched_send, {"op": KEPT_BY_CALLS})


# -- files ---------------------------------------------------------------------------------------------------


def _begin(comm: Any, store: _Store) -> _Saving | None:
    """Begin a version, whose files a thread of each rank writes; None if that is not possible; collective."""
    store.begun, found = time.monotonic(), None
    copies, entries = _complete(comm, store)
    if comm.rank == 0:
        try:
            found = folder.begin(store.root)
        except WorkbenchError as error:
            _warn(error)
    part = comm.bcast(found)
    if part is None:
        return None
    store.saving = saving = _Saving(part, comm.size, entries, Future())
    threading.Thread(target=_run, args=(saving, copies), name="keep", daemon=True).start()
    return saving


def _run(saving: _Saving, copies: Mapping[str, _Copy]) -> None:
    try:
        saving.files.set_result(_write(saving.part, copies))
    except BaseException as error:  # noqa: BLE001  (raised where the version is completed)
        saving.files.set_exception(error)


def _write(part: Path, copies: Mapping[str, _Copy]) -> dict[str, FileInfo]:
    """Write copies of this rank, and return their files."""
    files = {}
    for name, each in copies.items():
        path = f"{name}/{each.rank}"
        with folder.worded(part.parent, f"write {name}"):
            Path(part, name).mkdir(mode=0o700, exist_ok=True)
            Path(part, path).mkdir(mode=0o700)
            files[f"{path}/{values.VALUE}"] = folder.write(Path(part, path, values.VALUE), [each.tree])
            file = folder.NewFile(Path(part, path, values.ARRAYS))
            with file:
                values.write_arrays(file, each.arrays)
            files[f"{path}/{values.ARRAYS}"] = file.info
    return files


def _abandon(store: _Store) -> None:
    saving, store.saving = store.saving, None
    if saving is not None:
        saving.abandon()


def _finish(comm: Any, store: _Store, saving: _Saving) -> None:
    """Complete the version that is being written, or warn; collective."""
    store.saving = None
    error = saving.files.exception()  # waits
    found = comm.gather(error or saving.files.result())
    if comm.rank:
        return
    try:
        if failed := next((each for each in found if isinstance(each, BaseException)), None):
            raise failed  # noqa: TRY301  (with the errors of the commit)
        folder.commit(
            saving.part,
            KEPT_VERSIONS,
            without=store.dropped,
            created=time.time(),
            cluster=store.cluster,
            ranks=comm.size,
            entries=dict(saving.entries),
            files={path: info for files in found for path, info in files.items()},
        )
    except Exception as error:  # noqa: BLE001  (the call continues, and the next version may succeed)
        folder.discard(saving.part)
        _warn(error)


def _warn(error: Exception) -> None:
    warnings.warn(f"what the call keeps is not in files, and is kept in memory only: {error}", stacklevel=2)


def flush(comm: Any, part: Path, names: Sequence[str]) -> tuple[dict[str, Any], dict[str, FileInfo], set[str]]:
    """Write the copies of all ranks between two calls, apart from `names`, which the notebook keeps; collective.

    Return the entries, the files, and the names that calls have dropped.
    """
    store = _store()
    _abandon(store)  # a call has ended before the version was complete
    with store.lock:
        store.dropped.difference_update(names)
        dropped = set(store.dropped)
    copies, entries = _complete(comm, store, names)
    files = {path: info for found in comm.allgather(_write(part, copies)) for path, info in found.items()}
    return entries, files, dropped


def _complete(comm: Any, store: _Store, without: Sequence[str] = ()) -> tuple[dict[str, _Copy], dict[str, Any]]:
    """Return the copies of this rank that all ranks of a `keep` have, and their entries, by name; collective."""
    with store.lock:  # a cell may keep values at this time
        copies = {name: each for name, each in store.copies.items() if name not in without}
    mine = {name: (each.number, each.rank, each.size, each.rows) for name, each in copies.items()}
    entries = joined(comm.allgather(mine))
    numbers = {name: number for name, (number, _) in entries.items()}
    complete = {name: each for name, each in copies.items() if numbers.get(name) == each.number}
    return complete, {name: {**entry, "number": number} for name, (number, entry) in entries.items()}


def joined(found: Sequence[_Known]) -> dict[str, tuple[int, dict[str, Any]]]:
    """Return the numbers and the entries of the values that all ranks of a `keep` have, the last one of a name."""
    pieces: dict[tuple[int, str], list[tuple[int, int, int | None]]] = {}
    for known in found:
        for name, (number, rank, size, length) in known.items():
            pieces.setdefault((number, name), []).append((rank, size, length))
    entries = {}
    for (number, name), each in sorted(pieces.items()):
        size, rows_of = each[0][1], {rank: length for rank, _, length in each}
        if len(each) == size and rows_of.keys() == set(range(size)):
            lengths = [rows_of[rank] for rank in range(size)]
            entries[name] = number, {"kind": CALL, "ranks": size, "rows": None if None in lengths else lengths}
    return entries


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

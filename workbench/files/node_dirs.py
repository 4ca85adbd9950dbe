"""Folders of one cluster on one node, private to the user and removed with the cluster.

Spilled data goes under Dask's or the system's temporary directory. Unix sockets get a folder of their own,
since their paths may have 107 characters and temporary directories of batch jobs are often longer. MPI's shared
memory gets one too: ranks that are killed leave their segments behind. Temporary directories may be on a disk that
nodes share: the folders have the node in their names. They are where everybody makes folders, so their names are
random: nobody can take one before the cluster has it.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import stat
import tempfile
import time
from pathlib import Path

from workbench.errors import RecordError
from workbench.fork import stub

# Segments of shared memory, and the description of the node that mpiexec hands to its ranks.
_MPICH_FILES = (("/dev/shm", "mpich_shm_*"), ("/tmp", "hydra_hwloc_xmlfile_*"))  # noqa: S108  (MPICH's, not ours)
# Of a node's folders: locked by every process that uses them.
_MARK = "in-use"
_marks: dict[str, int] = {}
# Seconds from its creation until it is locked for sure.
_BEING_MARKED = 10.0
# Seconds from the creation of a segment until its maker has certainly mapped the segment; in a container, from where
# processes on the host that use the same /dev/shm are not seen, until all ranks have mapped the segment.
_BEING_MADE, _BEING_MADE_UNSEEN = 0.2, 120.0
# The number of the first namespace of processes, in which all processes of a host are seen (of the kernel's
# include/linux/proc_ns.h).
_FIRST_NAMESPACE = 0xEFFFFFFC
# Seconds for ranks to end after their mpiexec.
_DYING = 2.0


def sockets(cluster_id: str) -> Path:
    """Return the folder for the cluster's Unix sockets on this node, made if need be."""
    return _private(_sockets(cluster_id, stub.node()))


def spill(cluster_id: str) -> Path:
    """Return the folder for data that the cluster's ranks write to disk on this node, made if need be."""
    return _private(_spill(cluster_id, stub.node()))


def shared_memory(cluster_id: str, *, make: bool = True) -> Path:
    """Return the folder for MPI's shared memory on this node, made if need be and unless `make` is False."""
    path = _shared_memory(cluster_id, stub.node())
    return _private(path) if make else path


def acquire_node(cluster_id: str, world: str) -> None:
    """Make the folder for the shared memory of a world on this node, and mark the cluster's folders as in use."""
    memory = shared_memory(cluster_id)
    _remove_forsaken(memory.parent, but=memory.name)
    (memory / world).mkdir(mode=0o700, exist_ok=True)
    # Held to the end of the process, however it ends.
    _marks[cluster_id] = mark = os.open(memory / _MARK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    fcntl.flock(mark, fcntl.LOCK_SH)


def _remove_forsaken(parent: Path, *, but: str) -> None:
    """Remove the folders of clusters whose processes on this node were all killed at once, and could not do so."""
    for mark in parent.glob(f"{stub.folder_name('*')}/{_MARK}"):
        if mark.parent.name == but or not _is_ours(mark.parent):
            continue
        with contextlib.suppress(OSError), open(mark, "rb") as file:
            if time.time() - os.fstat(file.fileno()).st_mtime > _BEING_MARKED:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                _remove(mark.parent.name, stub.node())


def release_node(cluster_id: str) -> None:
    """Remove the cluster's folders from this node if no other process of it uses them any more."""
    try:
        fcntl.flock(_marks[cluster_id], fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return
    _remove(cluster_id, stub.node())


def remove(cluster_id: str, *, but_shared_memory: bool = False) -> None:
    """Remove the folders of a cluster that has ended, and what killed ranks of MPICH have left on this node.

    Parameters
    ----------
    but_shared_memory
        Leave what ``mpiexec`` still needs to end.
    """
    _remove(cluster_id, "*", but_shared_memory=but_shared_memory)


def _remove(cluster_id: str, node: str, *, but_shared_memory: bool = False) -> None:
    """Remove the folders of a node, ``*``: of all nodes that have theirs at the same places."""
    kinds = (_sockets, _spill) if but_shared_memory else (_sockets, _spill, _shared_memory)
    for kind in kinds:
        path = kind(cluster_id, node)
        for found in filter(_is_ours, path.parent.glob(path.name)):
            shutil.rmtree(found, ignore_errors=True)
    deadline = time.monotonic() + _DYING
    # Ranks may outlive their mpiexec by a moment, and what they have mapped is theirs until then. They are looked for
    # before that, not after it: those that end meanwhile leave something to be removed.
    while True:
        dying = not but_shared_memory and _has_ranks(cluster_id)
        if not _remove_mpich_leftovers() or not dying or time.monotonic() > deadline:
            return
        time.sleep(0.02)


def _is_ours(path: Path) -> bool:
    """Tell whether something is this user's: others may make what has the name of a folder of ours."""
    try:
        return path.lstat().st_uid == os.geteuid()
    except OSError:
        return False  # it has gone, or its folder is another user's


def _has_ranks(cluster_id: str) -> bool:
    """Tell whether there are processes of ranks of a cluster."""
    words = (_read(process / "cmdline").split(b"\0") for process in Path("/proc").glob("[0-9]*"))
    return any(b"workbench.rank" in of_process and cluster_id.encode() in of_process for of_process in words)


def _remove_mpich_leftovers() -> bool:
    """Remove files of MPICH, which cannot be told a folder for them, that no process of this user uses any more.

    Returns
    -------
    left : bool
        Whether there are files that are in use.
    """
    files = [path for folder, pattern in _MPICH_FILES for path in Path(folder).glob(pattern)]
    age = _BEING_MADE if _sees_all_processes() else _BEING_MADE_UNSEEN
    orphans = [path for path in files if _is_ours_and_older(path, age)]
    if not orphans or not Path("/proc/self/maps").exists():
        return False
    used = b"".join(_uses(process) for process in Path("/proc").glob("[0-9]*"))
    left = [path for path in orphans if bytes(path) in used]
    for path in orphans:
        if path not in left:
            path.unlink(missing_ok=True)
    return bool(left)


def _sees_all_processes() -> bool:
    try:
        return Path("/proc/self/ns/pid").stat().st_ino == _FIRST_NAMESPACE
    except OSError:
        return False


def _is_ours_and_older(path: Path, age: float) -> bool:
    try:
        status = path.lstat()
    except FileNotFoundError:
        return False
    return stat.S_ISREG(status.st_mode) and status.st_uid == os.geteuid() and time.time() - status.st_mtime > age


def _uses(process: Path) -> bytes:
    """Return what tells the files that a process uses: its mappings and its variables."""
    return _read(process / "maps") + _read(process / "environ")


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:
        return b""  # it has ended, or is another user's


def _sockets(cluster_id: str, node: str) -> Path:
    return Path(stub.sockets_folder(cluster_id, node))


def _spill(cluster_id: str, node: str) -> Path:
    import dask

    base = os.path.expandvars(dask.config.get("temporary-directory") or tempfile.gettempdir())
    return Path(base) / f"{stub.folder_name(cluster_id)}-{node}-data"


def _shared_memory(cluster_id: str, _: str) -> Path:
    # The node's own wherever /tmp is. Marks are in it, and tell the cluster by its name.
    memory = "/dev/shm"  # noqa: S108  (as above)
    return Path(memory if os.access(memory, os.W_OK) else tempfile.gettempdir()) / stub.folder_name(cluster_id)


def _private(path: Path) -> Path:
    try:
        stub.make_private(str(path))
    except PermissionError as error:
        if error.errno is not None:
            raise
        raise RecordError(f"{error}.", hint="Start a new cluster: its folders have other names.") from None
    return path

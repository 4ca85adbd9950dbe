"""Folders of one cluster on one node, which only the user can open, and which are removed with the cluster.

Spilled data is written below Dask's or the system's temporary directory. Unix sockets have a separate folder,
because their paths have at most 107 characters, and temporary directories of batch jobs are often longer. MPI's shared
memory has a separate folder, because killed ranks leave their segments behind. Nodes may share a disk for temporary
directories, so the names of the folders contain the node. All users can create folders there, so the names are
unpredictable, and another user cannot create one in advance, also if this user sees all command lines and folders.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import shutil
import socket
import stat
import tempfile
import time
from pathlib import Path

from workbench.errors import RecordError
from workbench.host import stub

# Segments of shared memory, and the description of the node that mpiexec passes to its ranks: of MPICH, its UCX, and
# Intel MPI. UCX and Intel MPI remove theirs themselves, unless a rank ends before all have mapped them.
_MPICH_FILES = (
    *(("/dev/shm", pattern) for pattern in ("mpich_shm_*", "ucx_shm_posix_*", "Intel_MPI_*")),  # noqa: S108
    ("/tmp", "hydra_hwloc_xmlfile_*"),  # noqa: S108
)
# A file that each process locks while it uses the folders of the node.
_MARK = "in-use"
# A file with the path of the first folder above that was created for the folder of spilled data.
_PARENT = "created-parent"
# The length of the name of a folder before the node.
_PREFIX = len("workbench-0123456789abcdef-")
_marks: dict[str, int] = {}
# Seconds from the creation of a mark until it is locked.
_MARK_TIME = 10.0
# Seconds from the creation of a segment until its process has mapped it; in a container, from where processes on the
# host that use the same /dev/shm are not seen, until all ranks have mapped it.
_MAP_TIME, _MAP_TIME_IN_CONTAINER = 0.2, 120.0
# PROC_PID_INIT_INO of Linux: the first namespace of processes, in which all processes of a host are seen.
_FIRST_NAMESPACE = 0xEFFFFFFC
# Bytes of /dev/shm below which Open MPI may not start; containers often have 64 MiB, which are enough for 16 ranks.
_LEAST_SHARED = 32 << 20
# Seconds for ranks to end after their mpiexec.
_RANK_END_TIMEOUT = 2.0


def sockets(cluster_id: str) -> Path:
    """Return the folder for the cluster's Unix sockets on this node, and create the folder if it is missing."""
    remedy = "Set XDG_RUNTIME_DIR to a folder that you own, with a short path, or have /tmp repaired."
    return _private(_sockets(cluster_id, stub.node()), remedy)


def spill(cluster_id: str) -> Path:
    """Return the folder for spilled data of the cluster's ranks on this node, and create it if it is missing."""
    remedy = "Set temporary-directory of Dask, or TMPDIR, to a folder that you can write to."
    path = _spill(cluster_id, stub.node())
    missing = [folder for folder in path.parents if not os.path.exists(folder)]  # noqa: PTH110  (it never raises)
    _private(path, remedy)
    if missing:
        with contextlib.suppress(OSError):  # a full disk
            (path / _PARENT).write_text(str(missing[-1]), encoding="utf-8")
    return path


def shared_memory(cluster_id: str, *, make: bool = True) -> Path:
    """Return the folder for MPI's shared memory on this node; if `make`, create it if it is missing."""
    path = _shared_memory(cluster_id, stub.node())
    remedy = "Free space in /dev/shm; on a system without it, set TMPDIR to a folder that you own."
    return _private(path, remedy) if make else path


def acquire_node(cluster_id: str, world: str) -> None:
    """Create the folder for the shared memory of a world on this node, and mark the cluster's folders as in use."""
    memory = shared_memory(cluster_id)
    remove_forsaken(memory.parent, but=memory.name)
    (memory / world).mkdir(mode=0o700, exist_ok=True)
    # The lock is held until the process ends.
    _marks[cluster_id] = mark = os.open(memory / _MARK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    os.pwrite(mark, cluster_id.encode(), 0)
    fcntl.flock(mark, fcntl.LOCK_SH)


def remove_forsaken(parent: Path, *, but: str) -> None:
    """Remove the folders of clusters whose processes on this node were all killed."""
    for mark in parent.glob(f"{stub.folder_name('?' * 8, '', '*')}/{_MARK}"):
        if mark.parent.name == but or not _is_ours(mark.parent):
            continue
        with contextlib.suppress(OSError), open(mark, "rb") as file:
            if time.time() - os.fstat(file.fileno()).st_mtime > _MARK_TIME:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if cluster := file.read().decode():
                    _remove(cluster, stub.node())


def release_node(cluster_id: str) -> None:
    """Remove the cluster's folders from this node if no other process of the cluster uses them."""
    try:
        fcntl.flock(_marks[cluster_id], fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return
    _remove(cluster_id, stub.node())


def remove(cluster_id: str, *, but_shared_memory: bool = False) -> None:
    """Remove the folders of an ended cluster on this node, also the files of killed MPICH ranks.

    With `but_shared_memory`, the files that ``mpiexec`` still needs for its end stay.
    """
    _remove(cluster_id, "*", but_shared_memory=but_shared_memory)


def _remove(cluster_id: str, node: str, *, but_shared_memory: bool = False) -> None:
    """Remove the folders of a node, or with ``*`` of all nodes that share these places."""
    kinds = (_sockets, _spill) if but_shared_memory else (_sockets, _spill, _shared_memory)
    for kind in kinds:
        # On a full disk Python finds no folder for temporary files. A created parent may have other files.
        with contextlib.suppress(OSError):
            path = kind(cluster_id, node)
            paths = [*filter(_is_ours, path.parent.glob(path.name))]
            folders = [each for each in paths if each == kind(cluster_id, each.name[_PREFIX:].removesuffix("-data"))]
            made = {_read(folder / _PARENT).decode() for folder in folders}
            for folder in folders:
                shutil.rmtree(folder, ignore_errors=True)
            first = next((number for number, parent in enumerate(path.parents) if str(parent) in made), -1)
            for parent in path.parents[: first + 1]:
                parent.rmdir()
    deadline = time.monotonic() + _RANK_END_TIMEOUT
    # Ranks may outlive their mpiexec for a moment, and use their mapped files until then. The search for ranks is
    # before the removal, so that files of ranks that end in between are removed in the next round.
    while True:
        has_ranks = not but_shared_memory and _has_ranks(cluster_id)
        used, young = _remove_mpich_leftovers()
        if not (young or (used and has_ranks)) or time.monotonic() > deadline:
            return
        time.sleep(0.02)


def _is_ours(path: Path) -> bool:
    """Return whether this user owns a path: other users may create folders with the same names."""
    try:
        return path.lstat().st_uid == os.geteuid()
    except OSError:
        return False  # the path was removed, or another user owns its folder


def _has_ranks(cluster_id: str) -> bool:
    """Return whether processes of ranks of a cluster exist."""
    command_lines = (_read(process / "cmdline").split(b"\0") for process in Path("/proc").glob("[0-9]*"))
    return any(b"workbench.rank" in arguments and cluster_id[:16].encode() in arguments for arguments in command_lines)


def _remove_mpich_leftovers() -> tuple[bool, bool]:
    """Remove unused files of MPICH, whose folders cannot be configured.

    Returns whether some are still in use, and whether some are too young for a check, and will soon be old enough.
    """
    least = _MAP_TIME if _sees_all_processes() else _MAP_TIME_IN_CONTAINER
    paths = [path for folder, pattern in _MPICH_FILES for path in Path(folder).glob(pattern)]
    ages = {path: age for path in paths if (age := _age_of_ours(path)) is not None}
    orphans = [path for path, age in ages.items() if age > least]
    young = least == _MAP_TIME and any(0 <= age <= least for age in ages.values())
    if not orphans or not Path("/proc/self/maps").exists():
        return False, young
    in_use = b"".join(_used_files(process) for process in Path("/proc").glob("[0-9]*"))
    remaining = [path for path in orphans if bytes(path) in in_use]
    for path in orphans:
        if path not in remaining:
            path.unlink(missing_ok=True)
    return bool(remaining), young


def _sees_all_processes() -> bool:
    try:
        return Path("/proc/self/ns/pid").stat().st_ino == _FIRST_NAMESPACE
    except OSError:
        return False


def _age_of_ours(path: Path) -> float | None:
    """Return the age of a regular file of this user in seconds; None of anything else."""
    try:
        status = path.lstat()
    except FileNotFoundError:
        return None
    ours = stat.S_ISREG(status.st_mode) and status.st_uid == os.geteuid()
    return time.time() - status.st_mtime if ours else None


def _used_files(process: Path) -> bytes:
    """Return the mappings and the environment of a process, which contain the paths of used files."""
    return _read(process / "maps") + _read(process / "environ")


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:
        return b""  # the process has ended, or belongs to another user


def _sockets(cluster_id: str, node: str) -> Path:
    return Path(stub.sockets_folder(cluster_id, node))


def _spill(cluster_id: str, node: str) -> Path:
    import dask

    setting = dask.config.get("temporary-directory")
    base = os.path.expandvars(setting or tempfile.gettempdir())
    if setting and (unset := re.search(r"\$(\w+|\{[^}]*\})", base)):
        raise RecordError(
            f"the folder for spilled data is {setting!r}, but node {socket.gethostname()} does not have the variable "
            f"{unset[1].strip('{}')}.",
            given=setting,
            hint="Set the variable in job-script-prologue, or change local-directory of jobqueue.yaml or "
            "temporary-directory of Dask, which names the folder.",
        )
    return Path(base).expanduser() / f"{stub.folder_name(cluster_id, 'data', node)}-{node}-data"


def _shared_memory(cluster_id: str, _: str) -> Path:
    # This folder belongs to one node, also if /tmp is shared. All nodes of a world have one name for it, for MPI.
    memory = "/dev/shm"  # noqa: S108  (as above)
    is_usable = os.access(memory, os.W_OK) and shutil.disk_usage(memory).total >= _LEAST_SHARED
    return Path(memory if is_usable else tempfile.gettempdir()) / stub.folder_name(cluster_id, "memory")


def _private(path: Path, remedy: str) -> Path:
    try:
        stub.make_private(str(path))
    except OSError as error:
        if error.errno is None:
            raise RecordError(f"{error}.", hint="Start a new cluster, whose folders have other names.") from None
        raise RecordError(f"{path} cannot be created: {error}.", hint=remedy) from error
    return path

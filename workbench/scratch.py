"""Folders of one cluster on one node, private to the user and removed with the cluster.

Spilled data goes under Dask's or the system's temporary directory. Unix sockets get a folder of their own,
since their paths may have 107 characters and temporary directories of batch jobs are often longer. MPI's shared
memory gets one too: ranks that are killed leave their segments behind.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import stat
import tempfile
from pathlib import Path

from workbench.errors import RecordError


def sockets(cluster_id: str) -> Path:
    """Return the folder for the cluster's Unix sockets on this node, made if need be."""
    return _private(_sockets(cluster_id))


def spill(cluster_id: str) -> Path:
    """Return the folder for data that the cluster's ranks write to disk on this node, made if need be."""
    return _private(_spill(cluster_id))


def shared_memory(cluster_id: str, *, make: bool = True) -> Path:
    """Return the folder for MPI's shared memory on this node, made if need be and unless `make` is False."""
    path = _shared_memory(cluster_id)
    return _private(path) if make else path


def remove(cluster_id: str) -> None:
    """Remove the folders of a cluster from this node."""
    for folder in (_sockets(cluster_id), _spill(cluster_id), _shared_memory(cluster_id)):
        shutil.rmtree(folder, ignore_errors=True)


def _sockets(cluster_id: str) -> Path:
    runtime = os.environ.get("XDG_RUNTIME_DIR")
    if runtime and os.access(runtime, os.W_OK) and len(runtime) < 60:
        return Path(runtime) / "workbench" / cluster_id[:16]
    return _of_user("/tmp") / cluster_id[:16]  # noqa: S108  (made 0700 and checked)


def _spill(cluster_id: str) -> Path:
    import dask

    return _of_user(dask.config.get("temporary-directory") or tempfile.gettempdir()) / f"{cluster_id[:8]}-data"


def _shared_memory(cluster_id: str) -> Path:
    memory = "/dev/shm"  # noqa: S108  (as above)
    return _of_user(memory if os.access(memory, os.W_OK) else tempfile.gettempdir()) / cluster_id[:16]


def _of_user(base: str) -> Path:
    return Path(base) / f"workbench-{os.geteuid()}"


def _private(path: Path) -> Path:
    for folder in (path.parent, path):
        with contextlib.suppress(FileExistsError):
            folder.mkdir(mode=0o700, parents=True)
        status = folder.lstat()
        # /tmp is everybody's: a folder put there by somebody else would hand them our sockets.
        if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.geteuid() or stat.S_IMODE(status.st_mode) & 0o077:
            raise RecordError(
                f"{folder} has to be a folder of your own with mode 700, but it is not. "
                "Remove it, or set XDG_RUNTIME_DIR and TMPDIR to folders of yours."
            )
    return path

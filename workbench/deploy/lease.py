"""The lease of a cluster, which lasts while its folder exists and belongs to the cluster."""

from __future__ import annotations

import errno
import json
import os
from pathlib import Path

from workbench import config
from workbench.deploy.record import DAMAGED, RECORD, Record
from workbench.files import atomic_file

# Owners in the place of all users while an NFS server or its client cannot map names of users.
_NOBODY = (65534, 2**32 - 2)


def owns_lease(record: Record) -> bool:
    """Return whether the folder exists and belongs to the cluster.

    Raises
    ------
    OSError
        If this is not known: the file server does not answer, or does not know the owners of files.
    """
    try:
        owner = record.folder.lstat().st_uid
        if owner != os.geteuid():
            if owner in _NOBODY:
                raise OSError(errno.EIO, f"{record.folder} belongs to user {owner}, which stands for any user")
            return False
        return is_of(record.folder, record)
    except FileNotFoundError:
        return False


def is_of(folder: Path, record: Record) -> bool:
    """Return whether a folder belongs to this cluster; raises OSError if the record cannot be read."""
    content = atomic_file.read(folder / RECORD)
    try:
        return bool(json.loads(content)["id"] == record.id)
    except DAMAGED:
        # A damaged record belongs to no other cluster, and the head replaces it with the next change.
        return True


async def wait_until_lost(record: Record) -> None:
    """Return when the lease is lost."""
    # asyncio loads logging, without which the command, which imports this module, starts faster.
    import asyncio

    missed = 0
    while missed < 2:  # a second check, because some network file systems do not replace files atomically
        await asyncio.sleep(config.seconds("lease-interval") / (1 if not missed else 4))
        try:
            owned = await asyncio.to_thread(owns_lease, record)
        except OSError:
            continue  # the file server does not answer, so the state is unknown
        missed = 0 if owned else missed + 1

"""The lease of a cluster: its folder, for as long as it is there and still this cluster's."""

from __future__ import annotations

import json
import os
from pathlib import Path

from workbench import config
from workbench.deploy.record import DAMAGED, RECORD, Record


def owns_lease(record: Record) -> bool:
    """Tell whether the folder of the cluster is still there and still this cluster's.

    Raises
    ------
    OSError
        If that cannot be told now, as when a file server does not answer.
    """
    try:
        if record.folder.lstat().st_uid != os.geteuid():
            return False
        return is_of(record.folder, record)
    except FileNotFoundError:
        return False


def is_of(folder: Path, record: Record) -> bool:
    """Tell whether a folder is that of this cluster; raises OSError if it has no record that can be read."""
    content = (folder / RECORD).read_bytes()
    try:
        return bool(json.loads(content)["id"] == record.id)
    except DAMAGED:
        # Damaged, but nobody else's: the head writes it anew with its next change.
        return True


async def wait_until_lost(record: Record) -> None:
    """Return when the lease is lost."""
    # It loads logging: the command, which loads this module, starts faster without.
    import asyncio

    missed = 0
    while missed < 2:  # a second look: network file systems replace files less atomically than they say
        await asyncio.sleep(config.seconds("lease-interval") / (1 if not missed else 4))
        try:
            owned = await asyncio.to_thread(owns_lease, record)
        except OSError:
            continue  # the file server does not answer: that says nothing
        missed = 0 if owned else missed + 1

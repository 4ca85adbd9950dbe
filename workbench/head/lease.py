"""The lease of a cluster: its folder, for as long as it is there and still this cluster's."""

from __future__ import annotations

import asyncio

from workbench import config
from workbench.deploy import registry
from workbench.deploy.registry import Record


async def lost(record: Record) -> None:
    """Return when the lease is lost."""
    missed = 0
    while missed < 2:  # a second look: network file systems replace files less atomically than they say
        await asyncio.sleep(config.seconds("lease-interval") / (1 if not missed else 4))
        try:
            owned = await asyncio.to_thread(registry.owns_lease, record)
        except OSError:
            continue  # the file server does not answer: that says nothing
        missed = 0 if owned else missed + 1

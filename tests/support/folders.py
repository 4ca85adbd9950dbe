"""The folders that a cluster has on a node for sockets, spilled data and shared memory."""

from __future__ import annotations

import uuid
from pathlib import Path

from workbench import scratch
from workbench.record import Record


def folders_of(record: Record) -> list[Path]:
    """Return those of a cluster that are there."""
    probe = uuid.uuid4().hex
    places = {kind(probe).parent for kind in (scratch.sockets, scratch.spill, scratch.shared_memory)}
    scratch.remove(probe)
    return [path for place in places for path in place.glob(f"*{record.id[-16:]}*")]

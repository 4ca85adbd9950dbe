"""The folders that a cluster has on a node for sockets, spilled data and shared memory."""

from __future__ import annotations

import uuid
from pathlib import Path

from workbench.deploy.record import Record
from workbench.host import node_dirs


def folders_of(record: Record) -> list[Path]:
    """Return those of a cluster that are there."""
    probe = uuid.uuid4().hex
    places = {kind(probe).parent for kind in (node_dirs.sockets, node_dirs.spill, node_dirs.shared_memory)}
    node_dirs.remove(probe)
    return [path for place in places for path in place.glob(f"workbench-{record.id[:8]}*")]

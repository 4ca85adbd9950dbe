"""Worlds without processes, for what the head does with one."""

from __future__ import annotations

from typing import Any

from workbench.deploy.record import Record
from workbench.head.world_process import WorldProcess


def ready_world(index: int = 0, ranks: int = 2) -> WorldProcess:
    """Return a world whose ranks are all there."""
    nothing: Any = None
    world = WorldProcess(Record(name="a", ranks=ranks), nothing, index, ranks)
    for rank in range(ranks):
        world.joined(rank, {})
    return world

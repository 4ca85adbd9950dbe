"""Records of requested clusters."""

from __future__ import annotations

from typing import Any

from workbench.deploy.record import Record
from workbench.deploy.request import record_of
from workbench.launch.options import ClusterOptions


def request(ranks: Any = None, **options: Any) -> Record:
    """Return the record of a requested cluster, from the options of `ClusterOptions`."""
    return record_of(ClusterOptions(ranks, **options))

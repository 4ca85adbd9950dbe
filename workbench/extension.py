"""Names for packages that build on clusters, as `workbench.ml` and `workbench.tune` do.

Like the names of `workbench`, they are loaded at their first use.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from workbench.collective.api import SpmdFunction
    from workbench.collective.channel import Event, ask, has_listener, send
    from workbench.mpi.call_state import CallCancelled
    from workbench.mpi.communicator import Communicator
    from workbench.session.current import current_client

_MODULES = {
    "CallCancelled": "workbench.mpi.call_state",
    "Communicator": "workbench.mpi.communicator",
    "Event": "workbench.collective.channel",
    "SpmdFunction": "workbench.collective.api",
    "ask": "workbench.collective.channel",
    "current_client": "workbench.session.current",
    "has_listener": "workbench.collective.channel",
    "send": "workbench.collective.channel",
}

__all__ = [
    "CallCancelled",
    "Communicator",
    "Event",
    "SpmdFunction",
    "ask",
    "current_client",
    "has_listener",
    "send",
]


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module 'workbench.extension' has no attribute {name!r}")
    return getattr(import_module(_MODULES[name]), name)

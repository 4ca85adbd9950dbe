"""Names for packages that build on clusters, as `workbench.ml` and `workbench.tune` do.

Like the names of `workbench`, they are loaded at their first use.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from workbench import lazy

if TYPE_CHECKING:
    from workbench.collective.api import SpmdFunction as SpmdFunction
    from workbench.collective.channel import Event as Event
    from workbench.collective.channel import ask as ask
    from workbench.collective.channel import has_listener as has_listener
    from workbench.collective.channel import send as send
    from workbench.mpi.call_state import CallCancelled as CallCancelled
    from workbench.mpi.communicator import Communicator as Communicator
    from workbench.session.current import current_client as current_client

_HOMES = {
    "workbench.collective.api": "SpmdFunction",
    "workbench.collective.channel": "Event ask has_listener send",
    "workbench.mpi.call_state": "CallCancelled",
    "workbench.mpi.communicator": "Communicator",
    "workbench.session.current": "current_client",
}
__getattr__, __dir__, __all__ = lazy.names(__name__, _HOMES)

"""The state of a call or a cell on one rank: prepared, then running, then ended."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, Any, ClassVar

from workbench.placement import in_use

if TYPE_CHECKING:
    from collections.abc import MutableMapping

    from dask.typing import Key

    from workbench.mpi.call_state import CallState


class RankState:
    """A prepared or running call or cell of this rank.

    Parameters
    ----------
    id, name
        Identity, and name in messages for people.
    watch
        State of the MPI operations.

    Notes
    -----
    The thread that runs the code of the user calls `begin`. The event loop of the worker does everything else.
    """

    kind: ClassVar[str] = "call"
    """Name of the identity in the result of `where`."""

    def __init__(self, id: str, name: str, watch: CallState) -> None:  # noqa: A002
        self.id, self.name, self.watch = id, name, watch
        self.thread: int | None = None
        """Identity of the thread that runs the code."""
        self.started = time.monotonic()
        self.running = False
        self.taken: dict[Key, Any] = {}
        """Data of the worker that the code gets and may write to, by key."""

    def begin(self) -> None:
        """Note that the current thread runs the code from now on."""
        self.thread, self.started, self.running = threading.get_ident(), time.monotonic(), True

    def put_back(self, data: MutableMapping[Key, Any]) -> dict[Key, Any]:
        """Store the blocks, to which the code may have written, in the data of the worker; return the blocks."""
        taken, self.taken = self.taken, {}
        in_use.put_back(data, taken)
        return taken

    def where(self) -> dict[str, Any] | None:
        """Return the position, see `workbench.metrics.call_stack`; None if the code does not run."""
        from workbench.metrics.call_stack import whereabouts

        if not self.running or self.thread is None:
            return None
        return {self.kind: self.id, "name": self.name, **whereabouts(self.watch, self.thread, self.started)}

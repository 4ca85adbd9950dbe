"""The state of a call or a cell on one rank: ready, then running, then over."""

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
    """What a rank knows of a call or a cell that it is ready for, or in.

    Parameters
    ----------
    id, name
        Its identity, and what messages call it.
    watch
        Over what it does in MPI.

    Notes
    -----
    `begin` is for the thread that runs the code of the user, everything else for the event loop of the worker.
    """

    kind: ClassVar[str] = "call"
    """What `where` calls the identity."""

    def __init__(self, id: str, name: str, watch: CallState) -> None:  # noqa: A002
        self.id, self.name, self.watch = id, name, watch
        self.thread: int | None = None
        """Identity of the thread that runs it."""
        self.started = time.monotonic()
        self.running = False
        self.taken: dict[Key, Any] = {}
        """What it is given of the worker's data, and may write to, by key."""

    def begin(self) -> None:
        """Note that this thread runs it from now on."""
        self.thread, self.started, self.running = threading.get_ident(), time.monotonic(), True

    def put_back(self, data: MutableMapping[Key, Any]) -> dict[Key, Any]:
        """Keep among the worker's data what was written to blocks; return what was taken."""
        taken, self.taken = self.taken, {}
        in_use.put_back(data, taken)
        return taken

    def where(self) -> dict[str, Any] | None:
        """Return where it is, see `workbench.metrics.call_stack`; None if it does not run."""
        from workbench.metrics.call_stack import whereabouts

        if not self.running or self.thread is None:
            return None
        return {self.kind: self.id, "name": self.name, **whereabouts(self.watch, self.thread, self.started)}

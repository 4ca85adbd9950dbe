"""Waits until what a call or a cell is given has been computed."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from workbench.errors import CollectiveFailed

if TYPE_CHECKING:
    from distributed import Future


async def wait_computed(futures: Sequence[Future[Any]], what: str) -> None:
    """Wait for futures, of whatever client; on its event loop.

    Parameters
    ----------
    what
        What they are for, in messages: ``"an argument of fit"``.

    Raises
    ------
    CollectiveFailed
        If one was released, or lost with its rank.
    Exception
        The error of one that failed.
    """
    from distributed.client import FuturesCancelledError, _wait

    if any(future.status == "pending" for future in futures):
        # It is said below, for which of them.
        with contextlib.suppress(FuturesCancelledError):
            await _wait(futures)
    for future in futures:
        if future.cancelled():
            raise CollectiveFailed(
                f"{future.key!r}, {what}, was released, or lost with its rank: place the data again, X = place(X), or "
                "broadcast it again"
            )
        if future.status != "finished":
            await future._result()  # noqa: SLF001  (its error)

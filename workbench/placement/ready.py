"""Wait until the arguments of a call or a cell are computed."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from workbench.errors import CollectiveFailed, RankLost
from workbench.placement.pinning import cached_pin
from workbench.session.head_client import ClientHead

if TYPE_CHECKING:
    from distributed import Future


async def wait_computed(futures: Sequence[Future[Any]], role: str) -> None:
    """Wait for futures, on the event loop of their client; raise the error of a future that failed.

    Parameters
    ----------
    role
        Their role for messages: ``"an argument of fit"``.

    Raises
    ------
    RankLost
        If a block was lost with its rank.
    CollectiveFailed
        If a future was released, or its value was lost with a rank.
    HeadUnreachable
        If the head was lost, or the client was closed.
    """
    from distributed.client import FuturesCancelledError, _wait

    if any(future.status == "pending" for future in futures):
        # The loop below reports which future was canceled.
        with contextlib.suppress(FuturesCancelledError):
            await _wait(futures)
    for future in futures:
        if future.cancelled():
            pin, head = cached_pin(future), ClientHead(future.client, f"the wait for {role}")
            if pin is not None and pin.address not in (await head.call("identity"))["workers"]:
                raise RankLost(f"{future.key!r}, {role}, was lost with its rank. Place the data again: X = place(X).")
            raise CollectiveFailed(
                f"{future.key!r}, {role}, was released, or lost with its rank. Place the data again, X = place(X), or "
                "broadcast the object again."
            )
        if future.status != "finished":
            await future._result()  # noqa: SLF001  (raises the error of the future)

"""The Dask client that calls of the user use by default."""

from __future__ import annotations

from typing import TYPE_CHECKING

from workbench.errors import HeadUnreachable, PlacementError
from workbench.hints import LISTED, Command

if TYPE_CHECKING:
    from distributed import Client

# Address of the head of the last used client, because Dask forgets a client that has lost its scheduler.
_last = ""


def current_client(client: Client | None = None) -> Client:
    """Return `client`, or the current one.

    Raises
    ------
    PlacementError
        If no client exists, or the client has another type, is closed or is asynchronous.
    HeadUnreachable
        If its cluster has ended or is not reachable.
    """
    global _last  # noqa: PLW0603  (for a message)
    from distributed import Client, get_client

    try:
        client = get_client() if client is None else client
    except ValueError:
        raise PlacementError(
            f"no client is connected to a cluster{_gone(_last)}.",
            hint=(
                "Start a cluster (",
                Command("start"),
                ", or MPICluster(...).get_client()) or pass client=.",
                *((" ", *LISTED) if _last else ()),
            ),
        ) from None
    if not isinstance(client, Client):
        raise PlacementError(
            f"client={client!r:.80} is not a client. Pass a distributed.Client, for example the result of "
            "MPICluster(...).get_client()."
        )
    if client.asynchronous:
        raise PlacementError(
            "the client is asynchronous, and blocks are placed with synchronous clients only. Use Client(cluster) "
            "without asynchronous=True, in a separate thread if an event loop runs."
        )
    address = client.scheduler and client.scheduler.address
    if client.status == "connecting":
        raise HeadUnreachable(
            f"the client has lost the head of the cluster at {address}: the cluster has ended, or is not reachable "
            "from here.",
            hint=LISTED,
        )
    if client.status != "running":
        raise PlacementError(f"the client is {client.status}. Connect another client to a running cluster.")
    _last = str(address)
    return client


def _gone(address: str) -> str:
    if not address:
        return ""
    return (
        f". The last client, of the cluster at {address}, is closed: you have closed this client, or the cluster has "
        "ended or is not reachable from here"
    )

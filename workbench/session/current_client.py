"""The client of Dask that code of the user means."""

from __future__ import annotations

from typing import TYPE_CHECKING

from workbench.errors import HeadUnreachable, PlacementError
from workbench.hints import LISTED, Command

if TYPE_CHECKING:
    from distributed import Client

# Address of the head of the client that was used last: Dask forgets a client that has lost its scheduler.
_last = ""


def current_client(client: Client | None = None) -> Client:
    """Return the client given, else the current one.

    Raises
    ------
    PlacementError
        If there is none, if it is something else, if it is closed or if it is asynchronous.
    HeadUnreachable
        If its cluster has ended, or is cut off.
    """
    global _last  # noqa: PLW0603  (for a message)
    from distributed import Client, get_client

    try:
        client = get_client() if client is None else client
    except ValueError:
        raise PlacementError(
            f"no client is connected to a cluster{_gone(_last)}.",
            hint=(
                "Start one (",
                Command("start"),
                ", or MPICluster(...).get_client()) or pass client=.",
                *((" ", *LISTED) if _last else ()),
            ),
        ) from None
    if not isinstance(client, Client):
        raise PlacementError(
            f"client={client!r:.80} is no client: pass a distributed.Client, as MPICluster(...).get_client() returns it"
        )
    if client.asynchronous:
        raise PlacementError(
            "the client is asynchronous; blocks are placed from ordinary code: use Client(cluster) without "
            "asynchronous=True, in a separate thread if an event loop runs"
        )
    address = client.scheduler and client.scheduler.address
    if client.status == "connecting":
        raise HeadUnreachable(
            f"the client has lost the head of the cluster at {address}: the cluster has ended, or is cut off from "
            "here.",
            hint=LISTED,
        )
    if client.status != "running":
        raise PlacementError(f"the client is {client.status}: connect another one to a running cluster")
    _last = str(address)
    return client


def _gone(address: str) -> str:
    if not address:
        return ""
    return (
        f". The last one, of the cluster at {address}, is closed: you have closed it, or the cluster has ended or is "
        "cut off from here"
    )

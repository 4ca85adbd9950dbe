"""One large object from here to all ranks, with one upload."""

from __future__ import annotations

import asyncio
import uuid
from typing import TYPE_CHECKING, Any

from workbench import config
from workbench.collective import protocol
from workbench.errors import CollectiveTimeout, InvalidRequest, RankLost
from workbench.session.head_client import ClientHead

if TYPE_CHECKING:
    from distributed import Client, Future

# Seconds until a rank that does not answer a client counts as out of its reach.
_REACH = 2.0
# Seconds past the deadline for the head to say what was awaited.
_GRACE = 5.0


def broadcast(client: Client, obj: Any, *, timeout: float | str | None = None) -> Any:
    """Send an object to all ranks: it is uploaded once, and the ranks pass it on by ``MPI_Bcast``.

    Parameters
    ----------
    client
        A client of an `MPICluster`.
    obj
        Anything that can be pickled. A list is one object, too.
    timeout
        Seconds, or a time span such as ``"10 minutes"``, for all of it, waiting for the broadcasts of others
        included. Default: ``workbench.broadcast-timeout``.

    Returns
    -------
    distributed.Future
        Its value lies on every rank of every world, until the last reference to the future is gone. To be awaited if
        the client is asynchronous.

    Raises
    ------
    InvalidRequest
        If the object cannot be pickled, or the client is of another kind of cluster.
    RankLost
        If a rank is gone, or dies meanwhile.
    CollectiveFailed
        If a rank cannot take the object, or an earlier call on all ranks broke off in the middle.
    CollectiveTimeout
        If it was not done in time.

    Notes
    -----
    If it fails, nothing is kept on the ranks. Broadcasts of several clients run one after another; tasks that keep the
    ranks busy hold none of them up.

    Examples
    --------
    >>> weights = broadcast(client, np.ones(1_000_000))  # doctest: +SKIP
    >>> parts = map_blocks(gradient, X, y, weights)      # doctest: +SKIP
    """
    seconds = config.seconds("broadcast-timeout") if timeout is None else config.time_span("timeout", timeout)
    return client.sync(_send_what_can_be, client, obj, seconds)


def check(obj: Any) -> None:
    """Return if an object can be pickled; whatever makes that impossible is raised."""
    import cloudpickle

    # What arrays hold is not even looked at.
    cloudpickle.Pickler(_Nowhere(), protocol=5, buffer_callback=lambda _: None).dump(obj)


class _Nowhere:
    """A file that keeps nothing."""

    def write(self, contents: bytes) -> int:
        return len(contents)


async def _send_what_can_be(client: Client, obj: Any, timeout: float) -> Future[Any]:
    from distributed.utils import offload

    try:
        # Dask would log all there is to tell of it, and what it raises is not about the object.
        await offload(check, obj)
    except Exception as error:
        raise InvalidRequest(
            f"the {type(obj).__name__} cannot be sent to the ranks: {type(error).__name__}: {error}. It must be "
            "picklable, which open files, locks and connections are not"
        ) from error
    return await send(client, obj, timeout)


async def send(client: Client, obj: Any, timeout: float) -> Future[Any]:
    """Do what `broadcast` does, on the event loop of the client; `timeout` in seconds. The object can be pickled."""
    from distributed import Future

    await client  # an asynchronous one may not have been started yet
    deadline = asyncio.get_running_loop().time() + timeout
    head = ClientHead(client, "a broadcast", "Use client.scatter(obj, broadcast=True) there.")
    key = f"broadcast-{type(obj).__name__}-{uuid.uuid4().hex}"
    in_memory: Any = "memory"
    # Nobody sees it before it is what it says; if this fails, it takes what there is along.
    future: Future[Any] = Future(key, client, state=in_memory)
    try:
        async with asyncio.timeout_at(deadline + _GRACE):
            root = await head.begin(protocol.BROADCAST_BEGIN, key=key, client=client.id)
            await _upload(client, head, root, key, obj)
            left = deadline - asyncio.get_running_loop().time()
            await head.call(protocol.BROADCAST, key=key, client=client.id, timeout=left)
    except TimeoutError as error:
        future.release()
        if isinstance(error, CollectiveTimeout):
            raise
        raise CollectiveTimeout(
            f"a broadcast was not done within {timeout:g} s: allow more with timeout=, or look at the cluster's logs"
        ) from error
    except BaseException:
        future.release()
        raise
    return future


async def _upload(client: Client, head: ClientHead, root: str, key: str, obj: Any) -> None:
    from distributed.comm.core import CommClosedError
    from distributed.protocol.serialize import to_serialize

    value = to_serialize(obj)
    try:
        comm = await client.rpc.connect(root, timeout=_REACH)
    except OSError:
        await head.call(protocol.BROADCAST_UPLOAD, key=key, value=value, root=root)
    else:
        # Not through the head, which would have to take it in and send it out again.
        client.rpc.reuse(root, comm)
        try:
            await getattr(client.rpc(root), protocol.BROADCAST_UPLOAD)(key=key, value=value)
        except CommClosedError as error:
            raise RankLost("rank 0 was lost while it took the object in for a broadcast; no rank has it") from error

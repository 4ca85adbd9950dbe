"""One large object from this process to all ranks, with one upload."""

from __future__ import annotations

import asyncio
import uuid
from typing import TYPE_CHECKING, Any

from workbench import config
from workbench.collective import protocol, serialize
from workbench.errors import CollectiveTimeout, InvalidRequest, RankLost
from workbench.session.head_client import ClientHead

if TYPE_CHECKING:
    from distributed import Client, Future

# Seconds after which a client uploads through the head, if rank 0 does not answer.
_REACH = 2.0


def broadcast(client: Client, obj: Any, *, timeout: float | str | None = None) -> Any:
    """Send an object to all ranks with one upload, from which ``MPI_Bcast`` reaches all ranks.

    Parameters
    ----------
    client : distributed.Client
        A client of an `MPICluster`.
    obj : object
        Any object that can be pickled. A list is one object, too.
    timeout : float or str, optional
        Seconds, or a time span such as ``"10 minutes"``, for the whole broadcast, including the wait for other
        broadcasts. Default: 5 minutes.

    Returns
    -------
    distributed.Future
        Future whose value is on every rank of every world, until the last reference to the future is deleted. With an
        asynchronous client: an awaitable of this future.

    Raises
    ------
    InvalidRequest
        If the object cannot be pickled, or the client is of another kind of cluster.
    RankLost
        If a rank was lost before the broadcast or during the broadcast.
    CollectiveFailed
        If a rank cannot receive the object, or a rank has not returned from an earlier call.
    CollectiveTimeout
        If the broadcast has not ended within `timeout`.

    Notes
    -----
    After an error the ranks keep nothing of the object. Broadcasts of several clients run one after another. Running
    tasks do not delay a broadcast.

    Examples
    --------
    >>> weights = broadcast(client, np.ones(1_000_000))
    >>> client.gather([client.submit(len, weights, workers=[rank], pure=False) for rank in range(4)])
    [1000000, 1000000, 1000000, 1000000]
    """
    seconds = protocol.BROADCAST_S if timeout is None else config.time_span("timeout", timeout)
    return client.sync(_send_what_can_be, client, obj, seconds)


async def _send_what_can_be(client: Client, obj: Any, timeout: float) -> Future[Any]:
    from distributed.utils import offload

    try:
        # The error of Dask would not name the object, and Dask would log the whole traceback.
        await offload(serialize.check_for_ranks, obj)
    except Exception as error:
        raise InvalidRequest(
            f"the {type(obj).__name__} cannot be sent to the ranks: {type(error).__name__}: {error}. The object must "
            "be picklable; open files, locks and connections are not."
        ) from error
    return await send(client, obj, timeout)


async def send(client: Client, obj: Any, timeout: float) -> Future[Any]:
    """Broadcast a picklable object on the event loop of the client; `timeout` in seconds."""
    from distributed import Future

    await client  # an asynchronous client may not be started yet
    deadline = asyncio.get_running_loop().time() + timeout
    head = ClientHead(client, "a broadcast", "Use client.scatter(obj, broadcast=True) there.")
    key = f"broadcast-{type(obj).__name__}-{uuid.uuid4().hex}"
    in_memory: Any = "memory"
    # The caller gets the future only when the value is in memory. After an error its release drops the value.
    future: Future[Any] = Future(key, client, state=in_memory)
    beginning = asyncio.ensure_future(head.begin(protocol.BROADCAST_BEGIN, key=key, client=client.id))
    try:
        async with asyncio.timeout_at(deadline + protocol.CLIENT_BROADCAST_END_S):
            root = await asyncio.shield(beginning)
            await _upload(client, head, root, key, obj)
            left = deadline - asyncio.get_running_loop().time()
            await head.call(protocol.BROADCAST, key=key, client=client.id, timeout=left)
    except BaseException as error:
        # The release uses another connection than this request, and has no effect if the request arrives later.
        beginning.add_done_callback(lambda _: future.release())
        if isinstance(error, TimeoutError) and not isinstance(error, CollectiveTimeout):
            raise CollectiveTimeout(
                f"a broadcast was not done within {timeout:g} s. Increase timeout=, or read the logs of the cluster."
            ) from error
        raise
    return future


async def _upload(client: Client, head: ClientHead, root: str, key: str, obj: Any) -> None:
    from distributed.comm.core import CommClosedError
    from distributed.utils import offload

    value = await offload(serialize.serialized, obj)
    try:
        comm = await client.rpc.connect(root, timeout=_REACH)
    except OSError:
        await head.call(protocol.BROADCAST_UPLOAD, key=key, value=value, root=root)
    else:
        # A direct upload saves the head from receiving and sending the object.
        client.rpc.reuse(root, comm)
        try:
            await getattr(client.rpc(root), protocol.BROADCAST_UPLOAD)(key=key, value=value)
        except CommClosedError as error:
            raise RankLost(protocol.UPLOAD_LOST) from error

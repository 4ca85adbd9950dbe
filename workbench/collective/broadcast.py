"""One large object from this process to all ranks: one upload to rank 0, then a call that sends the object."""

from __future__ import annotations

import asyncio
import math
import uuid
from typing import TYPE_CHECKING, Any

from workbench import config
from workbench.collective import protocol, serialize
from workbench.errors import CollectiveFailed, CollectiveTimeout, InvalidRequest, RankLost
from workbench.session.head_client import ClientHead

if TYPE_CHECKING:
    from dask.typing import Key
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
        Future whose value is on every rank, until the last reference to the future is deleted. With an
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
    call: protocol.Call | None = None
    try:
        async with asyncio.timeout_at(deadline + protocol.CLIENT_CALL_END_S):
            ranks: list[str] = await asyncio.shield(beginning)
            await _upload(client, head, ranks[0], key, obj)
            call = _call(client, key, len(ranks), deadline - asyncio.get_running_loop().time())
            answer: protocol.Answer = await head.begin(protocol.CALL, **call)
            if "error" in answer:
                raise CollectiveFailed(  # noqa: TRY301  (with the end of the other errors)
                    f"rank {answer['rank']} cannot take part in a broadcast: {answer['error']['words']}. "
                    f"{answer['others']}".rstrip(),
                    ranks=(answer["rank"],),
                )
    except BaseException as error:
        if call is not None:
            client._send_to_scheduler({"op": protocol.CANCEL, "call": call["call"]})  # noqa: SLF001
        # The release uses another connection than this request, and has no effect if the request arrives later.
        beginning.add_done_callback(lambda _: future.release())
        if isinstance(error, TimeoutError) and not isinstance(error, CollectiveTimeout):
            raise CollectiveTimeout(
                f"a broadcast was not done within {timeout:g} s. Increase timeout=, or read the logs of the cluster."
            ) from error
        raise
    return future


def _call(client: Client, key: Key, ranks: int, timeout: float) -> protocol.Call:
    """Return the request for the call that sends an object from rank 0 to the other ranks."""
    return serialize.own_call(
        client.id,
        "broadcast",
        share,
        key,
        keys=[[key], *[[]] * (ranks - 1)],
        to_blocks=kept,
        timeout=None if timeout == math.inf else timeout,
        # A broadcast that may wait forever for a turn must not hold the turn forever.
        turn_timeout=protocol.BROADCAST_S if timeout == math.inf else None,
    )


def share(comm: Any, key: Key) -> Any:
    """Send an object from rank 0 to the other ranks; the function of the call."""
    from workbench.collective import broadcast_rank  # a notebook does not load MPI

    return broadcast_rank.share(comm, key)


def kept(blocks: Any, number: int) -> Any:  # noqa: ARG001  (as `workbench.placement.from_results.to_blocks`)
    """Return the result of `share`, which the ranks keep."""
    return blocks


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

"""Cells of code on all ranks, in IPython engines inside the ranks: the functions behind ``%%mpi``.

`run` runs a cell and returns its result. `evaluate` returns the value of an expression on each rank.
"""

from __future__ import annotations

import ast
import asyncio
import contextlib
import functools
import itertools
import queue
import time
import uuid
import weakref
from collections.abc import Callable, Coroutine, Mapping, Sequence
from concurrent.futures import CancelledError, wait
from concurrent.futures import Future as Promise
from typing import TYPE_CHECKING, Any

from workbench import config
from workbench.cells import namespaces, protocol
from workbench.cells.engine_client import CellOutput, EngineClient, forwarded
from workbench.cells.output import CellResult
from workbench.cells.run_cell import RunCell
from workbench.collective import broadcast
from workbench.collective.protocol import WHERE
from workbench.collective.serialize import dumps_for_ranks
from workbench.errors import CollectiveFailed, HeadUnreachable, InvalidRequest, PlacementError, RankLost, WorkbenchError
from workbench.placement import pinning
from workbench.placement.pinning import wait_computed
from workbench.positions import StallDetector
from workbench.session import current
from workbench.session.current import current_client
from workbench.session.head_client import ClientHead

if TYPE_CHECKING:
    from distributed import Client, Future

# Seconds past the end of a cell for the output of the ranks.
_GRACE = 10.0
# Seconds for answers of the head that the client can do without.
_ASK = 3.0
# Bytes of a plain value that are sent with a cell, and bytes of one that may be sent where a broadcast is impossible.
_VALUE, _AT_MOST = 1 << 20, 64 << 20
# Seconds for the broadcast of a value that can be sent with the cell: broadcasts wait for calls, cells do not.
_BROADCAST = 2.0

# The subject of errors of the head.
_PURPOSE = "a cell"

# By client: the connection as the head sent it, and the client of the engines.
_links: weakref.WeakKeyDictionary[Client, tuple[dict[str, Any], EngineClient]] = weakref.WeakKeyDictionary()


def run(
    code: str,
    names: Mapping[str, Any] | None = None,
    *,
    ranks: Sequence[int] | None = None,
    client: Client | None = None,
    timeout: float | str | None = None,
    values: bool = False,
    check: bool = False,
    shared: bool = False,
    show: Callable[[int, CellOutput], None] | None = None,
) -> CellResult:
    """Run a cell of code on all ranks at the same time, and return the result.

    Parameters
    ----------
    code
        Source text, as in a cell of a notebook. Its names are `comm`, a communicator of exactly the ranks that run the
        cell, `rank` and `size` of the world, `names`, and the names that earlier cells of this notebook have defined.
    names
        Objects by name. A placed collection becomes each rank's own block, a Dask future becomes the value of the
        future, and any other object is copied.
    ranks
        Ranks that run the cell. Default: all.
    client
        Default: the current client.
    timeout
        Seconds, or a time span such as ``"2 minutes"``, after which the cell is ended. Default: never.
    values
        Return the values of the last line of the cell.
    check
        Compare the buffers of all ranks in each collective operation. Default: the setting
        ``workbench.spmd.check-buffers``.
    shared
        Use the names that all notebooks share, instead of those of this notebook.
    show
        Called with the rank and the output whenever an output arrives.

    Raises
    ------
    InvalidRequest
        If the code has a syntax error, a rank does not exist, or an object cannot be sent. No rank has run the cell.
    PlacementError
        If a collection is not placed, or has no block on one of the ranks.
    RankLost
        If a rank was lost before the cell.
    CollectiveFailed
        If the ranks cannot run the cell.
    HeadUnreachable
        If the head or the engines do not answer.

    Notes
    -----
    Ctrl-C ends the cell. The result contains the interrupt, and each error of the cell.
    """
    check_syntax(code)
    seconds = None if timeout is None else config.time_span("timeout", timeout)
    patience = config.seconds("spmd.watchdog")
    client = current_client(client)
    sent: list[Future[Any]] = []
    transfers = {name: transfer(client, name, value, sent) for name, value in (names or {}).items()}
    cell = uuid.uuid4().hex
    try:
        granted = _granted(client, cell, _begin(client, cell, ranks, transfers, check=check), patience)
        link = _link(client, granted)
        result = CellResult(list(granted["ranks"]))
        namespace = namespaces.SHARED if shared else current.notebook_id()
        message = RunCell(cell, code, config.size("spmd.result-limit") if values else None, namespace)
        CellRun(client, link, result, granted["idents"], message).follow(seconds, StallDetector(patience), show)
    except BaseException:
        _cancel(client, cell, "the notebook canceled the cell")
        raise
    return result


def evaluate(
    expression: str,
    *,
    ranks: Sequence[int] | None = None,
    client: Client | None = None,
    shared: bool = False,
) -> list[Any]:
    """Return the value of an expression on each rank, in rank order.

    Raises
    ------
    WorkbenchError
        As of `run` and `CellResult.check`.
    """
    result = run(expression, ranks=ranks, client=client, values=True, shared=shared)
    if result.interrupted:
        raise KeyboardInterrupt
    return result.values()


def complete(text: str, client: Client | None = None, *, shared: bool = False) -> list[str]:
    """Return the names on rank 0 that begin with `text`; an empty list if rank 0 does not answer within 0.5 s."""
    namespace = namespaces.SHARED if shared else current.notebook_id()
    try:
        head = ClientHead(current_client(client), "a completion")
        return list(head.wait(protocol.COMPLETE, 0.5, text=text, namespace=namespace) or [])
    except WorkbenchError:
        return []


def check_syntax(code: str) -> None:
    """Check the syntax of a cell.

    Raises
    ------
    InvalidRequest
        If the cell has a syntax error. The message has the line.
    """
    from IPython.core.inputtransformer2 import TransformerManager

    try:
        source = TransformerManager().transform_cell(code)
        compile(source, "<cell>", "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT, dont_inherit=True)
    except (SyntaxError, ValueError) as error:
        number = (error.lineno or 0) if isinstance(error, SyntaxError) else 0
        lines = code.splitlines()
        line = f"line {number}: {lines[number - 1].strip()!r}: " if 0 < number <= len(lines) else ""
        reason = error.msg if isinstance(error, SyntaxError) else error
        raise InvalidRequest(f"{line}{reason}. The cell was not run on any rank.", given=number) from None


# -- objects ---------------------------------------------------------------------------------------------------


def transfer(client: Client, name: str, value: Any, sent: list[Future[Any]]) -> protocol.Transfer:
    """Return how an object of the notebook reaches the ranks; futures of broadcasts are appended to `sent`."""
    from dask.base import is_dask_collection
    from distributed import Future

    from workbench.placement import sources
    from workbench.placement.inside import estimated_bytes

    if is_dask_collection(value):
        if (found := sources.find_blocks(value)) is None:
            raise PlacementError(
                f"{name!r} is {sources.type_name(value)} that is not placed, so no rank has a block. Place the "
                f"collection first: {name} = workbench.place({name})."
            )
        _, futures = found
        client.sync(wait_computed, futures, f"a block of {name}")
        pins = pinning.locate(client, futures)
        return {"blocks": {pin.address: future.key for future, pin in zip(futures, pins, strict=True) if pin}}
    if isinstance(value, Future):
        client.sync(wait_computed, [value], f"the value of {name}")
        return {"key": value.key}
    parcel = _parcel(name, value) if estimated_bytes(value) <= _AT_MOST else None
    if parcel is not None and len(parcel) <= _VALUE:
        return {"parcel": parcel}
    try:
        sent.append(broadcast.broadcast(client, value, timeout=None if parcel is None else _BROADCAST))
    except (RankLost, CollectiveFailed):
        # A broadcast needs all ranks, and none of them in a call. A cell may run on some ranks.
        if parcel is None:
            raise
        return {"parcel": parcel}
    return {"key": sent[-1].key}


def _parcel(name: str, value: Any) -> bytes | None:
    """Return the pickled object; None if the object is too large to be sent with a cell."""
    try:
        return dumps_for_ranks(value, _AT_MOST)[0]
    except Exception as error:  # noqa: BLE001  (whatever the class of the user raises)
        from workbench.placement import sources

        raise InvalidRequest(
            f"{name!r}, {sources.type_name(value)}, cannot be sent to the ranks: {type(error).__name__}: {error}"
        ) from None


# -- the connections ------------------------------------------------------------------------------------------


def _granted(
    client: Client, cell: str, begin: Coroutine[Any, Any, protocol.Granted], patience: float
) -> protocol.Granted:
    """Wait until a cell can begin, and print every `patience` seconds what the cell waits for.

    Raises
    ------
    HeadUnreachable
        If the head does not answer.
    """
    promise = asyncio.run_coroutine_threadsafe(begin, client.loop.asyncio_loop)  # type: ignore[union-attr]
    try:
        while not wait([promise], timeout=patience).done:
            print(f"the cell waits for {_delay(client, cell)}", flush=True)  # noqa: T201
        return promise.result()
    except CancelledError as error:
        raise ClientHead(client, _PURPOSE).unreachable(error) from error
    except KeyboardInterrupt:
        promise.cancel()
        raise


def _delay(client: Client, cell: str) -> str:
    """Return what a cell waits for that has not begun."""
    try:
        event = ClientHead(client, _PURPOSE).wait(protocol.DELAY, _ASK, cell=cell)
    except HeadUnreachable:
        return "an answer of the head"
    return event or "the import of ipyparallel in this process"


async def _begin(
    client: Client,
    cell: str,
    ranks: Sequence[int] | None,
    names: dict[str, protocol.Transfer],
    *,
    check: bool,
) -> protocol.Granted:
    # The import of ipyparallel takes as long as the start of the engines.
    importing = asyncio.ensure_future(asyncio.to_thread(EngineClient.prepare))
    message: protocol.Begin = {
        "cell": cell,
        "client": client.id,
        "notebook": current.notebook_id(),
        "origin": current.cell_number(),
        "ranks": None if ranks is None else list(ranks),
        "names": names,
        "allowed": {
            "limit": config.size("cells.output-limit"),
            "compares": check or config.switch("spmd.check-buffers"),
        },
    }
    granted: protocol.Granted = await ClientHead(client, _PURPOSE).begin(protocol.BEGIN, **message)
    await importing
    return granted


def _link(client: Client, granted: protocol.Granted) -> EngineClient:
    """Return the client of the engines; the first cell of a start of the world connects it."""
    _close_unused()
    connection = granted["connection"]
    if client in _links and _links[client][0] != connection:
        _links.pop(client)[1].close()  # of an earlier start of the world
    if client not in _links:
        link = EngineClient(_from_here(client, connection))
        _links[client] = connection, link
        # At the exit of the process no connection needs an end.
        weakref.finalize(client, link.close).atexit = False
    link = _links[client][1]
    link.wait_until_reachable({int(rank): ident for rank, ident in granted["idents"].items()})
    return link


def _from_here(client: Client, connection: dict[str, Any]) -> dict[str, Any]:
    """Return a connection with addresses that this process reaches."""
    forward = getattr(client.cluster, "forward", None)
    if forward is None:
        return connection
    return forwarded(connection, functools.partial(client.sync, forward, "cells"))


def _close_unused() -> None:
    """Close the links of clients that are closed: each would continue to receive the output of the cells of others."""
    for client in [client for client in _links if client.status == "closed"]:
        _links.pop(client)[1].close()


def _cancel(client: Client, cell: str, reason: str) -> None:
    """Ask the head to end a cell, and ignore a head that does not answer."""
    with contextlib.suppress(HeadUnreachable):
        ClientHead(client, _PURPOSE).wait(protocol.INTERRUPT, _ASK, cell=cell, reason=reason)


# -- a cell that runs ------------------------------------------------------------------------------------------


class CellRun:
    """A cell that was sent to the engines, from that moment to its end.

    Parameters
    ----------
    idents
        Identities of the engines, by rank.
    """

    def __init__(
        self, client: Client, link: EngineClient, result: CellResult, idents: Mapping[int, str], message: RunCell
    ) -> None:
        self._client, self._result, self._cell = client, result, message.cell
        self._head = ClientHead(client, _PURPOSE)
        self._outputs: queue.SimpleQueue[tuple[int, CellOutput] | None] = queue.SimpleQueue()
        self._replies = {rank: link.send(idents[rank], message, self._receiver(rank)) for rank in result.ranks}
        self._end_on_head: Promise[dict[str, Any]] = self._head.submit(protocol.WAIT, cell=message.cell)
        for promise in (self._end_on_head, *itertools.chain(*self._replies.values())):
            promise.add_done_callback(lambda _: self._outputs.put(None))
        self._output_deadline = float("inf")

    def _receiver(self, rank: int) -> Callable[[CellOutput], None]:
        return lambda item: self._outputs.put((rank, item))

    def follow(
        self, seconds: float | None, stall: StallDetector, show: Callable[[int, CellOutput], None] | None
    ) -> None:
        """Receive the output of the ranks until the end of the cell; after `seconds` ask for this end."""
        result, deadline = self._result, float("inf") if seconds is None else time.monotonic() + seconds
        result.outputs = {rank: [] for rank in result.ranks}
        while not self._is_over():
            if stall.is_due() and (report := stall.report(self._where())):
                print(f"the cell: {report}", flush=True)  # noqa: T201
            if time.monotonic() > deadline:
                deadline, result.timed_out = float("inf"), True
                self._end(f"its time limit of {seconds:g} s has passed")
            try:
                self._receive(min(1.0, min(deadline, self._output_deadline) - time.monotonic()), show)
            except KeyboardInterrupt:
                if result.interrupted:
                    raise
                result.interrupted = True
                self._end("the user interrupted the cell")
        result.done = {rank: reply.result() for rank, (reply, _) in self._replies.items() if reply.done()}

    def _where(self) -> dict[int, dict[str, Any]]:
        """Return the positions of the ranks in the cell; an empty dict if the head does not answer."""
        try:
            places: dict[int, Any] = self._head.wait(WHERE, _ASK)
        except HeadUnreachable:
            return {}
        own = {rank: place for rank, place in places.items() if place and rank in self._result.ranks}
        return {rank: place for rank, place in own.items() if place.get("cell") == self._cell or place.get("silent")}

    def _receive(self, timeout: float, show: Callable[[int, CellOutput], None] | None) -> None:
        """Receive one output, unless none arrives within `timeout` seconds."""
        try:
            output = self._outputs.get(timeout=max(0.0, timeout))
        except queue.Empty:
            return
        if output is not None:
            rank, item = output
            self._result.outputs[rank].append(item)
            if show is not None:
                show(rank, item)

    def _is_over(self) -> bool:
        if self._end_on_head.done():
            try:
                end = self._end_on_head.result()
            except CancelledError as error:
                raise self._head.unreachable(error) from error
            self._result.lost, self._result.disconnected = end["lost"], end["disconnected"]
            grace = 0.0 if end["disconnected"] else _GRACE
            self._output_deadline = min(self._output_deadline, time.monotonic() + grace)
        alive = set(self._result.ranks) - set(self._result.lost)
        all_replied = all(promise.done() for rank in alive for promise in self._replies[rank])
        # The head answers when all readers get the blocks as the cell has written them.
        ended = all_replied and self._end_on_head.done()
        return self._outputs.empty() and (ended or time.monotonic() > self._output_deadline)

    def _end(self, reason: str) -> None:
        self._output_deadline = time.monotonic() + protocol.CLIENT_CELL_END_S
        _cancel(self._client, self._cell, reason)

"""The parts of a model's data as Dask actors, each on the worker of its block.

This is the Dask version of an MPI program: `functools.reduce` joins the results of all blocks. An actor keeps prepared
data of its block for as long as its future exists. `distributed.Client.run` calls all actors together, with one message
to the scheduler and one reply. This takes 2 to 4 ms with 2 workers and 6 to 9 ms with 8; calls of the actors' methods,
with a message each, take 3 and 15 ms, and tasks 10 ms and more.

The time, and the results that pass through the scheduler, grow with the number of workers. With many workers the client
calls the first worker of each group only, which calls the others of its group and joins their results.
"""

from __future__ import annotations

import asyncio
import copy
import functools
import logging
import math
import uuid
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any
from weakref import WeakValueDictionary

from distributed import get_worker
from distributed.core import clean_exception
from distributed.protocol.pickle import dumps

from workbench.collective import serialize
from workbench.collective.rank import pause_periodic_callbacks
from workbench.errors import HeadUnreachable, InvalidRequest, RankLost
from workbench.ml.checks import Checks, make
from workbench.ml.engine.parts import add
from workbench.ml.engine.progress import Report
from workbench.placement import pinning
from workbench.placement.pinning import PinnedTask, wait_computed
from workbench.session.head_client import ClientHead

if TYPE_CHECKING:
    from distributed import Client, Worker

    from workbench.placement.pinning import Pin


# Seconds between two checks whether the head still runs.
_POLL_INTERVAL_S = 2.0

# Maximum number of workers without groups.
_MAX_DIRECT = 8

# The actors of this process, by fit and address: a process may have several workers. Dask keeps an actor for as long as
# its future exists.
_actors: WeakValueDictionary[tuple[str, str], PartActor] = WeakValueDictionary()


class PartActor:
    """A part on the worker of its block.

    Parameters
    ----------
    fit
        Identity of the fit, with which `ask_part` finds the actor.
    part, checks, start, *columns
        Arguments of `workbench.ml.checks.make`.
    """

    def __init__(self, fit: str, part: Any, checks: Checks, start: int, *columns: Any) -> None:
        self._part = make(part, checks, start, *columns)
        _actors[fit, get_worker().address] = self
        # Dask logs each call of `Client.run`: there would be a line for each step of a fit.
        logging.getLogger("distributed.worker").addFilter(_is_no_step)

    def call(self, method: str, args: Sequence[Any]) -> Any:
        """Call a method of the part."""
        return getattr(self._part, method)(*args)


async def ask_part(fit: str, method: str, args: Sequence[Any], dask_worker: Worker) -> Any:
    """Return the result of `PartActor.call`; runs on the event loop of each worker.

    Raises
    ------
    RankLost
        If the actor was lost with an earlier worker at this address.
    """
    actor = _actors.get((fit, dask_worker.address))
    if actor is None:
        raise RankLost(_lost(dask_worker.address))
    # On the thread of actors, so that a running task does not delay the call.
    thread = dask_worker.executors["actor"]
    with pause_periodic_callbacks(dask_worker):
        return await asyncio.get_running_loop().run_in_executor(thread, actor.call, method, args)


def group_size(workers: int) -> int:
    """Return the number of workers in a group: as many as there are groups, or 1 for few workers."""
    return 1 if workers <= _MAX_DIRECT else math.ceil(math.sqrt(workers))


async def ask_group(
    fit: str,
    join: Callable[[Any, Any], Any],
    method: str,
    args: Sequence[Any],
    addresses: Sequence[str],
    *,
    dask_worker: Worker,
) -> Any:
    """Return the joined results of `ask_part` for a group of workers; runs on the first worker of the group.

    Parameters
    ----------
    fit, method, args
        Arguments of `ask_part`.
    join
        Joins two results, that of the earlier worker first.
    addresses
        The addresses of all workers, in the order of their blocks.
    """
    first = addresses.index(dask_worker.address)
    members = addresses[first + 1 : first + group_size(len(addresses))]
    if not members:
        return await ask_part(fit, method, args, dask_worker)
    request = {"function": dumps(ask_part), "args": dumps((fit, method, args))}
    results = await asyncio.gather(
        ask_part(fit, method, args, dask_worker),
        *(_result(dask_worker.rpc(address).run(**request)) for address in members),
        return_exceptions=True,
    )
    # All results are awaited, so that the error of the earliest block is raised.
    for result in results:
        if isinstance(result, BaseException):
            raise result
    # Large results are joined beside the event loop.
    thread = dask_worker.executors["actor"]
    return await asyncio.get_running_loop().run_in_executor(thread, functools.reduce, join, results)


async def _result(call: Awaitable[dict[str, Any]]) -> Any:
    """Return the result of `Worker.run` on another worker, or raise its error."""
    response = await call
    if response["status"] == "OK":
        return response["result"]
    failure: Any = clean_exception(**response)
    raise failure[1].with_traceback(failure[2])


def _is_no_step(record: logging.LogRecord) -> bool:
    # Other messages of the logger may have arguments without a hash.
    return not any(record.args == (step.__name__,) for step in (ask_part, ask_group))


def _drop(record: Mapping[str, Any]) -> None:
    pass


def _lost(address: str) -> str:
    return (
        f"the worker at {address} was lost while a model was fitted on its block. Place the data again, X = place(X), "
        "and repeat the fit."
    )


class ActorParts:
    """Parts as actors.

    Parameters
    ----------
    client
        The client of the fit.
    part, checks
        Arguments of `workbench.ml.checks.make`.
    blocks
        For each part its pin, the number of its first row, and the futures of its blocks or None.

    Raises
    ------
    ValueError, TypeError
        The error of `workbench.ml.checks.Checks.apply` for the first block that is not valid.
    """

    direct = False

    def __init__(
        self,
        client: Client,
        part: Any,
        checks: Checks,
        blocks: Sequence[tuple[Pin, int, Sequence[Any]]],
    ) -> None:
        self._client = client
        self.report: Report = _drop
        self._addresses = [pin.address for pin, _, _ in blocks]
        self._fit = uuid.uuid4().hex
        calls = [
            PinnedTask(
                key=f"block {number} of a fit ({self._fit[:8]})",
                function=PartActor,
                args=(self._fit, part, checks, start, *columns),
                pin=pin,
            )
            for number, (pin, start, columns) in enumerate(blocks)
        ]
        made = pinning.submit(client, calls, [call.key for call in calls], actors=True)
        try:
            # `ask_part` calls the actors: here only their futures are needed.
            with client.as_current():
                client.sync(wait_computed, made, "a block of a fit")
            self._actors = made
        except BaseException as error:  # noqa: BLE001  (raised again)
            # The traceback of the error keeps this frame, and with it the futures.
            for future in made:
                future.release()
            made.clear()
            raise serialize.strip_internal_frames(error) from None

    def reporting(self, report: Report) -> ActorParts:
        """Return the same actors for a task, with the function that receives each record of `Parts.report`."""
        parts = copy.copy(self)
        parts.report = report
        return parts

    def sum(self, method: str, *args: Any) -> Any:
        """See `workbench.ml.engine.parts.Parts.sum`."""
        return self.fold(add, method, *args)

    def fold(self, join: Callable[[Any, Any], Any], method: str, *args: Any) -> Any:
        """See `workbench.ml.engine.parts.Parts.fold`."""
        leaders = self._addresses[:: group_size(len(self._addresses))]
        results = self._client.sync(self._call, leaders, ask_group, join, method, args, self._addresses)
        return functools.reduce(join, (results[address] for address in leaders))

    def each(self, method: str, *args: Any) -> list[Any]:
        """See `workbench.ml.engine.parts.Parts.each`."""
        results = self._client.sync(self._ask, method, args)
        return [results[address] for address in self._addresses]

    def together(self, method: str, *args: Any) -> Any:
        """See `workbench.ml.engine.parts.ConnectedParts.together`; there is no communicator between these parts."""
        raise InvalidRequest(
            f"{method} needs the ranks of an MPICluster, and this fit runs on Dask. Place the rows on an MPICluster, "
            "and leave the setting workbench.ml.engine at 'auto'.",
            option="workbench.ml.engine",
        )

    def end(self) -> None:
        """Release the actors, also where the traceback of an error keeps these parts."""
        for future in self._actors:
            future.release()

    async def _ask(self, method: str, args: Sequence[Any]) -> dict[str, Any]:
        """Call a method of all parts, on the event loop of the client."""
        return await self._call(self._addresses, ask_part, method, args)

    async def _call(self, workers: list[str], function: Callable[..., Any], *args: Any) -> dict[str, Any]:
        """Call a function on workers together, on the event loop of the client; return the results by address."""
        client = self._client
        request = asyncio.ensure_future(client.run(function, self._fit, *args, workers=workers))
        try:
            while not (await asyncio.wait({request}, timeout=_POLL_INTERVAL_S))[0] and client.status == "running":
                pass
            results: dict[str, Any] = request.result()
        except (OSError, asyncio.InvalidStateError) as error:
            raise await self._reason() from error
        except RuntimeError as error:  # raised by the client, which is closing, or by a part
            if client.status == "running":
                raise
            raise await self._reason() from error
        else:
            return results
        finally:
            request.cancel()

    async def _reason(self) -> HeadUnreachable | RankLost:
        """Return the error for a missing reply: the head is unreachable, or a worker is lost."""
        scheduler: Any = self._client.scheduler
        try:
            workers = (await asyncio.wait_for(scheduler.identity(n_workers=-1), _POLL_INTERVAL_S))["workers"]
        except (OSError, AttributeError, RuntimeError):  # no reply in time, or the client is closed
            return ClientHead(self._client, "a fit").unreachable(ConnectionError())
        lost = (address for address in self._addresses if address not in workers)
        return RankLost(_lost(next(lost, self._addresses[0])))

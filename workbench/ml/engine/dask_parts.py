"""The parts of a model's data as Dask actors, each on the worker where its block lies.

This is the Dask version of an MPI program: `functools.reduce` joins the results of all blocks. An actor keeps prepared
data of its block for as long as its future exists. `distributed.Client.run` calls all actors together, with one message
to the scheduler and one reply. This takes 2 to 4 ms with 2 workers and 6 to 9 ms with 8; calls of the actors' methods,
with a message each, take 3 and 15 ms, and tasks 10 ms and more.
"""

from __future__ import annotations

import asyncio
import functools
import logging
import uuid
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any
from weakref import WeakValueDictionary

from distributed import get_worker, wait

from workbench.collective import serialize
from workbench.collective.quiet import pause_periodic_callbacks
from workbench.errors import HeadUnreachable, InvalidRequest, RankLost
from workbench.ml.checks import Checks, make
from workbench.ml.engine.parts import add
from workbench.ml.engine.progress import Report
from workbench.placement import pinning
from workbench.placement.pinning import PinnedTask
from workbench.session.head_client import ClientHead

if TYPE_CHECKING:
    from distributed import Client, Worker

    from workbench.placement.pinning import Pin


# Seconds between two checks whether the head still runs.
_POLL_INTERVAL_S = 2.0

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


def _is_no_step(record: logging.LogRecord) -> bool:
    return record.args != (ask_part.__name__,)


def _lost(address: str) -> str:
    return (
        f"the worker at {address} was lost while a model was fitted on its block: place the data again, X = place(X), "
        "and fit again"
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
    report
        Receives each record of `Parts.report`.

    Raises
    ------
    ValueError, TypeError
        The error of `workbench.ml.checks.Checks.apply` for the first block that is not valid.
    """

    def __init__(
        self,
        client: Client,
        part: Any,
        checks: Checks,
        blocks: Sequence[tuple[Pin, int, Sequence[Any]]],
        *,
        report: Report,
    ) -> None:
        self._client = client
        self.report = report
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
                wait(made)
                for future in made:
                    if future.status != "finished":
                        future.result()
            self._actors = made
        except BaseException as error:  # noqa: BLE001  (raised again)
            # The traceback of the error keeps this frame, and with it the futures.
            for future in made:
                future.release()
            made.clear()
            raise serialize.strip_internal_frames(error) from None

    def sum(self, method: str, *args: Any) -> Any:
        """See `workbench.ml.engine.parts.Parts.sum`."""
        return self.fold(add, method, *args)

    def fold(self, join: Callable[[Any, Any], Any], method: str, *args: Any) -> Any:
        """See `workbench.ml.engine.parts.Parts.fold`."""
        return functools.reduce(join, self.each(method, *args))

    def each(self, method: str, *args: Any) -> list[Any]:
        """See `workbench.ml.engine.parts.Parts.each`."""
        results = self._client.sync(self._ask, method, args)
        return [results[address] for address in self._addresses]

    def together(self, method: str) -> Any:
        """See `workbench.ml.engine.parts.LocalParts.together`; there is no communicator between these parts."""
        raise InvalidRequest(
            f"{method} needs the ranks of one MPI world, and this fit runs on Dask: place the rows in one world of a "
            "cluster of the workbench, and leave the setting workbench.ml.engine at 'auto'"
        )

    def end(self) -> None:
        """Release the actors, also where the traceback of an error keeps these parts."""
        for future in self._actors:
            future.release()

    async def _ask(self, method: str, args: Sequence[Any]) -> dict[str, Any]:
        """Call all workers together, on the event loop of the client."""
        client = self._client
        request = asyncio.ensure_future(client.run(ask_part, self._fit, method, args, workers=self._addresses))
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

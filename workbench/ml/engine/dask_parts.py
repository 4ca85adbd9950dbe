"""The parts of a model's data as Dask actors, each on the worker where its block lies.

This is the daskified form of an MPI program: what each block returns is collected, and `functools.reduce` joins it.
An actor keeps what was prepared of its block, and goes with its future. All are asked at once, by
`distributed.Client.run`: one message to the scheduler, which asks the workers, and one back. That takes 2 to 4 ms with
2 workers and 6 to 9 with 8; calls of the actors' own methods, each with a message of its own, take 3 and 15, and tasks
10 and more.
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
from workbench.errors import HeadUnreachable, RankLost
from workbench.ml.checks import Checks, make
from workbench.ml.engine.parts import add
from workbench.ml.engine.progress import Report
from workbench.placement import pinning
from workbench.placement.pinning import PinnedTask
from workbench.session.head_client import ClientHead

if TYPE_CHECKING:
    from distributed import Client, Worker

    from workbench.placement.pinning import Pin


# Seconds between two looks whether the head is still there.
_LOOK = 2.0

# The actors of this process, by fit and address: a process may have several workers. Dask keeps an actor for as long as
# its future exists.
_here: WeakValueDictionary[tuple[str, str], PartActor] = WeakValueDictionary()


class PartActor:
    """A part on the worker of its block.

    Parameters
    ----------
    fit
        Identity of the fit, by which `ask_part` finds it.
    part, checks, start, *columns
        As of `workbench.ml.checks.make`.
    """

    def __init__(self, fit: str, part: Any, checks: Checks, start: int, *columns: Any) -> None:
        self._part = make(part, checks, start, *columns)
        _here[fit, get_worker().address] = self
        # Dask logs each call of `Client.run`, and here these are the steps of a fit.
        logging.getLogger("distributed.worker").addFilter(_is_no_step)

    def call(self, method: str, args: Sequence[Any]) -> Any:
        """Return what a method of the part returns."""
        return getattr(self._part, method)(*args)


async def ask_part(fit: str, method: str, args: Sequence[Any], dask_worker: Worker) -> Any:
    """Return what `PartActor.call` returns; runs on the event loop of each worker.

    Raises
    ------
    RankLost
        If the actor is gone with the worker that was at this address before.
    """
    actor = _here.get((fit, dask_worker.address))
    if actor is None:
        raise RankLost(_lost(dask_worker.address))
    # Where calls of actors run, so that a task that runs does not hold it up.
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
        The client that asks them.
    part, checks
        As of `workbench.ml.checks.make`.
    blocks
        For each part its pin, the number of its first row, and the futures of its blocks, None where there is none.
    report
        Is given each record of `Parts.report`.

    Raises
    ------
    ValueError, TypeError
        As `workbench.ml.checks.Checks.apply`, of the first block that is not as it has to be.
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
            # The actors themselves are asked by `ask_part`, and are not needed here.
            with client.as_current():
                wait(made)
                for future in made:
                    if future.status != "finished":
                        future.result()
            self._actors = made
        except BaseException as error:  # noqa: BLE001  (it is raised again)
            # Who keeps the error keeps this frame, and with it the futures of those that were made.
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

    def end(self) -> None:
        """Let the actors go, also where the traceback of an error keeps these parts."""
        for future in self._actors:
            future.release()

    async def _ask(self, method: str, args: Sequence[Any]) -> dict[str, Any]:
        """Ask all workers at once; on the event loop of the client."""
        client = self._client
        request = asyncio.ensure_future(client.run(ask_part, self._fit, method, args, workers=self._addresses))
        try:
            while not (await asyncio.wait({request}, timeout=_LOOK))[0] and client.status == "running":
                pass
            results: dict[str, Any] = request.result()
        except (OSError, asyncio.InvalidStateError) as error:
            raise await self._reason() from error
        except RuntimeError as error:  # of the client, which is closing, or of a part
            if client.status == "running":
                raise
            raise await self._reason() from error
        else:
            return results
        finally:
            request.cancel()

    async def _reason(self) -> HeadUnreachable | RankLost:
        """Return why an answer did not come: the head is gone, or a worker."""
        scheduler: Any = self._client.scheduler
        try:
            workers = (await asyncio.wait_for(scheduler.identity(n_workers=-1), _LOOK))["workers"]
        except (OSError, AttributeError, RuntimeError):  # no answer, or not in time; the client is closed
            return ClientHead(self._client, "a fit").unreachable(ConnectionError())
        gone = (address for address in self._addresses if address not in workers)
        return RankLost(_lost(next(gone, self._addresses[0])))

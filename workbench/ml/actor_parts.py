"""The parts of a model's data as Dask actors, each on the worker where its block lies.

This is the daskified form of an MPI program: what each block returns is collected, and `functools.reduce` joins it.
An actor keeps what was prepared of its block, and goes with its future. All are asked at once, by
`distributed.Client.run`: one message to the scheduler, which asks the workers, and one back. That takes 2 ms with 2
workers and 6 to 9 with 8; calls of the actors' own methods, each with a message of its own, take 3 and 15, and tasks 10
and more.
"""

from __future__ import annotations

import asyncio
import functools
import logging
import time
import uuid
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any
from weakref import WeakValueDictionary

from workbench.errors import RankLost
from workbench.ml.checks import Checks, make
from workbench.ml.parts import add
from workbench.ml.progress import Report

if TYPE_CHECKING:
    from distributed import Client, Worker

    from workbench.placing.pinning import Pin


# By fit, the actors of this worker. Dask keeps them, for as long as there are their futures.
_here: WeakValueDictionary[str, PartActor] = WeakValueDictionary()


class PartActor:
    """A part on the worker of its block; times what it computes.

    Parameters
    ----------
    fit
        Identity of the fit, by which `ask_part` finds it.
    part, checks, start, *columns
        As of `workbench.ml.checks.make`.
    """

    def __init__(self, fit: str, part: Any, checks: Checks, start: int, *columns: Any) -> None:
        self._part = make(part, checks, start, *columns)
        _here[fit] = self
        # Dask logs each call of `Client.run`, and here these are the steps of a fit.
        logging.getLogger("distributed.worker").addFilter(_is_no_step)

    def call(self, method: str, args: Sequence[Any]) -> tuple[Any, float]:
        """Return what a method of the part returns, and how many seconds it took."""
        begin = time.perf_counter()
        value = getattr(self._part, method)(*args)
        return value, time.perf_counter() - begin


async def ask_part(fit: str, method: str, args: Sequence[Any], dask_worker: Worker) -> tuple[Any, float]:
    """Return what `PartActor.call` returns; runs on the event loop of each worker.

    Raises
    ------
    RankLost
        If the actor is gone with the worker that was at this address before.
    """
    actor = _here.get(fit)
    if actor is None:
        raise RankLost(_lost(dask_worker.address))
    # Where calls of actors run, so that a task that runs does not hold it up.
    thread = dask_worker.executors["actor"]
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
    timed
        Is told of each round trip how many seconds it took, and how many the slowest part took of them.

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
        timed: Callable[[float, float], None] | None = None,
    ) -> None:
        self._client, self._timed = client, timed
        self.report = report
        self._addresses = [pin.address for pin, _, _ in blocks]
        self._fit = uuid.uuid4().hex
        made = [
            client.submit(
                PartActor, self._fit, part, checks, start, *columns, actor=True, workers=[pin.address], pure=False
            )
            for pin, start, columns in blocks
        ]
        # An actor asks by the current client.
        with client.as_current():
            self._actors = [future.result() for future in made]

    def sum(self, method: str, *args: Any) -> Any:
        """See `workbench.ml.parts.Parts.sum`."""
        return self.fold(add, method, *args)

    def fold(self, join: Callable[[Any, Any], Any], method: str, *args: Any) -> Any:
        """See `workbench.ml.parts.Parts.fold`."""
        return functools.reduce(join, self.each(method, *args))

    def each(self, method: str, *args: Any) -> list[Any]:
        """See `workbench.ml.parts.Parts.each`."""
        begin = time.perf_counter()
        try:
            told = self._client.run(ask_part, self._fit, method, args, workers=self._addresses)
        except OSError as error:
            raise RankLost(_lost(self._missing())) from error
        values, seconds = zip(*(told[address] for address in self._addresses), strict=True)
        if self._timed is not None:
            self._timed(time.perf_counter() - begin, max(seconds))
        return list(values)

    def _missing(self) -> str:
        """Return the address of a worker that is gone, the first if it cannot be told."""
        scheduler: Any = self._client.scheduler
        workers = self._client.sync(scheduler.identity, n_workers=-1)["workers"]
        return next((address for address in self._addresses if address not in workers), self._addresses[0])

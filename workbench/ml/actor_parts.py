"""The parts of a model's data as Dask actors, each on the worker where its block lies.

This is the daskified form of an MPI program: a future for what each block returns, and `functools.reduce` over them. An
actor keeps what was prepared of its block, and calls of its methods do not wait in the queues of the scheduler: a round
trip takes 2 to 5 ms, that of tasks 10 to 20.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from workbench.errors import RankLost
from workbench.ml.checks import Checks, make
from workbench.ml.parts import add
from workbench.ml.progress import Report

if TYPE_CHECKING:
    from distributed import Client
    from distributed.actor import BaseActorFuture

    from workbench.placing.pinning import Pin

# Seconds between two looks whether the workers that are waited for still live.
_LOOK = 2.0


class PartActor:
    """A part on the worker of its block; times what it computes.

    Parameters
    ----------
    part, checks, start, *columns
        As of `workbench.ml.checks.make`.
    """

    def __init__(self, part: Any, checks: Checks, start: int, *columns: Any) -> None:
        self._part = make(part, checks, start, *columns)

    def call(self, method: str, args: Sequence[Any]) -> tuple[Any, float]:
        """Return what a method of the part returns, and how many seconds it took."""
        begin = time.perf_counter()
        value = getattr(self._part, method)(*args)
        return value, time.perf_counter() - begin


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
        made = [
            client.submit(PartActor, part, checks, start, *columns, actor=True, workers=[pin.address], pure=False)
            for pin, start, columns in blocks
        ]
        # An actor asks by the current client.
        with client.as_current():
            self._actors: list[Any] = [future.result() for future in made]

    def sum(self, method: str, *args: Any) -> Any:
        """See `workbench.ml.parts.Parts.sum`."""
        return self.fold(add, method, *args)

    def fold(self, join: Callable[[Any, Any], Any], method: str, *args: Any) -> Any:
        """See `workbench.ml.parts.Parts.fold`."""
        return functools.reduce(join, self.each(method, *args))

    def each(self, method: str, *args: Any) -> list[Any]:
        """See `workbench.ml.parts.Parts.each`."""
        begin = time.perf_counter()
        futures: list[BaseActorFuture[tuple[Any, float]]] = [actor.call(method, args) for actor in self._actors]
        told = [self._result(address, future) for address, future in zip(self._addresses, futures, strict=True)]
        values, seconds = zip(*told, strict=True)
        if self._timed is not None:
            self._timed(time.perf_counter() - begin, max(seconds))
        return list(values)

    def _result(self, address: str, future: BaseActorFuture[tuple[Any, float]]) -> tuple[Any, float]:
        while True:
            try:
                return future.result(timeout=_LOOK)
            except TimeoutError:
                if not future.done():
                    self._check(address)
            except OSError:
                self._check(address)
                raise

    def _check(self, address: str) -> None:
        """Return if a worker is still there."""
        scheduler: Any = self._client.scheduler
        workers = self._client.sync(scheduler.identity, n_workers=-1)["workers"]
        if address not in workers:
            raise RankLost(
                f"the worker at {address} was lost while a model was fitted on its block: place the data again, "
                "X = place(X), and fit again"
            )

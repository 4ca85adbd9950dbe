"""Functions that run on all ranks at once, with an MPI communicator and the local blocks.

`run_on_ranks` calls one, `spmd` makes one that is always called so.
"""

from __future__ import annotations

import functools
import operator
import sys
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from types import MethodType
from typing import TYPE_CHECKING, Any, overload

from workbench.collective.client import PendingCall
from workbench.collective.request import request
from workbench.errors import InvalidRequest
from workbench.mpi import context

if TYPE_CHECKING:
    from distributed import Client


def run_on_ranks(
    fn: Callable[..., Any],
    *args: Any,
    client: Client | None = None,
    result: str = "ranks",
    world: int | None = None,
    ranks: Sequence[int] | None = None,
    timeout: float | str | None = None,
    limit: float | str | None = None,
    **kwargs: Any,
) -> Any:
    """Call a function on all ranks at once, as ``fn(comm, *args, **kwargs)``, and return what it returns.

    Parameters
    ----------
    fn
        Its first argument is an `mpi4py.MPI.Intracomm` of exactly the ranks that take part: those that hold the
        blocks, in their order; without blocks, all of the world, or those of `ranks`.
    *args, **kwargs
        A placed collection is replaced by its local block: the very array that lies on the rank, contiguous and
        64-byte aligned. A future is replaced by its value. Anything else is given to all ranks; above 1 MiB it goes
        there by `broadcast`.
    client
        Default: the one that the blocks belong to, or the current one.
    result
        ``"ranks"``: a list of what each rank returns; ``"root"``: what the first one returns; ``"blocks"``: arrays of
        one axis or more, or dataframes, that stay on their ranks and become a placed collection; of a tuple of them
        each becomes one.
    world
        Index of the MPI world. Default: that of the blocks; without blocks the first one, 0.
    ranks
        Ranks of the world that take part, in their order in the communicator: a list or a range. Calls that share no
        rank run at once. Default: those that hold the blocks; without blocks, all of the world.
    timeout
        Seconds, or a time span such as ``"10 minutes"``, for all of it, the calls of others before it included.
        Default: as long as it takes.
    limit
        Bytes, or a size such as ``"2 GiB"``, that the results may have together to travel to this process.
        Default: ``workbench.spmd.result-limit``.

    Returns
    -------
    list, object, dask collection or tuple of dask collections
        As `result` says.

    Raises
    ------
    Exception
        What the function raised on the rank that failed first, with the traceback of that rank and a note that names
        it. The call has ended on all ranks then.
    InvalidRequest
        If an option cannot be, the function or an argument cannot be sent, or the blocks lie in several worlds, in
        another one than `world`, or on other ranks than `ranks`.
    PlacementError
        If a collection is not placed, two lie differently, or what the ranks made does not fit together as blocks.
    RankLost
        If a rank is gone, or dies meanwhile.
    CollectiveFailed
        If the results are too large to travel, or the call was cancelled.
    CollectiveTimeout
        If it was not done in time.

    Notes
    -----
    All ranks start or none. Calls queue in the head, those of one client in their order (with `ranks`, those that share
    a rank), and run on a thread of their own on each rank: tasks that keep the ranks busy neither hold them up nor
    stop. When one rank fails, or you press Ctrl-C, or this process dies, the call is ended on all its ranks: where a
    rank waits in MPI at once, in Python code soon. What waits in MPI inside of C code can be ended with ULFM only (Open
    MPI on one node, or ``--fault-tolerant``).

    When no rank gets anywhere for ``workbench.spmd.watchdog``, it is printed where each of them is.

    Examples
    --------
    >>> def mean(comm, X):
    ...     return comm.allreduce(X.sum(axis=0)) / comm.allreduce(len(X))
    >>> X = workbench.place(X)                         # doctest: +SKIP
    >>> run_on_ranks(mean, X, result="root")           # doctest: +SKIP
    array([0.5, 0.25])
    """
    options = {"client": client, "result": result, "world": world, "ranks": ranks, "timeout": timeout, "limit": limit}
    return _call(fn, args, kwargs, **options).result()


class SpmdFunction:
    """A function that runs on all ranks at once when it is called; what `spmd` returns.

    Called with a communicator, as another such function does on its ranks and as any program with mpi4py can, it is
    the plain function.
    """

    def __init__(self, fn: Callable[..., Any], options: dict[str, Any]) -> None:
        functools.update_wrapper(self, fn)
        self._fn, self._options = fn, options

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call it on all ranks, and return what it returns; see `run_on_ranks`."""
        if args and _is_communicator(args[0]):
            return self._fn(*args, **kwargs)
        return _call(self, args, kwargs, **self._options).result()

    def __get__(self, instance: object, owner: type | None = None) -> SpmdFunction:
        """Return it as a method of an object, of which each rank gets a copy."""
        return self if instance is None else SpmdFunction(MethodType(self._fn, instance), self._options)

    def submit(self, *args: Any, **kwargs: Any) -> Future[Any]:
        """Call it on all ranks without waiting; to cancel the future ends the call on all of them.

        Returns
        -------
        concurrent.futures.Future
            Of what it returns. Calls of one client run in the order in which they were made; with `ranks`, those that
            share no rank run at once.
        """
        return _call(self, args, kwargs, **self._options).future

    def __reduce__(self) -> str | tuple[Any, ...]:
        # By its name where it has one that ranks can import, as functions do.
        name: str = self._fn.__qualname__
        if self.__module__ != "__main__" and _find(self.__module__, name) is self:
            return name
        # On a rank it is called with its communicator, and a client cannot travel.
        return SpmdFunction, (self._fn, {**self._options, "client": None})


@overload
def spmd(fn: Callable[..., Any], /) -> SpmdFunction: ...
@overload
def spmd(
    *,
    client: Client | None = None,
    result: str = "ranks",
    world: int | None = None,
    ranks: Sequence[int] | None = None,
    timeout: float | str | None = None,
    limit: float | str | None = None,
) -> Callable[[Callable[..., Any]], SpmdFunction]: ...
def spmd(
    fn: Callable[..., Any] | None = None,
    /,
    *,
    client: Client | None = None,
    result: str = "ranks",
    world: int | None = None,
    ranks: Sequence[int] | None = None,
    timeout: float | str | None = None,
    limit: float | str | None = None,
) -> SpmdFunction | Callable[[Callable[..., Any]], SpmdFunction]:
    """Decorate a function that is to run on all ranks at once, with an MPI communicator as its first argument.

    Parameters
    ----------
    client, result, world, ranks, timeout, limit
        As of `run_on_ranks`.

    Returns
    -------
    SpmdFunction
        Is called without the communicator; has ``submit`` beside. A method takes it after ``self``, which is a copy on
        each rank.

    Examples
    --------
    >>> @spmd(result="root")
    ... def mean(comm, X):
    ...     return comm.allreduce(X.sum(axis=0)) / comm.allreduce(len(X))
    >>> mean(workbench.place(X))                       # doctest: +SKIP
    array([0.5, 0.25])
    """
    options = {"client": client, "result": result, "world": world, "ranks": ranks, "timeout": timeout, "limit": limit}
    if fn is None:
        return lambda fn: SpmdFunction(fn, options)
    return SpmdFunction(fn, options)


def _call(fn: Callable[..., Any], args: Any, kwargs: Any, **options: Any) -> PendingCall:
    if threading.current_thread().name == "spmd":
        raise InvalidRequest(
            "an SPMD call was made inside another, and would wait for it forever: call the function itself, "
            "fn(comm, ...)"
        )
    if options["client"] is None and context.is_in_cell():
        raise InvalidRequest(
            "an SPMD call was made inside a %%mpi cell, which runs on all ranks already: call the function itself, "
            "fn(comm, ...)"
        )
    return PendingCall(request(fn, args, kwargs, **options))


def _find(module: str, qualified_name: str) -> Any:
    """Return what has a name in a module that is loaded; None if nothing has."""
    try:
        return operator.attrgetter(qualified_name)(sys.modules[module])
    except (KeyError, AttributeError):
        return None


def _is_communicator(thing: Any) -> bool:
    # Whoever has one has loaded MPI; the notebook has not.
    mpi = sys.modules.get("mpi4py.MPI")
    return mpi is not None and isinstance(thing, mpi.Comm)

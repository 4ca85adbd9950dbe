"""Functions that run on all ranks together, with an MPI communicator and the local blocks.

`run_on_ranks` calls one, `spmd` makes one that is always called so.
"""

from __future__ import annotations

import functools
import operator
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from types import MethodType
from typing import TYPE_CHECKING, Any, overload

from workbench.collective.client import PendingCall
from workbench.collective.request import request
from workbench.errors import ClusterMoves, InvalidRequest
from workbench.mpi import context
from workbench.mpi.context import is_in_call
from workbench.session import moves

if TYPE_CHECKING:
    from distributed import Client

    from workbench.collective.channel import OnEvent


def run_on_ranks(
    fn: Callable[..., Any],
    *args: Any,
    client: Client | None = None,
    result: str = "ranks",
    ranks: Sequence[int] | None = None,
    timeout: float | str | None = None,
    limit: float | str | None = None,
    on_event: OnEvent | None = None,
    writes: bool = True,
    **kwargs: Any,
) -> Any:
    """Call ``fn(comm, *args, **kwargs)`` on all ranks at the same time, and return the results.

    Parameters
    ----------
    fn : callable
        Function whose first argument is an `mpi4py.MPI.Intracomm` of exactly the ranks that take part: the ranks with
        the blocks, in the order of the blocks; without blocks, all ranks, or `ranks`.
    *args, **kwargs : object
        A placed collection is replaced by the block of the rank: the array in the memory of the rank, contiguous and
        aligned to 64 bytes. A future is replaced by its value. Any other object is sent to all ranks, above 1 MiB
        with `broadcast`.
    client : distributed.Client, optional
        Client of the cluster. Default: the client of the blocks, or of the first future among the arguments, or the
        current client.
    result : {"ranks", "root", "blocks"}, default="ranks"
        ``"ranks"``: a list of the results of all ranks; ``"root"``: the result of the first rank; ``"blocks"``: arrays
        with one axis or more, or dataframes, stay on their ranks and become a placed collection; a tuple of them
        becomes a tuple of collections.
    ranks : sequence of int, optional
        Ranks that take part, in their order in the communicator: a list or a range. Calls without a common rank run at
        the same time. Default: the ranks with the blocks; without blocks, all ranks.
    timeout : float or str, optional
        Seconds, or a time span such as ``"10 minutes"``, for the whole call, including the wait for other calls.
        Default: no limit.
    limit : int or str, optional
        Bytes, or a size such as ``"2 GiB"``: the maximum total size of the results that are sent to this process.
        Default: ``workbench.spmd.result-limit``.
    on_event : callable, optional
        Receives each `workbench.extension.Event` that the function sends with `workbench.extension.send` or
        `workbench.extension.ask`, in the thread that called `run_on_ranks`. An error of `on_event` ends the call on all
        ranks.
    writes : bool, default=True
        Whether the function may write into the blocks of placed collections. False: if the world is lost later, and
        started again, the blocks are made again from their graphs.

    Returns
    -------
    list, object, dask collection or tuple of dask collections
        The results, in the form of the option `result`.

    Raises
    ------
    Exception
        The error of the rank that failed first, with the traceback of this rank and a note that names the rank. The
        call has ended on all ranks.
    InvalidRequest
        If an option is not valid, the function or an argument cannot be sent, a placed collection or a future is inside
        another object (a list, an attribute) or a variable of the function, or the blocks are on other ranks than
        `ranks`.
    PlacementError
        If a collection is not placed, two collections have different layouts, or the results do not fit as blocks.
    RankLost
        If a rank was lost before the call or during the call.
    CollectiveFailed
        If the results exceed `limit`, or the call was canceled.
    CollectiveTimeout
        If the call has not ended within `timeout`.

    Notes
    -----
    All ranks start or none. Calls queue in the head, and calls of one client run in their order (with `ranks`, those
    with a common rank). Each rank runs a call on a separate thread, so running tasks do not delay the call, and
    continue. If one rank fails, if you press Ctrl-C, or if this process dies, the call ends on all its ranks:
    immediately if a rank waits in MPI, soon in Python code. A wait in MPI inside C code ends only with ULFM (Open MPI
    on one node).

    If no rank makes progress for ``workbench.spmd.watchdog``, a message shows the position of each rank.

    Examples
    --------
    >>> def mean(comm, X):
    ...     return comm.allreduce(X.sum(axis=0)) / comm.allreduce(len(X))
    >>> X = workbench.place(np.arange(8.0).reshape(4, 2))
    >>> run_on_ranks(mean, X, result="root")
    array([3., 4.])
    """
    options = {"client": client, "result": result, "ranks": ranks, "timeout": timeout, "limit": limit}
    return _result(fn, args, kwargs, {**options, "on_event": on_event, "writes": writes})


class SpmdFunction:
    """A function that runs on all ranks at the same time: the result of `spmd`.

    A call with a communicator as first argument calls the plain function. Other functions on the ranks, and any program
    with mpi4py, can use this form.
    """

    def __init__(self, fn: Callable[..., Any], options: dict[str, Any]) -> None:
        functools.update_wrapper(self, fn)
        self._fn, self._options = fn, options

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the function, and return the results; see `run_on_ranks`."""
        if args and _is_communicator(args[0]):
            return self._fn(*args, **kwargs)
        return _result(self, args, kwargs, self._options)

    def __get__(self, instance: object, owner: type | None = None) -> SpmdFunction:
        """Return a method of an object; each rank gets a copy of the object."""
        return self if instance is None else SpmdFunction(MethodType(self._fn, instance), self._options)

    def submit(self, *args: Any, on_event: OnEvent | None = None, **kwargs: Any) -> Future[Any]:
        """Call the function without a wait. ``cancel()`` of the future ends the call.

        Parameters
        ----------
        *args, **kwargs : object
            Arguments of the function.
        on_event : callable, optional
            Receives each `workbench.extension.Event` that the function sends with `workbench.extension.send` or
            `workbench.extension.ask`, in the thread of the future's callbacks. All events are handled before the future
            has its result. An error of `on_event` ends the call, and is the error of the future. Default:
            that of `spmd`.

        Returns
        -------
        concurrent.futures.Future
            Future of the results. Calls of one client run in their order; with `ranks`, calls without a common rank run
            at the same time. Callbacks of the future run in a separate thread, in their order, and can make calls; at
            its end a program waits for the callbacks of calls that have ended.
        """
        options = self._options if on_event is None else {**self._options, "on_event": on_event}
        return _call(self, args, kwargs, **options).start()

    def __reduce__(self) -> str | tuple[Any, ...]:
        # Like functions: by name if the ranks can import the name.
        name: str = self._fn.__qualname__
        if self.__module__ != "__main__" and _find(self.__module__, name) is self:
            return name
        # On a rank the function is called with a communicator. A client cannot be pickled, nor many an `on_event`.
        return SpmdFunction, (self._fn, {**self._options, "client": None, "on_event": None})


@overload
def spmd(fn: Callable[..., Any], /) -> SpmdFunction: ...
@overload
def spmd(
    *,
    client: Client | None = None,
    result: str = "ranks",
    ranks: Sequence[int] | None = None,
    timeout: float | str | None = None,
    limit: float | str | None = None,
    name: str | None = None,
    on_event: OnEvent | None = None,
    writes: bool = True,
) -> Callable[[Callable[..., Any]], SpmdFunction]: ...
def spmd(
    fn: Callable[..., Any] | None = None,
    /,
    *,
    client: Client | None = None,
    result: str = "ranks",
    ranks: Sequence[int] | None = None,
    timeout: float | str | None = None,
    limit: float | str | None = None,
    name: str | None = None,
    on_event: OnEvent | None = None,
    writes: bool = True,
) -> SpmdFunction | Callable[[Callable[..., Any]], SpmdFunction]:
    """Decorate a function that runs on all ranks at the same time, with an MPI communicator as first argument.

    Parameters
    ----------
    fn : callable, optional
        The function. Without the function, `spmd` returns a decorator with the options.
    client, result, ranks, timeout, limit, on_event, writes : optional
        See `run_on_ranks`.
    name : str, optional
        Name of the calls in messages and on the dashboard. Default: the name of the function.

    Returns
    -------
    SpmdFunction
        Function to call without the communicator, with the method ``submit``. In a method of a class, the communicator
        is the argument after ``self``, which is a copy on each rank.

    Examples
    --------
    >>> @spmd(result="root")
    ... def mean(comm, X):
    ...     return comm.allreduce(X.sum(axis=0)) / comm.allreduce(len(X))
    >>> mean(workbench.place(np.arange(8.0).reshape(4, 2)))
    array([3., 4.])
    """
    options = {
        "client": client,
        "result": result,
        "ranks": ranks,
        "timeout": timeout,
        "limit": limit,
        "name": name,
        "on_event": on_event,
        "writes": writes,
    }
    if fn is None:
        return lambda fn: SpmdFunction(fn, options)
    return SpmdFunction(fn, options)


def _result(fn: Callable[..., Any], args: Any, kwargs: Any, options: dict[str, Any]) -> Any:
    """Return the result of a call; a call that is refused because its cluster moves is repeated in the next job."""
    while True:
        call = _call(fn, args, kwargs, **options)
        try:
            return call.result()
        except ClusterMoves:
            if (cluster := call.client.cluster) is None:
                raise
            moves.wait(moves.begun(cluster))


def _call(fn: Callable[..., Any], args: Any, kwargs: Any, **options: Any) -> PendingCall:
    if is_in_call():
        raise InvalidRequest(
            "an SPMD call inside another SPMD call would wait forever. Call the plain function, fn(comm, ...)."
        )
    if options["client"] is None and context.is_in_cell():
        raise InvalidRequest(
            "an SPMD call inside a %%mpi cell is not possible, since the cell runs on all ranks. Call the plain "
            "function, fn(comm, ...)."
        )
    return PendingCall(request(fn, args, kwargs, **options))


def _find(module: str, qualified_name: str) -> Any:
    """Return what has a name in a module that is loaded; None if nothing has."""
    try:
        return operator.attrgetter(qualified_name)(sys.modules[module])
    except (KeyError, AttributeError):
        return None


def _is_communicator(thing: Any) -> bool:
    # Only a process with a communicator has loaded MPI, and the notebook has not.
    mpi = sys.modules.get("mpi4py.MPI")
    return mpi is not None and isinstance(thing, mpi.Comm)

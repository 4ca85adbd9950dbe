"""Reduction of the results of all ranks, always in the same order."""

from __future__ import annotations

import functools
import uuid
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

from workbench.errors import InvalidRequest, did_you_mean

if TYPE_CHECKING:
    from distributed import Client, Future

_ON = ("client", "workers")


def reduce(op: Callable[[Any, Any], Any], parts: Any, *, on: str = "client", client: Client | None = None) -> Any:
    """Join results, two at a time, into one value.

    Parameters
    ----------
    op : callable
        Joins two neighbors, the one of the lower rank first. It need not be commutative.
    parts : list of distributed.Future, or placed collection
        Futures in rank order, as `map_blocks` returns them, or a placed collection, for its blocks.
    on : {"client", "workers"}, default="client"
        ``"client"``: the client gathers all parts and joins them with `functools.reduce`. ``"workers"``: a binary tree
        of tasks on the ranks joins the parts, and only the result travels; prefer it for large parts.
    client : distributed.Client, optional
        Default: the client that the futures belong to.

    Returns
    -------
    Any
        The value. The order never depends on timing, so that results are reproducible. ``"client"`` and ``"workers"``
        bracket differently, and their sums of floats differ by rounding.

    Raises
    ------
    TypeError
        If `parts` is empty, or with ``on="workers"`` contains values that are not futures.
    InvalidRequest
        If `on` has another value.
    PlacementError
        If a collection is not placed, or no client is connected.

    Examples
    --------
    >>> import operator
    >>> X = workbench.place(np.arange(8.0).reshape(4, 2))
    >>> reduce(operator.add, workbench.map_blocks(lambda block: block.sum(axis=0), X))
    array([12., 16.])
    """
    from dask.base import is_dask_collection
    from distributed import Future

    from workbench.placement.place import blocks
    from workbench.session.current_client import current_client

    if on not in _ON:
        raise InvalidRequest(f"on={on!r} is not valid: {did_you_mean(str(on), _ON)}")
    if not isinstance(parts, Iterable):
        raise TypeError(f"reduce() got {parts!r} for parts. Pass a list of futures, as map_blocks returns it.")
    parts = blocks(parts) if is_dask_collection(parts) else list(parts)
    if not parts:
        raise TypeError("reduce() got an empty list of parts. Pass the list that map_blocks returned.")
    futures = [part for part in parts if isinstance(part, Future)]
    if on == "workers":
        if len(futures) < len(parts):
            raise TypeError('reduce(..., on="workers") takes only futures, and parts has values. Use on="client".')
        return _tree(current_client(client or futures[0].client), op, futures)
    values = current_client(client or futures[0].client).gather(parts) if futures else parts
    return functools.reduce(op, values)


def _tree(client: Client, op: Callable[[Any, Any], Any], parts: Sequence[Future[Any]]) -> Any:
    from workbench.placement.pinning import PinnedTask, locate, submit

    if len(parts) == 1:
        return parts[0].result()
    name = f"reduce-{uuid.uuid4().hex}"
    level: list[tuple[Any, Any]] = list(zip(parts, locate(client, parts), strict=True))
    calls: list[PinnedTask] = []
    while len(level) > 1:
        above = []
        for (left, pin), (right, _) in zip(level[::2], level[1::2], strict=False):
            call = PinnedTask((name, len(calls)), op, (left, right), pin=pin)
            calls.append(call)
            above.append((call.reference, pin))
        # The last value of an odd number of values has no neighbor, and moves up unchanged.
        level = above + level[len(above) * 2 :]
    (value,) = submit(client, calls, [calls[-1].key])
    return value.result()

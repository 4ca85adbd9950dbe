"""One block per rank that stays on its rank, and the reduction of the results of all ranks in one order.

`place` converts a collection into one block per rank (or per node), `blocks` returns the futures of the blocks, and
`map_blocks` calls a function on each block, on the rank of the block.
"""

from __future__ import annotations

import contextlib
import functools
import uuid
from collections.abc import Callable, Iterable, MutableMapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

from workbench.errors import InvalidRequest, PlacementError
from workbench.gpu.tensors import device_of
from workbench.placement import inside, pinning, rows, sources
from workbench.placement.pinning import Pin, PinnedTask
from workbench.session import moves
from workbench.session.current import current_client

if TYPE_CHECKING:
    from distributed import Client, Future


@dataclass(frozen=True)
class PlacedBlocks:
    """The blocks of a placed collection, in rank order."""

    collection: Any
    client: Client
    per: str
    """The argument ``per`` of the placement."""
    futures: list[Future[Any]]
    pins: list[Pin]

    @classmethod
    def of(cls, X: Any, client: Client | None = None) -> Self:
        """Return the blocks of a placed collection for a client (None: the client of the blocks).

        Raises
        ------
        PlacementError
            If `X` is not placed, a block is not on its rank, or the client has another cluster.
        """
        per, futures = _found(X)
        if moves.followed(futures[0].client) is not futures[0].client:
            X = moves.there(X)
            per, futures = _found(X)
        client = current_client(client or futures[0].client)
        pinning.check_cluster(client, futures, sources.type_name(X))
        cached = [pin for future in futures if (pin := pinning.cached_pin(future))]
        pins = cached if len(cached) == len(futures) else pinning.rediscover(client, futures, per)
        return cls(X, client, per, futures, pins)

    def arguments(self, value: Any) -> Sequence[Any]:
        """Return a value as arguments of one call for each of these blocks.

        A collection with the layout of these blocks becomes its blocks, and `AlignedBlocks` too if the ranks are the
        same. Any other value is the same for all calls.

        Raises
        ------
        PlacementError
            If a collection is not placed, or has another layout.
        """
        from dask.base import is_dask_collection

        if value is self.collection:
            return self.futures
        aligned = isinstance(value, AlignedBlocks)
        if not (aligned or is_dask_collection(value)):
            return [value] * len(self.pins)
        other, pins = PlacedBlocks.of(value.collection if aligned else value, self.client), self.pins
        others = other.pins
        if aligned:
            pins, others = ([Pin(pin.address) for pin in each] for each in (pins, others))
        if others != pins:
            raise PlacementError(
                f"{sources.type_name(other.collection)} is placed in {_layout(others)}, and X is placed in "
                f"{_layout(pins)}. Both need the same layout: place both in one call, X, y = place(X, y)."
            )
        return other.futures


@dataclass(frozen=True)
class AlignedBlocks:
    """A placed collection with the ranks of another collection, but any numbers of rows."""

    collection: Any


def _found(X: Any) -> tuple[str, list[Future[Any]]]:
    if (found := sources.find_blocks(X)) is None:
        raise PlacementError(f"{sources.type_name(X)} is not placed. Pass the collection that place(...) returned.")
    return found


def _layout(pins: Sequence[Pin]) -> str:
    listed = ", ".join(f"{pin.rows} on {pin.address}" for pin in pins[:4])
    return f"{len(pins)} blocks (rows: {listed}{', ...' * (len(pins) > 4)})"


def blocks(X: Any) -> list[Future[Any]]:
    """Return the futures of the blocks of a placed collection, in rank order.

    Parameters
    ----------
    X : dask.array.Array, dask.dataframe.DataFrame or dask.dataframe.Series
        A placed collection.

    Returns
    -------
    list of distributed.Future
        The blocks: NumPy arrays, matrices in CSR format, pandas dataframes or series, or, of a collection that was
        placed with `device`, tensors of PyTorch.

    Raises
    ------
    PlacementError
        If the collection was not placed.

    Examples
    --------
    >>> X = workbench.place(np.ones((100_000, 8)))
    >>> [block.result().shape for block in blocks(X)]
    [(25000, 8), (25000, 8), (25000, 8), (25000, 8)]
    """
    return _found(X)[1]


def place(
    X: Any,
    *others: Any,
    per: str = "rank",
    device: str | None = None,
    client: Client | None = None,
) -> Any:
    """Make one block per rank of a collection, pinned to its rank, in rank order.

    Rows are split evenly, like by `numpy.array_split`; all columns stay together. Blocks of arrays are C-contiguous and
    64-byte aligned NumPy arrays; blocks of sparse matrices are in CSR format.

    Parameters
    ----------
    X : array, matrix, dataframe or series
        Dask array of known chunks or NumPy array, of shape (rows, ...); sparse matrix of SciPy, or Dask array of these;
        Dask or pandas dataframe or series.
    *others : array, matrix, dataframe or series
        More collections with as many rows: row i of each is on the same rank as row i of ``X``.
    per : {"rank", "node"}, default="rank"
        ``"rank"`` for one block per rank, ``"node"`` for one block per node, on its lowest rank.
    device : str, optional
        Device of PyTorch on the ranks, for example ``"cuda"``: each block is a tensor there, which functions on the
        ranks, and fits with the same `device`, use without a copy. Dask arrays may then have chunks of any library with
        DLPack, for example CuPy. Default: blocks are NumPy arrays.
    client : distributed.Client, optional
        Default: the current client.

    Returns
    -------
    dask.array.Array, dask.dataframe.DataFrame or dask.dataframe.Series
        The placed collection, persisted; a tuple of collections if ``others`` are passed.

    Raises
    ------
    PlacementError
        If there is no client, or no rank, or a collection is of an unknown kind, has unknown chunks, is
        empty, has fewer rows than blocks or another number of rows than ``X``, or a column without a common type of all
        partitions; or a block exceeds the memory limit of its rank; or `device` is passed with a collection other than
        an array of numbers. The ranks keep no block then.

    Notes
    -----
    Blocks have the same dtypes and categories on all ranks. A block of an array whose values do not fit into the dtype
    of ``X`` raises PlacementError when the block is used.

    Returns before the blocks are computed, like ``persist``; only dataframes are computed first, because their lengths
    are needed. A rank that cannot use the device raises InvalidRequest when its block is used. Blocks are lost with
    their rank. If the world is lost and starts again, Dask makes them again from their graphs. Place data of this
    process and blocks that a function may have changed again, and all blocks after a restart on request.

    Estimators convert the blocks of a dataframe to arrays in each fit. For several fits place the array of the
    dataframe, ``place(table.to_dask_array().compute_chunk_sizes())``, whose blocks are fitted without a copy.

    Functions of Dask cannot compute with tensors; the array of a collection on a device is
    ``X.map_blocks(lambda block: block.cpu().numpy(), dtype=X.dtype)``.

    Examples
    --------
    >>> X, y = place(np.arange(8.0).reshape(4, 2), np.array([0, 1, 0, 1]))
    >>> int((y > 0).sum().compute())
    2
    """
    client = current_client(client)
    ranks = pinning.target_workers(client, per)
    names = ["X", *(f"others[{number}]" for number in range(len(others)))]
    inspected = [sources.inspect_collection(name, each, device) for name, each in zip(names, (X, *others), strict=True)]
    if device is not None:
        for source in inspected:
            sources.check_for_device(source, device)
    sources.check(inspected, ranks)
    inspected = sources.persist(client, inspected)
    sources.check(inspected, ranks)
    sizes = rows.split(inspected[0].rows or 0, len(ranks))
    pins = [Pin(rank.address, size) for rank, size in zip(ranks, sizes, strict=True)]
    placed = tuple(sources.build_blocks(client, source, pins, per, device) for source in inspected)
    return placed if others else placed[0]


def place_again(
    names: MutableMapping[str, Any], cluster: str, kept: MutableMapping[str, Any] | None = None
) -> tuple[list[str], list[str]]:
    """Place the collections among `names` on the present ranks, and put the new collections in their place.

    Parameters
    ----------
    names : dict
        Objects by name, as a notebook has them. Names that begin with ``_`` are left alone, as are collections of other
        clusters, and those with one block on each rank (or node).
    cluster : str
        The identity of the cluster's scheduler.
    kept : dict, optional
        Other names of collections, many of which are among `names`; they are not returned.

    Returns
    -------
    again : list of str
        The names of the collections that were placed again.
    failed : list of str
        The names of the collections for which that failed, which are unchanged.
    """
    made: dict[int, Any] = {}  # by the identity of the collection before; None where that failed
    done = _replaced(names, cluster, made)
    _replaced(kept or {}, cluster, made)
    return done


def _replaced(names: MutableMapping[str, Any], cluster: str, made: dict[int, Any]) -> tuple[list[str], list[str]]:
    again, failed = [], []
    for name, value in list(names.items()):
        if name.startswith("_") or (found := sources.find_blocks(value)) is None:
            continue
        client = found[1][0].client
        if client.status != "running" or client._scheduler_identity["id"] != cluster:  # noqa: SLF001
            continue
        if id(value) not in made:
            try:
                made[id(value)] = _placed_again(value, *found, client)
            except Exception:  # noqa: BLE001  (whatever a block or its rank raises)
                made[id(value)] = None
        if made[id(value)] is None:
            failed.append(name)
        elif made[id(value)] is not value:
            names[name] = made[id(value)]
            again.append(name)
    return again, failed


def _placed_again(X: Any, per: str, futures: Sequence[Future[Any]], client: Client) -> Any:
    """Return a placed collection with one block on each present rank; the collection itself if it has these."""
    client.sync(pinning.wait_computed, futures, f"a block of {sources.type_name(X)}")
    if len(futures) == len(pinning.target_workers(client, per)):
        with contextlib.suppress(PlacementError):  # blocks share a rank
            PlacedBlocks.of(X, client)
            return X
    [holders] = client.who_has(futures[:1]).values()
    key = f"device-{uuid.uuid4().hex}"
    [device] = pinning.submit(client, [PinnedTask(key, device_of, futures[:1], pin=Pin(min(holders)))], [key])
    placed = place(X, per=per, device=device.result(), client=client)
    # The blocks before are released with their last name, and their rows would be lost with a block that fails.
    client.sync(pinning.wait_computed, blocks(placed), f"a block of {sources.type_name(X)}")
    return placed


def map_blocks(
    fn: Callable[..., Any],
    X: Any,
    *others_or_values: Any,
    client: Client | None = None,
    **kwargs: Any,
) -> list[Future[Any]]:
    """Call a function once per block, on the rank of the block.

    Parameters
    ----------
    fn : callable
        Is called as ``fn(block of X, ...)``.
    X : dask.array.Array, dask.dataframe.DataFrame or dask.dataframe.Series
        A placed collection.
    *others_or_values, **kwargs : object
        A collection that is placed like ``X`` is replaced by its block. Any other value is passed to each call, futures
        (also in a list) as their values. Arrays are contiguous and aligned.
    client : distributed.Client, optional
        Default: the client of ``X``.

    Returns
    -------
    list of Future
        The results in rank order; each stays on its rank.

    Raises
    ------
    PlacementError
        If ``X`` is not placed, or another Dask collection is not placed or has another layout; or a placed collection
        or a future is inside another object or a variable of the function: each block would get all rows.

    Examples
    --------
    >>> X, y = place(np.arange(8.0).reshape(4, 2), np.array([0, 1, 0, 1]))
    >>> sums = map_blocks(lambda X, y: X[y > 0].sum(axis=0), X, y)
    >>> sum(client.gather(sums))
    array([ 8., 10.])
    """
    from dask.utils import funcname

    placed = PlacedBlocks.of(X, client)
    columns = [placed.futures, *map(placed.arguments, others_or_values)]
    named = {name: placed.arguments(value) for name, value in kwargs.items()}
    inside.check(funcname(fn), fn, [column[0] for column in (*columns, *named.values())])
    name = f"{funcname(fn)}-{uuid.uuid4().hex}"
    calls = [
        PinnedTask(
            key=(name, number),
            function=rows.call_with_aligned,
            args=(fn, *(column[number] for column in columns)),
            kwargs={name: column[number] for name, column in named.items()},
            pin=Pin(pin.address),
        )
        for number, pin in enumerate(placed.pins)
    ]
    return pinning.submit(placed.client, calls, [call.key for call in calls])


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

    if on not in _ON:
        raise InvalidRequest(option="on", given=on, allowed=_ON)
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
    if len(parts) == 1:
        return parts[0].result()
    name = f"reduce-{uuid.uuid4().hex}"
    level: list[tuple[Any, Any]] = list(zip(parts, pinning.locate(client, parts), strict=True))
    calls: list[PinnedTask] = []
    while len(level) > 1:
        above = []
        for (left, pin), (right, _) in zip(level[::2], level[1::2], strict=False):
            call = PinnedTask((name, len(calls)), op, (left, right), pin=pin)
            calls.append(call)
            above.append((call.reference, pin))
        # The last value of an odd number of values has no neighbor, and moves up unchanged.
        level = above + level[len(above) * 2 :]
    (value,) = pinning.submit(client, calls, [calls[-1].key])
    return value.result()

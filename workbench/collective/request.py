"""The request for a call: the pickled function and arguments, the keys of the blocks, and the form of the results."""

from __future__ import annotations

import functools
import math
import operator
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from workbench import config
from workbench.collective import serialize
from workbench.collective.protocol import LARGE, Call, Work
from workbench.collective.serialize import Placeholder
from workbench.errors import InvalidRequest
from workbench.placement import from_results, inside, pinning, rows, sources
from workbench.placement.inside import estimated_bytes, taken_along
from workbench.placement.place import AlignedBlocks, PlacedBlocks
from workbench.session.current import current_client
from workbench.text import brief

if TYPE_CHECKING:
    from dask.typing import Key
    from distributed import Client, Future

RESULTS = ("ranks", "root", "blocks")
"""Values of the option `result`."""
# Bytes above which a function is refused, since it uses a large object by mistake.
_TOO_LARGE = 1 << 30

# Variables that the message about a function that is too large names.
_NAMED = 4


@dataclass(frozen=True)
class Request:
    """The request for an SPMD call."""

    client: Client
    """Client of the cluster."""
    message: Call
    """Message to the head. The timeout is for the whole call; the head gets the remaining time."""
    result: str
    """One of `RESULTS`."""
    patience: float
    """Seconds without progress until the positions of the ranks are printed."""
    needs: list[Future[Any]]
    """Futures to compute before the call, and to keep until the end of the call."""
    large: dict[int, Any]
    """Objects to broadcast before the call, by the number of the slot in `keys`."""
    on_event: Callable[[Any], object] | None
    """Receives the events of the call."""

    @property
    def call(self) -> str:
        """Identity of the call."""
        return self.message["call"]

    @property
    def name(self) -> str:
        """Name of the function in messages for people."""
        return self.message["work"]["name"]

    @property
    def keys(self) -> list[list[Key]]:
        """Keys of the values for the slots among the arguments, for each rank."""
        return self.message["keys"]


def request(
    function: Callable[..., Any],
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    *,
    client: Client | None,
    result: str,
    limit: float | str | None,
    timeout: float | str | None,
    ranks: Sequence[int] | None = None,
    name: str | None = None,
    on_event: Callable[[Any], object] | None = None,
    writes: bool = True,
) -> Request:
    """Return the request for a call; parameters as of `workbench.run_on_ranks`.

    Raises
    ------
    InvalidRequest
        If an option or a setting is not valid, or the function or an argument cannot be sent.
    PlacementError
        If a collection is not placed, or two collections have different layouts.
    """
    from dask.base import is_dask_collection
    from dask.utils import funcname

    name = brief(name or funcname(function))
    if not callable(function):
        raise InvalidRequest(option="fn", given=function, allowed="a function fn(comm, ...)")
    if result not in RESULTS:
        raise InvalidRequest(option="result", given=result, allowed=RESULTS)
    chosen = None if ranks is None else _ranks(ranks)
    arguments = [*args, *kwargs.values()]
    for argument in arguments:
        _look_inside(argument)
    collection = next((argument for argument in arguments if is_dask_collection(argument)), None)
    placed = None if collection is None else PlacedBlocks.of(collection, client)
    client = placed.client if placed else _client_of(arguments, client)
    per = placed.per if placed else "rank"
    # Without blocks all ranks get the same.
    parts = len(placed.pins) if placed else 1
    columns: list[Sequence[Future[Any] | None]] = []
    large: dict[int, Any] = {}
    filled = [_slot(client, argument, placed, columns, large) for argument in arguments]
    to_blocks = (
        functools.partial(from_results.to_blocks, per=per, collection=uuid.uuid4().int) if result == "blocks" else None
    )
    # The function gets arrays that are contiguous and aligned.
    ready = functools.partial(rows.call_with_aligned, function)
    named = dict(zip(kwargs, filled[len(args) :], strict=True))
    try:
        for value in large.values():
            serialize.check_for_ranks(value)
        contents, nbytes = serialize.dumps_for_ranks((ready, filled[: len(args)], named, to_blocks), _TOO_LARGE)
    except inside.ValueOnRanks as error:
        raise InvalidRequest(inside.unreplaced(error.value, name, function, arguments)) from None
    except Exception as error:
        raise InvalidRequest(
            f"{name} cannot be sent to the ranks with its arguments: {type(error).__name__}: {error}. The function, "
            "its variables and its arguments must be picklable; open files, locks and connections are not."
        ) from error
    if contents is None:
        raise InvalidRequest(_too_large(function, name, nbytes))
    work: Work = {
        "name": name,
        "contents": contents,
        "compares": config.switch("spmd.check-buffers"),
        "counted": True,
        "listener": None if on_event is None else client.id,
    }
    if nbytes > LARGE:
        large[len(columns)] = contents
        work["contents"] = None
        columns.append([None] * parts)
    return Request(
        client=client,
        message={
            "call": uuid.uuid4().hex,
            "client": client.id,
            "origin": None,
            "work": work,
            "wanted": {"root": result == "root", "limit": _limit(limit)},
            "keys": [
                [future.key if (future := column[number]) else "" for column in columns] for number in range(parts)
            ],
            "addresses": [pin.address for pin in placed.pins] if placed else None,
            "writes": writes,
            "ranks": chosen,
            "timeout": None if timeout is None else config.time_span("timeout", timeout),
            "turn_timeout": None,
        },
        result=result,
        patience=config.seconds("spmd.watchdog"),
        needs=[future for column in columns for future in dict.fromkeys(column) if future],
        large=large,
        on_event=on_event,
    )


def _ranks(given: Sequence[int]) -> list[int]:
    """Return the given ranks as a list."""
    try:
        ranks = [operator.index(rank) for rank in given]
    except TypeError:
        ranks = []
    if not ranks or min(ranks) < 0 or len({*ranks}) < len(ranks):
        allowed = "a list or a range of different ranks, for example range(2) or [0, 3]"
        raise InvalidRequest(option="ranks", given=given, allowed=allowed)
    return ranks


def _client_of(arguments: Sequence[Any], client: Client | None) -> Client:
    """Return the client, by default of the first future, else the current client."""
    from distributed import Future

    found = next((argument.client for argument in arguments if isinstance(argument, Future)), None)
    return current_client(client or found)


def _look_inside(argument: Any) -> None:
    """Raise if a list, tuple, dict or set contains a collection or a future, which is not replaced there."""
    if isinstance(argument, inside.CONTAINERS) and (found := inside.first(argument)) is not None:
        raise InvalidRequest(
            f"{sources.type_name(found)} is inside a {type(argument).__name__}. Pass placed arrays and futures as "
            "separate arguments.",
            given=sources.type_name(found),
        )


def _slot(
    client: Client,
    argument: Any,
    placed: PlacedBlocks | None,
    columns: list[Sequence[Future[Any] | None]],
    large: dict[int, Any],
) -> Any:
    """Return the argument, or a placeholder; the futures of a placeholder are appended to the columns."""
    from dask.base import is_dask_collection
    from distributed import Future

    parts = len(placed.pins) if placed else 1
    column: Sequence[Future[Any] | None] = [None] * parts
    if placed is not None and (is_dask_collection(argument) or isinstance(argument, AlignedBlocks)):
        column = placed.arguments(argument)
    elif isinstance(argument, Future):
        pinning.check_cluster(client, [argument], sources.type_name(argument))
        column = [argument] * parts
    elif estimated_bytes(argument) > LARGE:
        large[len(columns)] = argument
    else:
        return argument
    columns.append(column)
    return Placeholder(len(columns) - 1)


def _too_large(function: Callable[..., Any], name: str, nbytes: int) -> str:
    from dask.utils import format_bytes

    largest = sorted(taken_along(function).items(), key=lambda item: -item[1])[:_NAMED]
    named = ", ".join(f"{variable} ({format_bytes(size)})" for variable, size in largest if size > nbytes / 100)
    return (
        f"{name} and the variables of the notebook that it uses have {format_bytes(nbytes)}{': ' * bool(named)}{named}."
        f" The limit is {format_bytes(_TOO_LARGE)}. Pass large objects as arguments: placed (place), or as a copy for "
        "each rank (broadcast)."
    )


def _limit(given: float | str | None) -> int | None:
    from dask.utils import parse_bytes

    if given is None:
        return config.size("spmd.result-limit")
    if given == math.inf:
        return None
    number = config.parse_positive(given, parse_bytes)
    if number is None:
        raise InvalidRequest(option="limit", given=given, allowed='a size above zero, for example "2 GiB", or math.inf')
    return int(number)

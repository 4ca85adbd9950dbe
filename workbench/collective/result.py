"""What the answer to a request is: values, collections, or the error of a rank."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from workbench.collective import serialize
from workbench.collective.protocol import Answer
from workbench.collective.request import Request
from workbench.errors import CollectiveFailed, PlacementError
from workbench.placement import from_results, pinning, sources
from workbench.placement.from_results import BlockMeta
from workbench.placement.pinning import Pin

if TYPE_CHECKING:
    from distributed import Client


def decode(request: Request, told: Answer) -> Any:
    """Return what a call returns, from what the head told of it.

    Raises
    ------
    Exception
        That of the rank that failed, with its traceback, and a note that says which rank it was.
    CollectiveFailed
        If what comes from a rank cannot be read here.
    PlacementError
        If the blocks that the ranks made do not fit together; nothing of them is kept.
    """
    if "error" in told:
        note = f"raised on rank {told['rank']} of world {told['world']}, in {request.name}"
        error = serialize.unpack_error(told["error"], note)
        if told["others"]:
            error.add_note(told["others"])
        raise error
    if "values" in told:
        values = [_value(request, rank, contents) for rank, contents in enumerate(told["values"])]
        return values[0] if request.result == "root" else values
    return _collections(request.client, [serialize.loads(its) for its in told["blocks"]], told["addresses"])


def _value(request: Request, rank: int, contents: bytes) -> Any:
    try:
        return serialize.loads(contents)
    except Exception as error:
        raise CollectiveFailed(
            f"what {request.name} returned on its rank {rank} cannot be read here: {type(error).__name__}: {error}"
        ) from error


def _collections(client: Client, blocks: Sequence[Sequence[BlockMeta]], addresses: Sequence[str]) -> Any:
    from distributed import Future

    in_memory: Any = "memory"
    # Before anything can fail: with the futures go the blocks.
    futures: list[list[Future[Any]]] = [[Future(its.key, client, state=in_memory) for its in rank] for rank in blocks]
    try:
        from_results.require_consistent(blocks)
    except PlacementError:
        # The traceback holds the futures for as long as somebody holds the traceback.
        for future in itertools.chain(*futures):
            future.release()
        raise
    collections = []
    for which, first in enumerate(blocks[0]):
        graph = {}
        for its, own, address in zip(blocks, futures, addresses, strict=True):
            pinning.cache_pin(own[which], Pin(address, its[which].rows))
            graph[its[which].key] = own[which]
        sizes = [its[which].rows for its in blocks]
        collections.append(sources.collection(first.meta, first.key[0], graph, sizes))
    return tuple(collections) if blocks[0][0].several else collections[0]

"""The result of a call from the answer of the head: values, collections, or the error of a rank."""

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


async def decode(request: Request, answer: Answer) -> Any:
    """Return the result of a call from the answer of the head.

    Raises
    ------
    Exception
        The error of the rank that failed, with the traceback and a note that names the rank.
    CollectiveFailed
        If the value of a rank cannot be unpickled here.
    PlacementError
        If the blocks of the ranks do not fit together. The ranks then keep no block.
    """
    if "error" in answer:
        note = f"raised on rank {answer['rank']} of world {answer['world']}, in {request.name}"
        error = serialize.unpack_error(answer["error"], note)
        if answer["others"]:
            error.add_note(answer["others"])
        raise error
    if "values" in answer:
        values = [_value(request, rank, contents) for rank, contents in enumerate(answer["values"])]
        return values[0] if request.result == "root" else values
    return await _collections(request.client, [*map(serialize.loads, answer["blocks"])], answer["addresses"])


def _value(request: Request, rank: int, contents: bytes) -> Any:
    try:
        return serialize.loads(contents)
    except Exception as error:
        raise CollectiveFailed(
            f"the result of {request.name} on its rank {rank} cannot be unpickled here: {type(error).__name__}: {error}"
        ) from error


async def _collections(client: Client, blocks: Sequence[Sequence[BlockMeta]], addresses: Sequence[str]) -> Any:
    from distributed import Future

    in_memory: Any = "memory"
    # Before any error: the blocks are released with the futures.
    futures: list[list[Future[Any]]] = [
        [Future(meta.key, client, state=in_memory) for meta in metas] for metas in blocks
    ]
    collections = []
    try:
        from_results.require_consistent(blocks)
        for number, first in enumerate(blocks[0]):
            own, metas = [of_rank[number] for of_rank in futures], [of_rank[number] for of_rank in blocks]
            sizes = [meta.rows for meta in metas]
            pins = list(map(Pin, addresses, sizes))
            meta, keys = first.meta, [meta.key for meta in metas]
            if first.types:
                meta, keys, own = await from_results.of_one_type(client, metas, own, pins)
            for future, pin in zip(own, pins, strict=True):
                pinning.cache_pin(future, pin)
            collections.append(sources.collection(meta, keys[0][0], dict(zip(keys, own, strict=True)), sizes))
    except PlacementError:
        # The traceback keeps references to the futures.
        for future in itertools.chain(*futures):
            future.release()
        raise
    return tuple(collections) if blocks[0][0].several else collections[0]

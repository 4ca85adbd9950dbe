"""Rows of a batch, on their way to the ranks that need them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist


def deliver(block: torch.Tensor, ends: Sequence[int], group: Any) -> torch.Tensor:
    """Send an equal share of the rows of all blocks to each of some ranks; collective.

    Parameters
    ----------
    block
        Rows of this rank, as many as on the other ranks of the group.
    ends
        The ranks in the group that receive the shares, in the order of the rows.
    group
        Process group.

    Returns
    -------
    torch.Tensor
        The share of this rank, of shape (rows of all ranks / ends, ...); no rows on other ranks.
    """
    size, me, each = dist.get_world_size(group), dist.get_rank(group), len(block)
    share = size * each // len(ends)
    sent, received = [block[:0]] * size, [block[:0]] * size
    for number, end in enumerate(ends):
        # Rank r has the rows from r * each on.
        low, high = share * number, share * (number + 1)
        parts = [range(max(low, rank * each), min(high, (rank + 1) * each)) for rank in range(size)]
        sent[end] = block[parts[me].start - me * each :][: len(parts[me])] if parts[me] else block[:0]
        if end == me:
            received = [block.new_empty((len(part), *block.shape[1:])) for part in parts]
    dist.all_to_all(received, sent, group)
    return torch.cat(received)

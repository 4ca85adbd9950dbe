"""Operations of MPI on memory of a GPU, by pieces in memory of the host."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

import torch

from workbench.gpu.tensors import to_host

# Bytes of a piece, and pieces that are copied while MPI works on another.
_PIECE = 4 << 20
_AHEAD = 2


def by_host(row: torch.Tensor, operate: Callable[[torch.Tensor], None]) -> None:
    """Change a row of elements on a GPU by an operation on rows of elements in memory of the host.

    Parameters
    ----------
    row
        Row on a GPU. Work that is queued later on the current stream of the GPU finds the changed elements.
    operate
        Called with page-locked copies of all parts of the row, in order, and changes these. While the operation works
        on one piece, the GPU copies the next pieces to the host, and the one before back. A row of up to 4 MiB is one
        piece.
    """
    size = _PIECE // row.element_size()
    if row.numel() <= size:
        copy = to_host(row)
        operate(copy)
        row.copy_(copy, non_blocking=True)
        return
    with torch.cuda.device(row.device):
        current, down, up = torch.cuda.current_stream(), torch.cuda.Stream(), torch.cuda.Stream()
        down.wait_stream(current)
        ahead: deque[tuple[torch.Tensor, torch.Tensor, torch.cuda.Event]] = deque()

        def finish() -> None:
            piece, copy, copied = ahead.popleft()
            copied.synchronize()
            operate(copy)
            with torch.cuda.stream(up):
                # The allocator of page-locked memory keeps the copy until the GPU has read it.
                piece.copy_(copy, non_blocking=True)

        for piece in row.split(size):
            copy = torch.empty_like(piece, device="cpu", pin_memory=True)
            with torch.cuda.stream(down):
                copy.copy_(piece, non_blocking=True)
                ahead.append((piece, copy, down.record_event()))
            if len(ahead) > _AHEAD:
                finish()
        while ahead:
            finish()
        current.wait_stream(up)

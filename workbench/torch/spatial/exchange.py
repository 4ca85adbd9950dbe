"""Rows of other ranks beside those of this rank: the halos, and the way back of their gradients."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch

from workbench.torch.buffers import flat, message, to_write, write
from workbench.torch.spatial.layout import Window

if TYPE_CHECKING:
    from mpi4py import MPI

AXIS = 2
"""Axis of the rows in a batch of images: of height in two dimensions, of depth in three."""
# Of messages of strips on the communicator of the user.
_TAG = 31_999


class Exchange:
    """The messages by which each rank gets the rows of its window.

    Parameters
    ----------
    comm
        Communicator of the ranks.
    have
        First row of each rank, and the height.
    windows
        Window of each rank.
    axis
        Axis of the rows.

    Notes
    -----
    All ranks compute all messages from the same numbers, so that no rank has to send its wishes. Rows may come from any
    rank: strips may have fewer rows than a halo.
    """

    def __init__(self, comm: MPI.Intracomm, have: Sequence[int], windows: Sequence[Window], axis: int = AXIS) -> None:
        me = comm.rank
        self.axis = axis
        self._comm, self._mine = comm, windows[me]
        self._start, self._rows = have[me], have[me + 1] - have[me]
        self._gets = _overlaps(self._mine, [Window(*have[rank : rank + 2]) for rank in range(comm.size)])
        self._gives = _overlaps(Window(have[me], have[me + 1]), windows)
        _, first, end = next((overlap for overlap in self._gets if overlap[0] == me), (me, have[me], have[me]))
        self._own = first - have[me], end - first

    def pull(self, strip: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the rows of the window that ranks before this one have, and those that ranks after it have."""
        gets = [(rank, self._empty(strip, end - first)) for rank, first, end in self._others(self._gets)]
        gives = [
            (rank, strip.narrow(self.axis, first - self._start, end - first))
            for rank, first, end in self._others(self._gives)
        ]
        self._swap(gives, gets)
        before, after = ([rows for rank, rows in gets if (rank < self._comm.rank) is side] for side in (True, False))
        return self._joined(strip, before), self._joined(strip, after)

    def window(self, strip: torch.Tensor, before: torch.Tensor, after: torch.Tensor, fill: float) -> torch.Tensor:
        """Return the rows of the window: the strip itself if the window has its rows and no others."""
        own = strip if self._own == (0, self._rows) else strip.narrow(self.axis, *self._own)
        outside = [self._empty(strip, rows).fill_(fill) for rows in (self._mine.before, self._mine.after)]
        return self._joined(strip, [outside[0], before, own, after, outside[1]])

    def push(self, gradient: torch.Tensor) -> torch.Tensor:
        """Return the gradient of the strip from that of the window, whose memory becomes that of the result."""
        offset = self._mine.before - self._mine.start

        def of_window(first: int, end: int) -> torch.Tensor:
            return gradient.narrow(self.axis, offset + first, end - first)

        gives = [(rank, of_window(first, end)) for rank, first, end in self._others(self._gets)]
        theirs = self._others(self._gives)
        gets = [(rank, self._empty(gradient, end - first)) for rank, first, end in theirs]
        self._swap(gives, gets)
        first, rows = self._own
        own = of_window(self._start + first, self._start + first + rows) if rows else self._empty(gradient, 0)
        if rows == self._rows:
            whole = own
        else:
            whole = self._empty(gradient, self._rows).zero_()
            whole.narrow(self.axis, first, rows).copy_(own)
        for (_, first, end), (_, more) in zip(theirs, gets, strict=True):
            whole.narrow(self.axis, first - self._start, end - first).add_(more)
        return whole

    def _swap(self, gives: list[tuple[int, torch.Tensor]], gets: list[tuple[int, torch.Tensor]]) -> None:
        arriving = [(rows, to_write(rows), rank) for rank, rows in gets]
        leaving = [(flat(rows), rank) for rank, rows in gives]
        requests = [self._comm.Irecv(message(row), rank, _TAG) for _, row, rank in arriving]
        requests += [self._comm.Isend(message(row), rank, _TAG) for row, rank in leaving]
        for request in requests:
            request.Wait()
        for rows, row, _ in arriving:
            write(row, rows)

    def _others(self, overlaps: list[tuple[int, int, int]]) -> list[tuple[int, int, int]]:
        return [overlap for overlap in overlaps if overlap[0] != self._comm.rank]

    def _empty(self, like: torch.Tensor, rows: int) -> torch.Tensor:
        shape = list(like.shape)
        shape[self.axis] = rows
        return like.new_empty(shape)

    def _joined(self, like: torch.Tensor, parts: list[torch.Tensor]) -> torch.Tensor:
        parts = [part for part in parts if part.shape[self.axis]]
        if len(parts) == 1:
            return parts[0]
        return torch.cat(parts, self.axis) if parts else self._empty(like, 0)


def _overlaps(one: Window, others: Sequence[Window]) -> list[tuple[int, int, int]]:
    """Return the rows that a window shares with each other one, with the number of that one."""
    shared = ((number, max(one.start, other.start), min(one.stop, other.stop)) for number, other in enumerate(others))
    return [(number, first, end) for number, first, end in shared if first < end]

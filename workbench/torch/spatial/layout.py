"""Which rows of an image a rank has, and which rows it needs for its rows of a result."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise


def bounds(height: int, ranks: int) -> list[int]:
    """Return the first row of each rank, and the height.

    Examples
    --------
    >>> bounds(10, 4)
    [0, 2, 5, 7, 10]
    """
    # A function of the height alone: tensors of one height have one division, whatever layers they come from.
    return [rank * height // ranks for rank in range(ranks + 1)]


@dataclass(frozen=True)
class Window:
    """Rows of an input that a rank needs."""

    start: int
    stop: int
    """Rows of the image, from `start` to before `stop`."""
    before: int = 0
    after: int = 0
    """Rows outside of the image, before and after these."""

    @classmethod
    def clipped(cls, first: int, end: int, height: int) -> Window:
        """Return the window from row `first` to before row `end`, which may be outside of the image.

        Examples
        --------
        >>> Window.clipped(-1, 4, 3)
        Window(start=0, stop=3, before=1, after=1)
        """
        start = min(max(first, 0), height)
        stop = max(min(end, height), start)
        before = min(max(-first, 0), end - first)
        return cls(start, stop, before, end - first - before - (stop - start))


@dataclass(frozen=True)
class Part:
    """What a rank computes: a window of the input, and its rows among those that the function returns for it."""

    window: Window
    skip: int = 0
    """Rows of the result of the function that belong to the rank before."""


@dataclass(frozen=True)
class Plan:
    """What each rank computes of a result."""

    height: int
    """Rows of the result on all ranks."""
    parts: Sequence[Part]

    @classmethod
    def of(cls, height: int, ranks: int, part: Callable[[int, int], Part]) -> Plan:
        """Divide a result: `part` has the first row of a rank and the first of the next rank."""
        return cls(height, [part(first, end) for first, end in pairwise(bounds(height, ranks))])


@dataclass(frozen=True)
class Kernel:
    """The windows of a convolution or a pooling along one axis."""

    size: int
    stride: int = 1
    padding: int = 0
    dilation: int = 1

    @property
    def reach(self) -> int:
        """Rows from the first to the last of a window."""
        return self.dilation * (self.size - 1) + 1

    def plan(self, height: int, ranks: int, *, ceil_mode: bool = False) -> Plan:
        """Return the plan of a convolution or a pooling; its height is 0 if the image is smaller than the kernel."""
        room = height + 2 * self.padding - self.reach
        rows = room // self.stride + 1
        if ceil_mode:
            rows = -(-room // self.stride) + 1
            # As in PyTorch: no window begins behind the image and its padding.
            rows -= (rows - 1) * self.stride >= height + self.padding

        def part(first: int, end: int) -> Part:
            if first == end:
                # No rows: the function gets a window outside of the image, and nothing of its result is taken.
                return Part(Window(0, 0, self.reach))
            begin = first * self.stride - self.padding
            return Part(Window.clipped(begin, begin + (end - first - 1) * self.stride + self.reach, height))

        return Plan.of(max(rows, 0), ranks, part)

    def transposed(self, height: int, ranks: int, output_padding: int = 0) -> Plan:
        """Return the plan of a transposed convolution."""

        def part(first: int, end: int) -> Part:
            if first == end:
                return Part(Window(0, 0, 1))
            # Input row i is added to the output rows from i * stride - padding, `reach` of them.
            low, high = first + self.padding, end + self.padding
            begin = min(-((self.reach - 1 - low) // self.stride), low // self.stride)
            stop = max((high - 1) // self.stride, -((self.reach - high) // self.stride)) + 1
            return Part(Window.clipped(begin, stop, height), low - begin * self.stride)

        rows = (height - 1) * self.stride - 2 * self.padding + self.reach + output_padding
        return Plan.of(max(rows, 0), ranks, part)


def adaptive(height: int, rows: int) -> list[tuple[int, int]]:
    """Return the first row and the end of each window of an adaptive pooling.

    Examples
    --------
    >>> adaptive(5, 2)
    [(0, 3), (2, 5)]
    """
    return [(row * height // rows, -(-(row + 1) * height // rows)) for row in range(rows)]

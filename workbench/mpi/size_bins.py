"""Bins of message sizes."""

from __future__ import annotations

SIZES = 48
"""Bins of message sizes: bin 0 is for empty messages, bin b for 2**(b - 1) to 2**b - 1 bytes, the last for the rest."""

SIZE_BEGINS = (0, *(1 << (number - 1) for number in range(1, SIZES)))
"""The fewest bytes of the messages of each bin."""


def size_bin(nbytes: int) -> int:
    """Return the bin of a message of `nbytes` bytes."""
    # min() would be slower, and this function runs for each message.
    return number if (number := nbytes.bit_length()) < SIZES else SIZES - 1

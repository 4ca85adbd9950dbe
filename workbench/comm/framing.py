"""A message as bytes on the socket; pure functions.

The format is distributed's (``distributed.comm.tcp``): 64-bit little words with the size of the *body*, the number of
frames and the length of each, then the frames. The body is the numbers and as many of the first frames as the
sender sees fit; the receiver reads it in one piece, and each frame after it into memory of its own.

Between members of one world a message may have frames that are not on the socket. Their number is in the upper half of
the second word, the highest bit of the length of each of them is set, and their tags follow the lengths, a word
each. The other frames are as above.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import NamedTuple

from workbench.comm.member import MAX_TAG

WORD = struct.calcsize("Q")
HEADER_SIZE = 2 * WORD
"""Bytes of the first two words: size of the body and number of frames."""
CHUNK = 1 << 26
"""Bytes of one MPI message, and longer frames are several: far below the INT_MAX that MPI counts to, and no more than
an event loop may be away for. Both sides have to agree on it."""
JOINED = 1 << 17
"""Bytes. A frame below it is sent in one piece with what goes before it, where that is shorter than a system call."""
PROGRESS_REQUEST = struct.pack("QQ", WORD, 0)
"""A message of no frames: the receiver of frames by MPI asks for their sender's attention."""
MAX_COUNT = (1 << 31) - 1
"""Bytes that tornado takes or gives at one time."""
_BY_MPI = 1 << 63
_HALF = (1 << 32) - 1
_MAX_BODY = 1 << 25
# More than any message has: only nonsense asks for memory for so many, 128 MiB of numbers.
_MAX_FRAMES = 1 << 24
# Bytes of all frames together: no process has more addresses. Whether there is memory for less is found out by asking.
_MAX_SIZE = 1 << 47

Frame = bytes | bytearray | memoryview


class FrameHeader(NamedTuple):
    """What the first two words of a message say."""

    size: int
    """Bytes of the body after the first two words."""
    frames: int
    """Number of frames."""
    by_mpi: int
    """How many of them go by MPI."""

    @property
    def numbers(self) -> int:
        """Bytes of lengths and tags, which the body goes on with."""
        return WORD * (self.frames + self.by_mpi)


class FrameLayout(NamedTuple):
    """Where the frames of a message are."""

    lengths: tuple[int, ...]
    """Bytes of each frame."""
    tags: dict[int, int]
    """The tag of each frame that goes by MPI, by its index."""
    glued: int
    """How many of the frames on the socket are in the body."""

    @property
    def on_socket(self) -> Sequence[int]:
        """Indices of the frames that are on the socket."""
        if not self.tags:
            return range(len(self.lengths))
        return [index for index in range(len(self.lengths)) if index not in self.tags]


def pack(frames: Sequence[Frame], lengths: Sequence[int], tags: dict[int, int]) -> list[Frame]:
    """Return what is to be written to the socket, piece by piece.

    Parameters
    ----------
    frames, lengths
        Frames of the message and their sizes in bytes.
    tags
        Tags of the frames that go by MPI, by index.

    Raises
    ------
    ValueError
        If there are more frames than a receiver accepts.
    """
    if len(frames) > _MAX_FRAMES:
        raise ValueError(
            f"a message of {len(frames)} frames was to be sent, and at most {_MAX_FRAMES} are accepted: send or gather "
            "fewer objects at a time"
        )
    words: Sequence[int] = lengths
    on_socket: Sequence[int] = range(len(frames))
    if tags:
        words = [length | _BY_MPI if index in tags else length for index, length in enumerate(lengths)]
        words += tags.values()
        on_socket = [index for index in on_socket if index not in tags]
    size, glued = WORD * (1 + len(words)), 0
    for index in on_socket:
        if lengths[index] >= JOINED or size >= _MAX_BODY:
            break
        size += lengths[index]
        glued += 1
    head = struct.pack(f"QQ{len(words)}Q", size, len(frames) | len(tags) << 32, *words)
    body = b"".join([head, *[frames[index] for index in on_socket[:glued]]])
    return [body, *[frames[index] for index in on_socket[glued:] if lengths[index]]]


def parse_header(words: Frame) -> FrameHeader:
    """Return what the first two words of a message say.

    Raises
    ------
    ValueError
        If that cannot be.
    """
    size, counts = struct.unpack_from("QQ", words)
    head = FrameHeader(size - WORD, counts & _HALF, counts >> 32)
    if head.size < head.numbers or head.by_mpi > head.frames:
        raise ValueError(f"a message of {head.frames} frames, {head.by_mpi} of them over MPI, in {size} bytes")
    if head.frames > _MAX_FRAMES or head.by_mpi > MAX_TAG + 1:
        raise ValueError(
            f"a message of {head.frames} frames, {head.by_mpi} of them over MPI: at most {_MAX_FRAMES} frames and "
            f"{MAX_TAG + 1} over MPI are accepted"
        )
    return head


def parse_layout(head: FrameHeader, numbers: Frame) -> FrameLayout:
    """Return where the frames are.

    Parameters
    ----------
    numbers
        Lengths and tags, with whatever follows.

    Raises
    ------
    ValueError
        If that cannot be.
    """
    lengths = on_socket = struct.unpack_from(f"{head.frames}Q", numbers)
    tags: dict[int, int] = {}
    if head.by_mpi:
        by_mpi = [index for index, word in enumerate(lengths) if word & _BY_MPI]
        on_socket = tuple(word for word in lengths if not word & _BY_MPI)
        lengths = tuple(word & ~_BY_MPI for word in lengths)
        words = struct.unpack_from(f"{head.by_mpi}Q", numbers, WORD * head.frames)
        tags = dict(zip(by_mpi, words, strict=True))
    if (total := sum(lengths)) > _MAX_SIZE:
        raise ValueError(f"a message of {total} bytes: at most {_MAX_SIZE} are accepted")
    return FrameLayout(lengths, tags, _joined_frames(on_socket, head.size - head.numbers))


def _joined_frames(lengths: Sequence[int], size: int) -> int:
    """Return how many of the first frames fill `size` bytes."""
    count = 0
    while size > 0 and count < len(lengths):
        size -= lengths[count]
        count += 1
    if size:
        raise ValueError("the body of a message ends in the middle of a frame")
    return count

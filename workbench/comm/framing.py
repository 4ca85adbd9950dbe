"""The bytes of a message on the socket, as pure functions.

The format is distributed's (``distributed.comm.tcp``): 64-bit little-endian words with the size of the *body*, the
number of frames and the length of each frame, then the frames. The body is these numbers and some of the first frames,
as many as the sender chooses. The receiver reads the body in one piece, and each later frame into separate memory.

Between members of one world a message may have frames that are not on the socket. Their number is in the upper half of
the second word, the highest bit of each of their lengths is set, and their tags follow the lengths, one word
per tag. The other frames are as above.
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
"""Bytes of one MPI message, at most; longer frames are several messages. It is far below INT_MAX, the largest count of
MPI, and small enough not to block an event loop for long. Both sides must use the same value."""
JOINED = 1 << 17
"""Bytes. A smaller frame is joined to the previous data, because the copy is faster than one more system call."""
PROGRESS_REQUEST = struct.pack("QQ", WORD, 0)
"""A message without frames, with which a receiver of frames over MPI requests that their sender polls MPI."""
MAX_COUNT = (1 << 31) - 1
"""Bytes that tornado reads or writes in one operation, at most."""
_BY_MPI = 1 << 63
_HALF = (1 << 32) - 1
_MAX_BODY = 1 << 25
# More than any message has. A corrupt header must not allocate more than 128 MiB of numbers.
_MAX_FRAMES = 1 << 24
# Bytes of all frames together: the address space of a process. A smaller size fails when the memory is allocated.
_MAX_SIZE = 1 << 47

Frame = bytes | bytearray | memoryview


class FrameHeader(NamedTuple):
    """The first two words of a message."""

    size: int
    """Bytes of the body after the first two words."""
    frames: int
    """Number of frames."""
    by_mpi: int
    """Number of frames over MPI."""

    @property
    def numbers(self) -> int:
        """Bytes of the lengths and tags, which follow in the body."""
        return WORD * (self.frames + self.by_mpi)


class FrameLayout(NamedTuple):
    """Lengths and positions of the frames of a message."""

    lengths: tuple[int, ...]
    """Bytes of each frame."""
    tags: dict[int, int]
    """Tags of the frames over MPI, by index."""
    joined: int
    """Number of frames on the socket that are in the body."""

    @property
    def on_socket(self) -> Sequence[int]:
        """Indices of the frames that are on the socket."""
        if not self.tags:
            return range(len(self.lengths))
        return [index for index in range(len(self.lengths)) if index not in self.tags]


def pack(frames: Sequence[Frame], lengths: Sequence[int], tags: dict[int, int]) -> list[Frame]:
    """Return the pieces to write to the socket; `tags` are those of the frames over MPI, by index."""
    if len(frames) > _MAX_FRAMES:
        raise ValueError(
            f"The message has {len(frames)} frames. A receiver accepts at most {_MAX_FRAMES}. Send or gather fewer "
            "objects in one message."
        )
    words: Sequence[int] = lengths
    on_socket: Sequence[int] = range(len(frames))
    if tags:
        words = [length | _BY_MPI if index in tags else length for index, length in enumerate(lengths)]
        words += tags.values()
        on_socket = [index for index in on_socket if index not in tags]
    size, joined = WORD * (1 + len(words)), 0
    for index in on_socket:
        if lengths[index] >= JOINED or size >= _MAX_BODY:
            break
        size += lengths[index]
        joined += 1
    header = struct.pack(f"QQ{len(words)}Q", size, len(frames) | len(tags) << 32, *words)
    body = b"".join([header, *[frames[index] for index in on_socket[:joined]]])
    return [body, *[frames[index] for index in on_socket[joined:] if lengths[index]]]


def parse_header(words: Frame) -> FrameHeader:
    """Return the header of a message; raise ValueError if the numbers are not valid."""
    size, counts = struct.unpack_from("QQ", words)
    header = FrameHeader(size - WORD, counts & _HALF, counts >> 32)
    if header.size < header.numbers or header.by_mpi > header.frames:
        raise ValueError(f"a header of {header.frames} frames, {header.by_mpi} over MPI, with a body of {size} bytes")
    if header.frames > _MAX_FRAMES or header.by_mpi > MAX_TAG + 1:
        raise ValueError(
            f"a header of {header.frames} frames, {header.by_mpi} over MPI. At most {_MAX_FRAMES} frames, and "
            f"{MAX_TAG + 1} over MPI, are valid"
        )
    return header


def parse_layout(header: FrameHeader, numbers: Frame) -> FrameLayout:
    """Return the layout that a body begins with; raise ValueError if its numbers are not valid."""
    lengths = on_socket = struct.unpack_from(f"{header.frames}Q", numbers)
    tags: dict[int, int] = {}
    if header.by_mpi:
        by_mpi = [index for index, word in enumerate(lengths) if word & _BY_MPI]
        on_socket = tuple(word for word in lengths if not word & _BY_MPI)
        lengths = tuple(word & ~_BY_MPI for word in lengths)
        tags = dict(zip(by_mpi, struct.unpack_from(f"{header.by_mpi}Q", numbers, WORD * header.frames), strict=True))
    if (total := sum(lengths)) > _MAX_SIZE:
        raise ValueError(f"a message of {total} bytes. At most {_MAX_SIZE} bytes are valid")
    return FrameLayout(lengths, tags, _joined_frames(on_socket, header.size - header.numbers))


def _joined_frames(lengths: Sequence[int], size: int) -> int:
    """Return how many of the first frames fill `size` bytes."""
    count = 0
    while size > 0 and count < len(lengths):
        size -= lengths[count]
        count += 1
    if size:
        raise ValueError("the body of a message ends in the middle of a frame")
    return count

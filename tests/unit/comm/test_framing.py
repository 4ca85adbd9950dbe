"""Messages as bytes: what is packed is parsed, by distributed as well, and nonsense is refused."""

from __future__ import annotations

import asyncio
import struct

import numpy as np
import pytest
from distributed.comm.core import CommClosedError
from distributed.comm.tcp import TCP, _add_frames_header
from distributed.protocol import to_serialize
from distributed.protocol.utils import unpack_frames
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from support.ends import End, together

from workbench.comm import framing

MIB = 1 << 20
sizes = st.one_of(st.integers(0, 40), st.sampled_from([framing.JOINED - 1, framing.JOINED, framing.JOINED + 1, 70_000]))
words = st.integers(0, 2**64 - 1)


@st.composite
def messages(draw):
    frames = [bytes([number % 256]) * size for number, size in enumerate(draw(st.lists(sizes, max_size=12)))]
    by_mpi = draw(st.sets(st.integers(0, len(frames) - 1))) if frames else set()
    tags = {index: draw(st.integers(0, 32767)) for index in sorted(by_mpi)}
    return frames, tags


def parsed(sent: bytes) -> tuple[framing.FrameHeader, framing.FrameLayout, bytes]:
    """Return what the head says, where the frames are, and what follows the numbers."""
    head = framing.parse_header(sent)
    return head, framing.parse_layout(head, sent[framing.HEADER_SIZE :]), sent[framing.HEADER_SIZE + head.numbers :]


@given(messages())
def test_what_is_packed_is_parsed(message):
    frames, tags = message
    lengths = [len(frame) for frame in frames]
    pieces = framing.pack(frames, lengths, tags)
    head, layout, rest = parsed(b"".join(pieces))
    assert (head.frames, head.by_mpi) == (len(frames), len(tags))
    assert list(layout.lengths) == lengths
    assert layout.tags == tags
    assert rest == b"".join(frame for index, frame in enumerate(frames) if index not in tags)
    # what goes before a long frame, which is not copied, is one piece; empty ones are none
    assert len(pieces[0]) == framing.HEADER_SIZE + head.size
    assert all(pieces)


@pytest.mark.parametrize("tags", [{}, {1: 7}], ids=["on the socket", "over MPI"])
def test_the_length_of_a_frame_above_4_gib_is_kept(tags):
    lengths = [3, 5 << 30, 4]
    sent = framing.pack([b"abc", b"in the place of 5 GiB", b"last"], lengths, tags)[0]
    _, layout, _ = parsed(sent)
    assert list(layout.lengths) == lengths
    assert layout.tags == tags


@given(messages())
def test_distributed_reads_what_is_packed(message):
    frames, _ = message
    sent = b"".join(framing.pack(frames, [len(frame) for frame in frames], {}))
    [size] = struct.unpack_from("Q", sent)
    body, rest = unpack_frames(sent[8 : 8 + size], partial=True)
    assert [bytes(frame) for frame in body] == frames[: len(body)]
    assert list(rest) == [len(frame) for frame in frames[len(body) :]]
    assert sent[8 + size :] == b"".join(frames[len(body) :])


@given(messages())
def test_what_distributed_packs_is_parsed(message):
    frames, _ = message
    assume(frames)
    sent = b"".join(_add_frames_header([memoryview(bytearray(frame)) for frame in frames])[0])
    head, layout, rest = parsed(sent)
    assert not head.by_mpi
    assert list(layout.lengths) == [len(frame) for frame in frames]
    assert rest == b"".join(frames)


@given(words, words)
def test_nonsense_is_refused_or_its_numbers_fit_into_its_body(first, second):
    try:
        head = framing.parse_header(struct.pack("QQ", first, second))
    except ValueError as error:
        assert "frames" in str(error)  # noqa: PT017
    else:
        assert 0 <= head.numbers <= head.size
        assert head.by_mpi <= head.frames
        # no reader allocates gigabytes of memory for numbers
        assert head.numbers <= (1 << 27) + (1 << 18)


@pytest.mark.parametrize("counts", [(1 << 24) + 1, 40_000 | 32_769 << 32])
def test_more_frames_than_a_message_can_have_are_refused_before_there_is_memory_for_them(counts):
    with pytest.raises(ValueError, match=r"At most 16777216 frames, and 32768 over MPI, are valid"):
        framing.parse_header(struct.pack("QQ", 1 << 40, counts))


@pytest.mark.parametrize(("lengths", "by_mpi"), [([1 << 62], 0), ([1 << 62], 1), ([1 << 63], 0), ([1 << 46] * 3, 1)])
def test_more_bytes_than_a_process_has_addresses_are_refused(lengths, by_mpi):
    words = [lengths[0] | by_mpi << 63, *lengths[1:], *[0] * by_mpi]
    head = framing.FrameHeader(8 * len(words), len(lengths), by_mpi)
    with pytest.raises(ValueError, match=r"a message of \d+ bytes\. At most \d+ bytes are valid"):
        framing.parse_layout(head, struct.pack(f"{len(words)}Q", *words))


def test_nobody_sends_what_nobody_accepts(monkeypatch):
    monkeypatch.setattr(framing, "_MAX_FRAMES", 2)
    with pytest.raises(ValueError, match=r"has 3 frames\. A receiver accepts at most 2\. Send or gather fewer"):
        framing.pack([b"x"] * 3, [1] * 3, {})


@given(st.lists(words, min_size=1, max_size=6), st.integers(0, 6), st.integers(0, 10**6))
def test_numbers_that_contradict_each_other_are_refused(numbers, by_mpi, size):
    by_mpi = min(by_mpi, len(numbers))
    head = framing.FrameHeader(8 * (len(numbers) + by_mpi) + size, len(numbers), by_mpi)
    try:
        layout = framing.parse_layout(head, struct.pack(f"{len(numbers)}Q", *numbers) + bytes(8 * by_mpi))
    except ValueError:
        return
    assert len(layout.tags) == by_mpi
    assert sum(layout.lengths[index] for index in layout.on_socket[: layout.joined]) == size


def numbered(size: int) -> np.ndarray:
    return np.arange(size).astype(np.uint8)


@pytest.mark.parametrize(("scheme", "left"), [("mpi", "tcp"), ("tcp", "mpi"), ("mpi", "mpi")])
async def test_tcp_and_mpi_speak_with_each_other(scheme, left, monkeypatch):
    # distributed cuts frames into shards, and the reader joins them again
    monkeypatch.setattr(TCP, "max_shard_size", 100_000)
    cases = [[], [0], [1], [0] * 50, [5] * 3000, [MIB - 1, 0, 1, MIB], [99_999, 100_000, 100_001], [8 * MIB]]

    async def check(end: End):
        comm = await end.pair(scheme, left=left)

        async def write():
            for lengths in cases:
                await comm.write({"x": [to_serialize(numbered(size)) for size in lengths], "bytes": b"b" * 200_000})

        async def read():
            for lengths in cases:
                message = await comm.read()
                assert message["bytes"] == b"b" * 200_000
                for size, array in zip(lengths, message["x"], strict=True):
                    np.testing.assert_array_equal(array, numbered(size))

        await asyncio.gather(write(), read())
        await end.gather()
        await comm.close()

    await together(check)


@settings(max_examples=30)
@given(st.binary(max_size=200))
def test_nonsense_on_the_socket_closes_it_or_is_waited_for(nonsense):
    async def check(end: End):
        comm = await end.pair()
        if end.left:
            await comm.stream.write(nonsense)
            await comm.close()
        else:
            with pytest.raises((CommClosedError, ValueError, MemoryError)):
                await comm.read()
            await comm.close()

    asyncio.run(together(check))

"""How frames are laid out for a broadcast."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from workbench.collective.bcast import incoming, layout, outgoing
from workbench.comm.buffer_pool import aligned

SIZES = st.lists(st.sampled_from([0, 1, 63, 64, 65, 1000, (1 << 16) - 1, 1 << 16, (1 << 16) + 1]), max_size=12)


@given(SIZES)
def test_frames_arrive_as_they_were_sent_each_at_a_multiple_of_64(sizes):
    frames = [memoryview(bytes([number % 256]) * size) for number, size in enumerate(sizes)]
    offsets, packed, total = layout(sizes)
    memory = aligned(total)

    sent = outgoing(frames)
    buffers, received = incoming(memory, sizes)

    assert [buffer.nbytes for buffer in sent] == [buffer.nbytes for buffer in buffers]
    assert sent[0].nbytes == packed
    for source, target in zip(sent, buffers, strict=True):
        target[:] = source
    assert received == frames
    assert all(offset % 64 == 0 for offset in offsets)


def test_large_frames_are_sent_from_where_they_lie():
    large = memoryview(bytearray(1 << 20))
    assert outgoing([memoryview(b"header"), large])[1] is large

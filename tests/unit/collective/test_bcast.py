"""How frames are laid out for a broadcast, and what a rank does with an upload."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from workbench.collective import protocol
from workbench.collective.broadcast_rank import incoming, layout, outgoing, upload
from workbench.comm.buffer_pool import aligned
from workbench.errors import RankLost

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


async def test_a_rank_that_ends_after_an_upload_is_lost():
    async def uploaded(**_):
        raise RuntimeError("ConnectionPool is closed")

    worker = SimpleNamespace(
        address="mpi://192.0.2.1:1234",
        scheduler=SimpleNamespace(**{protocol.BROADCAST_UPLOADED: uploaded}),
        update_data=lambda data: {"nbytes": dict.fromkeys(data, 8)},
    )

    with pytest.raises(RankLost):
        await upload(worker, "key", 1)

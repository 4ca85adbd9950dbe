"""What a transfer tells of its end; MPI itself is in tests/mpi."""

from __future__ import annotations

import pytest

from workbench.comm.engine import Transfer


class Request:
    """A receive that nobody sends to: complete once it is cancelled."""

    def __init__(self) -> None:
        self.cancelled = False

    def Test(self) -> bool:  # noqa: N802  (MPI's name)
        return self.cancelled

    def Cancel(self) -> None:  # noqa: N802
        self.cancelled = True


@pytest.mark.parametrize("error", [None, "the peer ended"])
def test_a_transfer_tells_once_that_mpi_has_done_with_it_and_whether_it_failed(error: str | None) -> None:
    told: list[str | None] = []
    transfer = Transfer(
        lambda *_: Request(),
        [(memoryview(bytearray(8)), 0)],
        window=1,
        is_receive=True,
        peer_is_gone=lambda: False,
        when_over=told.append,
    )
    assert not transfer.step()
    transfer.cancel()
    transfer.finish(error)
    assert transfer.step()
    assert transfer.step()
    assert told == [error]

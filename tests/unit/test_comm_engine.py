"""What a transfer tells of its end; MPI itself is in tests/mpi."""

from __future__ import annotations

import asyncio
import sys
from types import SimpleNamespace

import pytest
from support.patience import DEADLINE

from workbench.comm import engine
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


async def test_a_send_that_was_given_up_is_over_when_the_peer_was_only_slow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "mpi4py.MPI", SimpleNamespace(Exception=RuntimeError))
    monkeypatch.setattr(engine, "_ABANDON", 0.0)
    monkeypatch.setattr(engine, "_RARELY", 0.01)
    request, over = Request(), asyncio.Event()
    transfer = Transfer(
        lambda *_: request,
        [(memoryview(bytearray(8)), 0)],
        window=1,
        is_receive=False,
        peer_is_gone=lambda: True,
        when_over=lambda _: over.set(),
    )
    its = engine.engine()
    its.start(transfer)
    if waiter := transfer.waiter():
        await asyncio.wait_for(waiter, DEADLINE)
    assert its.outstanding == [transfer]

    request.cancelled = True  # stands for the arrival

    await asyncio.wait_for(over.wait(), DEADLINE)
    assert its.outstanding == []
    assert its._next is None

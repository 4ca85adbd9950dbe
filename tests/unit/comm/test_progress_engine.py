"""What a transfer reports at its end; MPI itself is in tests/mpi."""

from __future__ import annotations

import asyncio
import itertools
import time
from typing import TYPE_CHECKING, Any

from support.patience import DEADLINE

from workbench.comm import progress_engine
from workbench.comm.progress_engine import Transfer

if TYPE_CHECKING:
    import pytest


class Request:
    """A piece on its way: MPI has completed it once it is canceled, or when the test sets that."""

    def __init__(self) -> None:
        self.cancelled, self.error = False, ""

    def Test(self, status: Status | None = None) -> bool:  # noqa: N802  (MPI's name)
        if self.error:
            raise RuntimeError(self.error)
        return self.cancelled

    def Cancel(self) -> None:  # noqa: N802
        self.cancelled = True


class Status:
    """What MPI notes of a receive."""

    def __init__(self, came: int = 8) -> None:
        self.came = came

    def Get_count(self) -> int:  # noqa: N802
        return self.came


class Posting:
    """What a transfer posts, in the place of MPI, and what it reports."""

    def __init__(self, frames: int = 1, status: Status | None = None, *, peer_has_ended: bool = False) -> None:
        self.requests: list[Request] = []
        self.told: list[str | None] = []
        self.refuse = ""
        self.transfer = Transfer(
            self._post,
            [(memoryview(bytearray(8)), tag) for tag in range(frames)],
            window=float("inf"),
            status=status,
            peer_has_ended=lambda: peer_has_ended,
            when_done=self._note,
        )
        self.over = asyncio.Event()

    def _note(self, error: str | None) -> None:
        self.told.append(error)
        self.over.set()

    def _post(self, *_: Any) -> Request:
        if self.refuse:
            raise RuntimeError(self.refuse)
        self.requests.append(Request())
        return self.requests[-1]


def test_a_transfer_reports_once_that_everything_has_arrived() -> None:
    posting = Posting(status=Status())
    assert not posting.transfer.step()
    posting.requests[0].cancelled = True  # stands for the arrival
    assert posting.transfer.step()
    assert posting.transfer.step()
    assert posting.told == [None]


def test_a_transfer_that_failed_reports_it_once_and_its_receives_are_cancelled() -> None:
    posting = Posting(status=Status())
    assert not posting.transfer.step()
    posting.transfer.fail("the peer ended")
    posting.transfer.fail("and so did this")
    assert posting.transfer.step()
    assert posting.told == ["the peer ended"]
    assert posting.requests[0].cancelled


async def test_a_receive_of_fewer_bytes_than_announced_fails() -> None:
    posting = Posting(2, Status(3))
    progress_engine.engine().start(posting.transfer)
    posting.requests[0].cancelled = True
    await asyncio.wait_for(posting.transfer.waiter(), DEADLINE)
    assert posting.transfer.error == "MPI: received 3 bytes, but 8 were announced"
    assert posting.requests[1].cancelled
    assert posting.told == [posting.transfer.error]


async def test_a_send_that_mpi_refuses_fails_at_once_and_nothing_is_posted_in_its_place() -> None:
    posting = Posting(3)
    posting.refuse = "no memory"
    its = progress_engine.engine()
    its.start(posting.transfer)
    assert posting.told == ["MPI: no memory"]
    assert posting.transfer.waiter() is None
    assert its.outstanding == []
    posting.refuse = ""
    assert posting.transfer.step()
    assert posting.requests == []


async def test_a_send_that_fails_on_its_way_stays_mpis_until_mpi_has_done_with_it() -> None:
    posting = Posting(2)
    its = progress_engine.engine()
    its.start(posting.transfer)
    posting.requests[0].error = "the endpoint is down"
    await asyncio.wait_for(posting.transfer.waiter(), DEADLINE)
    assert posting.told == [posting.transfer.error] == ["MPI: the endpoint is down"]
    assert not progress_engine.finish(0.0)
    posting.requests[0].error = ""
    for request in posting.requests:
        request.cancelled = True
    assert progress_engine.finish(0.0)
    assert posting.told == ["MPI: the endpoint is down"]


async def test_a_send_that_was_given_up_is_over_when_the_peer_was_only_slow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress_engine, "_SEND_TIMEOUT", 0.0)
    monkeypatch.setattr(progress_engine, "_ABANDONED_INTERVAL", 0.01)
    posting = Posting(peer_has_ended=True)
    its = progress_engine.engine()
    its.start(posting.transfer)
    if waiter := posting.transfer.waiter():
        await asyncio.wait_for(waiter, DEADLINE)
    assert its.outstanding == [posting.transfer]
    assert posting.told == []

    posting.requests[0].cancelled = True  # stands for the arrival

    await asyncio.wait_for(posting.over.wait(), DEADLINE)
    # It has arrived: its tags are free.
    assert posting.told == [None]
    assert its.outstanding == []
    assert its.next_poll is None


async def test_calls_of_mpi_that_take_long_leave_the_loop_to_others_in_between(monkeypatch):
    monkeypatch.setattr(progress_engine, "_SETTLE_SLICE", 0.0)
    its, calls, seen = progress_engine.ProgressEngine(asyncio.get_running_loop()), [], [0]
    its.settle(lambda: calls.append(1))

    async with asyncio.timeout(DEADLINE):
        while len(calls) < 20:
            await asyncio.sleep(0)
            seen.append(len(calls))

    assert max(after - before for before, after in itertools.pairwise(seen)) == 1


async def test_calls_of_mpi_that_fail_are_not_made_again_at_once():
    its, calls = progress_engine.ProgressEngine(asyncio.get_running_loop()), []
    again = asyncio.Event()

    def fail():
        calls.append(time.monotonic())
        if len(calls) == 3:
            again.set()
        raise RuntimeError("MPI_ERR_PROC_FAILED")

    its.settle(fail)
    await asyncio.wait_for(again.wait(), DEADLINE)

    first, second, third = calls
    assert second - first > 0.0019
    assert third - second > 0.0039

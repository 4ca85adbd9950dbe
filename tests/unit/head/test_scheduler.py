"""Dask's own pages reach a client through its connection to the head."""

from __future__ import annotations

import asyncio
import shutil
from types import SimpleNamespace

import pytest
from distributed import Scheduler
from distributed.comm.core import CommClosedError
from distributed.core import Status, _expects_comm
from distributed.scheduler import WorkerState
from distributed.security import Security
from distributed.utils import has_keyword
from support.patience import DEADLINE

from workbench.errors import RankLost
from workbench.head import lost_ranks
from workbench.head.scheduler import HeadScheduler


def a_rank(address, name, facts):
    """Return the worker of a rank, as the scheduler has it."""
    return WorkerState(
        address=address, status=Status.running, pid=7, nthreads=1, memory_limit=0, local_directory="", services={},
        versions={}, nanny=None, server_id="", scheduler=None, name=name, extra={"workbench": facts},
    )  # fmt: skip


class Connection:
    """The head's end of a connection, with the bytes of one request."""

    def __init__(self, request):
        self.requests, self.answer = [request], b""
        self.closed = asyncio.Event()

    async def read(self):
        if self.requests:
            return self.requests.pop()
        await self.closed.wait()
        raise OSError("closed")

    async def write(self, piece):
        self.answer += piece

    def abort(self):
        self.closed.set()


@pytest.fixture
async def scheduler(tmp_path):
    """A scheduler that does not run."""
    folder = tmp_path / "sockets"
    folder.mkdir(mode=0o700)
    made = HeadScheduler(
        http_socket=folder / "head.sock",
        local_directory=tmp_path,
        host="127.0.0.1",
        security=Security(),
        logs=tmp_path,
    )
    yield made
    made.http_server.stop()


async def test_pages_are_there_although_the_folder_of_the_sockets_is_gone(scheduler):
    """The system removes XDG_RUNTIME_DIR when its user logs out, and the cluster keeps running."""
    shutil.rmtree(scheduler.http_socket.parent)
    connection = Connection(b"GET /status HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")

    async with asyncio.timeout(DEADLINE):
        await scheduler.tunnel_dashboard(connection)
    assert connection.answer.startswith(b"HTTP/1.1 200 OK")
    assert b"dask" in connection.answer
    assert connection.answer.rstrip().endswith(b"</html>")


async def test_a_rank_that_leaves_in_order_has_not_the_cause_of_an_earlier_one_at_its_address(scheduler, monkeypatch):
    async def remove_worker(*_, **__):
        return "OK"

    monkeypatch.setattr(Scheduler, "remove_worker", remove_worker)
    rank = a_rank("tls://192.0.2.1:1234", "0", {"host": "n2", "rank": 0, "world": 0, "pid": 7})
    scheduler.workers, scheduler.returns = {rank.address: rank}, lambda _: False
    scheduler.causes = {rank.address: " with signal 9 (SIGKILL)"}

    await scheduler.remove_worker(rank.address, stimulus_id="closing", expected=True)
    assert scheduler.causes == {}


async def test_while_the_cause_of_a_loss_is_read_the_loss_is_known_and_no_other_removal_overtakes_it(
    scheduler, monkeypatch
):
    removals, reading, written = [], asyncio.Event(), asyncio.Event()

    async def remove_worker(self, address, *, expected, **_):
        removals.append((address in self.workers, expected))
        self.workers.pop(address, None)
        return "OK"

    async def read(log):
        reading.set()
        await written.wait()
        return f" as {log.name} says"

    monkeypatch.setattr(Scheduler, "remove_worker", remove_worker)
    monkeypatch.setattr(lost_ranks, "read", read)
    facts = {"host": "n2", "world": 1, "rank": 3, "pid": 7}
    rank = a_rank("tls://192.0.2.1:1234", "3 of world 1", facts)
    scheduler.workers = {rank.address: rank}
    scheduler.is_expected, scheduler.returns = lambda _: False, lambda _: True

    async with asyncio.timeout(DEADLINE):
        lost = asyncio.ensure_future(scheduler.remove_worker(rank.address, stimulus_id="closed"))
        await reading.wait()
        assert (scheduler.loses(0), scheduler.loses(1)) == (False, True)
        ended = asyncio.ensure_future(scheduler.remove_worker(rank.address, stimulus_id="world-lost", expected=True))
        await asyncio.sleep(0)
        assert removals == []
        written.set()
        await asyncio.gather(lost, ended)
    assert removals[0] == (True, False), "the tasks of the rank fail"
    assert not scheduler.loses(1)
    assert scheduler.causes == {rank.address: " as rank-3.log says"}
    assert scheduler.awaited == {rank.address: 3}


@pytest.mark.parametrize("error", [KeyError("mpi://127.0.0.1:1"), CommClosedError("a rank has left")])
async def test_data_for_a_rank_that_leaves_meanwhile_raises_rank_lost(monkeypatch, error):
    async def scatter(*_, **__):
        raise error

    monkeypatch.setattr(Scheduler, "scatter", scatter)
    scheduler = object.__new__(HeadScheduler)

    with pytest.raises(RankLost):
        await scheduler.scatter({}, None, "client")


def test_data_on_a_rank_that_has_left_are_not_registered():
    scheduler = object.__new__(HeadScheduler)
    scheduler.aliases, scheduler.workers, scheduler.tasks = {}, {}, {}

    with pytest.raises(RankLost):
        scheduler.update_data(who_has={"x": ["tls://192.0.2.1:1234"]}, nbytes={"x": 8}, client="client")
    assert scheduler.tasks == {}


async def test_handlers_of_dask_for_nannies_have_its_parameters_where_a_worker_has_a_nanny(monkeypatch):
    async def register(*arguments):
        return arguments[1:]

    async def broadcast(*_, **options):
        return options

    monkeypatch.setattr(Scheduler, "register_nanny_plugin", register)
    monkeypatch.setattr(Scheduler, "broadcast", broadcast)
    scheduler = object.__new__(HeadScheduler)
    scheduler.workers = {
        "tcp://a": SimpleNamespace(nanny="tcp://b", extra={}),
        "tcp://next": SimpleNamespace(nanny=None, extra={"workbench": {"world": 1}}),
    }

    assert _expects_comm(scheduler.register_nanny_plugin)
    request = {"plugin": b"", "name": "n", "idempotent": True}
    assert await scheduler.register_nanny_plugin(None, **request) == (None, b"", "n", True)
    assert has_keyword(scheduler.broadcast, "serializers")
    assert await scheduler.broadcast(msg={}, nanny=True, serializers=["dask"]) == {
        "msg": {}, "nanny": True, "serializers": ["dask"], "workers": ["tcp://a"],
    }  # fmt: skip

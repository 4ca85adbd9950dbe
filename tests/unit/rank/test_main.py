"""What a rank may end beside itself, what may end it, and what it does first."""

from __future__ import annotations

import dataclasses
import io
import itertools
import os
import subprocess
import sys
import threading
import time
from concurrent.futures import Future
from types import SimpleNamespace

import pytest
from support.patience import DEADLINE
from support.raised import raises

from workbench.deploy import registry
from workbench.deploy.record import Record
from workbench.host.processes import ProcessId
from workbench.mpi.context import SpmdThread
from workbench.rank import worker, world
from workbench.rank.__main__ import _is_launcher
from workbench.rank.world import _join_barrier, _result


def test_an_orphan_leaves_its_new_parent_alone() -> None:
    daemon, head = os.getpid(), ProcessId.of(os.getppid())
    assert _is_launcher(daemon, head)
    assert not _is_launcher(daemon, ProcessId.here()), "a head that is not among the parents"


@pytest.mark.parametrize(
    "name",
    [
        *("prted", "hydra_pmi_proxy", "hydra_bstrap_proxy", "slurmstepd"),
        *("mpispawn", "flux-shell", "palsd", "psidforwarder", "jsmd", "plexec"),
    ],
)
def test_on_other_nodes_a_rank_ends_the_daemon_of_its_launcher_and_nobody_else(name, tmp_path) -> None:
    elsewhere = dataclasses.replace(ProcessId.here(), host="node2", pid=0)
    program = tmp_path / name
    program.symlink_to("/bin/sleep")
    with subprocess.Popen([program, str(DEADLINE)]) as daemon:
        assert _is_launcher(daemon.pid, elsewhere)
        daemon.kill()
    assert not _is_launcher(daemon.pid, elsewhere), "it has ended"
    assert not _is_launcher(os.getpid(), elsewhere), "who has adopted an orphan"


def test_a_rank_that_has_closed_its_worker_is_not_cut_off_while_it_finalizes_mpi(monkeypatch):
    timer = threading.Timer(DEADLINE, lambda: None)
    monkeypatch.setattr(worker, "_timers", [timer])
    worker.has_closed()
    assert timer.finished.is_set()


def test_ranks_meet_before_any_call_of_the_head_although_a_call_may_be_faster(monkeypatch) -> None:
    done: list[str] = []
    monkeypatch.setattr(world, "barrier", lambda *_: done.append("met"))
    thread, registered = SpmdThread(), threading.Event()
    thread.submit(_join_barrier, None, registered, Future(), time.monotonic() + DEADLINE)
    call = thread.submit(done.append, "a call")
    registered.set()
    call.result(DEADLINE)
    assert done == ["met", "a call"]


@pytest.fixture
def record(monkeypatch):
    """A record that has its cluster's address when it is read for the third time; the launcher forwards no input."""
    record, reads = Record(name="mine", ranks=1), itertools.count(1)
    monkeypatch.setattr(sys, "stdin", io.StringIO(""))
    monkeypatch.setattr(
        registry, "read", lambda _: dataclasses.replace(record, address="tls://there" if next(reads) > 2 else None)
    )
    return record


def test_the_address_is_in_the_record_if_the_launcher_does_not_forward_its_input(record) -> None:
    assert world.address_and_name(record, time.monotonic() + DEADLINE).startswith("tls://there ")


def test_without_an_address_the_launcher_or_the_head_is_named(record, monkeypatch) -> None:
    with pytest.raises(TimeoutError):
        world.address_and_name(record, 0.0)
    ended = dataclasses.replace(record, process=dataclasses.replace(record.process, started=0.0))
    monkeypatch.setattr(registry, "read", lambda _: ended)
    with pytest.raises(ConnectionError):
        world.address_and_name(record, time.monotonic() + DEADLINE)


def test_a_rank_that_waits_in_vain_names_the_event_and_a_call_that_does_gives_the_reason() -> None:
    late = time.monotonic() - 2  # after the extra time for the error of the call
    with pytest.raises(TimeoutError, match=r"the wait for MPI_Init has timed out\. See the logs"):
        _result(Future(), late, "MPI_Init")
    fails: Future[None] = Future()
    fails.set_exception(TimeoutError("the wait for all 4 ranks of the world has timed out"))
    with raises(TimeoutError, args=("the wait for all 4 ranks of the world has timed out",)):
        _result(fails, late, "the other ranks")


def test_a_rank_that_has_ended_already_does_not_wait_for_the_others(monkeypatch) -> None:
    monkeypatch.setattr(world, "barrier", lambda *_: pytest.fail("it waits"))
    registered, ended = threading.Event(), Future()
    ended.set_result(None)
    registered.set()
    _join_barrier(None, registered, ended, time.monotonic() + DEADLINE)


class FakeMPI:
    """One rank with the thread levels of some ABI, which provides any of them."""

    COMM_TYPE_SHARED = 0

    def __init__(self, *levels: int) -> None:
        self.THREAD_SINGLE, self.THREAD_FUNNELED, self.THREAD_SERIALIZED, self.THREAD_MULTIPLE = levels
        world = SimpleNamespace(
            rank=0, size=1, bcast=lambda rank: rank, Free=lambda: None, allgather=lambda each: [each]
        )
        world.Split_type, world.Dup = lambda _: world, lambda: world
        self.COMM_WORLD = world

    def Init_thread(self, required: int) -> int:  # noqa: N802  (a name of mpi4py)
        return max(level for name, level in vars(self).items() if name.startswith("THREAD_") and level <= required)

    def Get_library_version(self) -> str:  # noqa: N802
        return "MPI 5.0, a library\0"


@pytest.mark.parametrize("levels", [(0, 1, 2, 3), (0, 1024, 2048, 4096)], ids=["of the library", "of MPI 5"])
def test_thread_levels_go_by_their_names_because_each_abi_has_its_numbers(levels, monkeypatch) -> None:
    mpi4py = SimpleNamespace(rc=SimpleNamespace(thread_level=None), MPI=FakeMPI(*levels))
    monkeypatch.setitem(sys.modules, "mpi4py", mpi4py)
    assert world.init_mpi(1, 0, SpmdThread()).threads == "multiple"
    mpi4py.rc.thread_level = "funneled"
    assert world.init_mpi(1, 0, SpmdThread()).threads == "funneled"

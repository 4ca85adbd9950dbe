"""The record of a cluster that runs, as its head keeps it."""

from __future__ import annotations

import asyncio
import signal
import sys
import threading
import time
from functools import partial
from types import SimpleNamespace

import pytest
from support.patience import DEADLINE
from support.processes import until

from workbench.comm import certificates
from workbench.deploy import ended, registry
from workbench.deploy.folder import RECORD, ClusterFolder
from workbench.deploy.record import Record
from workbench.errors import MPINotFound, RecordError, StartError
from workbench.head import __main__ as head_process
from workbench.head import head as head_module
from workbench.head import keeper
from workbench.head.head import Head
from workbench.host import node_dirs, stub
from workbench.launch import mpi_library


async def test_a_head_whose_disk_is_full_answers_and_writes_its_record_when_there_is_room(monkeypatch):
    written, over, told = asyncio.Queue(), asyncio.Event(), []
    full = [True]

    def update(record):
        if full[0]:
            raise OSError(122, "Disk quota exceeded")
        loop.call_soon_threadsafe(written.put_nowait, record)

    monkeypatch.setattr(ClusterFolder, "update", lambda _, record: update(record))
    loop, head = asyncio.get_running_loop(), object.__new__(Head)
    head.record = Record(name="a", ranks=2, state="ready", message="a rank has come")
    head.folder = ClusterFolder.of(head.record)
    head._saving, head._changed = threading.Lock(), asyncio.Event()
    head._tasks, head._end = set(), loop.create_future()
    head._changed.set()

    def report(message, kind):
        told.append((message, kind))
        if "again" in message:
            over.set()

    monkeypatch.setattr(head, "_report", report)

    assert (await head._rpc_status())["message"] == "a rank has come"
    [(notice, kind)] = told
    assert notice.startswith(
        f"{ClusterFolder.of(head.record).path} has no room (Disk quota exceeded): the cluster continues"
    )
    assert kind == "disk"
    await head._save_change()
    full[0] = False
    writing = asyncio.ensure_future(head._write_record())
    async with asyncio.timeout(DEADLINE):
        assert (await written.get()).message == "a rank has come"
        await over.wait()
    writing.cancel()
    assert told[1:] == [(f"{ClusterFolder.of(head.record).path} has room again", "disk")], "each is reported once"


async def test_a_head_that_lives_withdraws_the_note_of_a_stop_that_was_killed_and_not_of_one_that_runs(monkeypatch):
    monkeypatch.setattr(head_module, "_NOTE_INTERVAL", 0.01)
    head = object.__new__(Head)
    stopping = Record(name="stopping", ranks=2)
    head.record = Record(name="a", ranks=2)
    head.folder = ClusterFolder.of(head.record)
    for record, age in ((head.record, 3600), (stopping, 5)):
        ClusterFolder.of(record).note(record, ended.STOPPED, "the user has stopped it", time.time() - age)
    watching = asyncio.ensure_future(head._watch_note())
    await asyncio.to_thread(until, "the note is withdrawn", lambda: ClusterFolder.of(head.record).end() is None)
    head.record = stopping
    head.folder = ClusterFolder.of(head.record)
    await asyncio.sleep(0.05)  # several looks
    watching.cancel()
    assert ClusterFolder.of(stopping).end() is not None


async def test_a_head_whose_file_server_hangs_answers_without_its_record_on_disk(monkeypatch):
    answers = threading.Event()
    monkeypatch.setattr(ClusterFolder, "update", lambda *_: answers.wait(2 * DEADLINE))
    monkeypatch.setattr(head_module, "_SAVE_TIMEOUT", 0.05)
    head = object.__new__(Head)
    head.record = Record(name="a", ranks=2, state="ready")
    head.folder = ClusterFolder.of(head.record)
    head._saving, head._changed = threading.Lock(), asyncio.Event()
    head._tasks, head._end = set(), asyncio.get_running_loop().create_future()
    head._changed.set()
    try:
        async with asyncio.timeout(DEADLINE):
            assert (await head._rpc_status())["name"] == "a"
    finally:
        answers.set()
    await asyncio.gather(*head._tasks)


@pytest.mark.parametrize(
    ("error", "message", "hint"),
    [
        (
            RecordError("/scratch/x cannot be created.", hint="Set TMPDIR."),
            "/scratch/x cannot be created.",
            "Set TMPDIR.",
        ),
        (OSError(99, "Cannot assign requested address"), "[Errno 99] Cannot assign requested address", None),
    ],
)
def test_a_head_that_cannot_serve_writes_why_and_removes_the_key(error, message, hint, tmp_path, monkeypatch):
    async def fail(*_):
        raise error

    monkeypatch.setenv("JUPYTER_DATA_DIR", str(tmp_path))
    monkeypatch.setattr(head_process, "_serve", fail)
    record = Record(name="a", ranks=2, state="starting")
    registry.create(record)
    certificates.make(ClusterFolder.of(record).path, "a")

    assert head_process._run(record, None, "127.0.0.1", {}) == 1
    written = registry.read("a")
    assert (written.state, written.message) == ("failed", message)
    assert written.failure.get("hint") == (hint and [hint])
    assert [path.name for path in ClusterFolder.of(record).path.iterdir()] == [RECORD]


def test_a_head_that_fails_leaves_the_folder_of_another_cluster_alone(tmp_path, monkeypatch):
    monkeypatch.setenv("JUPYTER_DATA_DIR", str(tmp_path))
    other = Record(name="a", ranks=4, state="ready")
    registry.create(other)
    certificates.make(ClusterFolder.of(other).path, "a")

    assert head_process._fail(Record(name="a", ranks=2), OSError(28, "No space left on device")) == 1
    assert registry.read("a") == other
    assert (ClusterFolder.of(other).path / certificates.KEY).exists()


def test_a_key_that_cannot_be_removed_does_not_hide_why_a_head_fails(tmp_path, monkeypatch, caplog):
    monkeypatch.setenv("JUPYTER_DATA_DIR", str(tmp_path))
    record = Record(name="a", ranks=2, state="starting")
    registry.create(record)
    (
        ClusterFolder.of(record).path / certificates.CERTIFICATE
    ).mkdir()  # an error as of a file server that permits no changes

    assert head_process._fail(record, StartError("no MPI was found.")) == 1
    assert registry.read("a").message == "no MPI was found."


@pytest.fixture
def starting(monkeypatch):
    """Let a head run in this process, which keeps its signals and variables, until its world is to start."""
    for name in stub.ONE_THREAD:
        monkeypatch.setenv(name, "1")
    monkeypatch.setattr(mpi_library, "loaded_library", lambda: None)
    monkeypatch.setattr(head_process, "_import", lambda _: None)
    monkeypatch.setattr(sys, "argv", ["program", "a", "id"])
    before = {number: signal.getsignal(number) for number in (signal.SIGCHLD, signal.SIGINT, signal.SIGUSR1)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.usefixtures("starting")
def test_a_head_of_a_batch_job_that_finds_no_mpi_leaves_nothing_on_its_node(tmp_path, monkeypatch):
    def fail(*_):
        assert memory.exists()
        raise MPINotFound("no MPI was found.")

    monkeypatch.setenv("JUPYTER_DATA_DIR", str(tmp_path))
    record = Record(name="a", ranks=2)
    registry.create(record)
    memory = node_dirs.shared_memory(record.id, make=False)
    monkeypatch.setattr(head_process, "await_record", lambda *_: record)
    monkeypatch.setattr(head_process, "launcher", lambda _: SimpleNamespace(batch=True))
    monkeypatch.setattr(head_process, "current_allocation", lambda: SimpleNamespace(job="7"))
    monkeypatch.setattr(mpi_library, "mpiexec_of", fail)

    assert head_process.main() == 1
    assert registry.read("a").message == "no MPI was found."
    assert not memory.exists()


@pytest.mark.usefixtures("starting")
@pytest.mark.parametrize("program", [head_process, keeper], ids=["head", "keeper"])
def test_a_head_and_a_keeper_see_the_ends_of_children_whatever_a_program_above_ignores(program, monkeypatch):
    def look(*_):
        seen.append(signal.getsignal(signal.SIGCHLD))
        raise SystemExit

    seen = []
    monkeypatch.setattr(program, "await_record", look)
    if program is keeper:
        monkeypatch.setattr(sys, "argv", ["program", "a", "id", "1", "2"])
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    with pytest.raises(SystemExit):
        program.main()
    assert seen == [signal.SIG_DFL]


async def test_a_file_server_that_hangs_does_not_keep_a_head_from_ending_its_ranks(monkeypatch):
    answers, ended_in = threading.Event(), []

    async def end(part, **_):
        ended_in.append(part)

    def hang(*_):
        answers.wait(DEADLINE)

    monkeypatch.setattr(head_module, "_DISK_TIMEOUT", 0.05)
    monkeypatch.setattr(ClusterFolder, "update", hang)
    monkeypatch.setattr(ClusterFolder, "remove", hang)
    head = object.__new__(Head)
    head.record, head._saving, head._tasks = Record(name="a", ranks=2, state="ready"), threading.Lock(), set()
    head.folder = ClusterFolder.of(head.record)
    head.worlds = SimpleNamespace(stop=partial(end, "worlds"))
    head.cells = SimpleNamespace(close=partial(end, "cells"))
    head.scheduler = SimpleNamespace(
        log_event=lambda *_: None,
        reject_new_work=lambda _: None,
        fail_unfinished=lambda _: None,
        close=partial(end, "scheduler"),
    )
    try:
        async with asyncio.timeout(DEADLINE):
            assert await head._close("ended", "SIGTERM was received") == 0
        assert ended_in == ["worlds", "cells", "scheduler"]
    finally:
        answers.set()

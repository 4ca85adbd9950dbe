"""The record of a cluster that runs, as its head keeps it."""

from __future__ import annotations

import asyncio
import signal
import sys
import threading
import time
from types import SimpleNamespace

import pytest
from support.heads import running_head
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
from workbench.host import node_dirs, processes, stub
from workbench.launch import mpi_library
from workbench.launch.mpi_library import MPI


@pytest.fixture(autouse=True)
def _folder(tmp_path, monkeypatch):
    monkeypatch.setenv("JUPYTER_DATA_DIR", str(tmp_path))


async def test_a_head_whose_disk_is_full_answers_and_writes_its_record_when_there_is_room(monkeypatch):
    written = asyncio.Queue()
    full = [True]

    def update(record):
        if full[0]:
            raise OSError(122, "Disk quota exceeded")
        loop.call_soon_threadsafe(written.put_nowait, record)

    monkeypatch.setattr(ClusterFolder, "update", lambda _, record: update(record))
    loop, record = asyncio.get_running_loop(), Record(name="a", ranks=2, state="ready")
    folder = ClusterFolder.of(record).path
    async with asyncio.timeout(DEADLINE), running_head(record) as its:
        await asyncio.to_thread(until, "the notice", lambda: its.messages("disk"))
        notice = f"{folder} has no room (Disk quota exceeded): the cluster continues, but its record and its logs"
        assert (await its.status())["message"].startswith(notice)
        full[0] = False
        assert (await written.get()).message.startswith(notice)
        await asyncio.to_thread(until, "the next notice", lambda: its.messages("disk")[1:])
        first, *others = its.messages("disk")
    assert first.startswith(notice)
    assert others == [f"{folder} has room again"], "each is reported once"


async def test_a_head_that_lives_withdraws_the_note_of_a_stop_that_was_killed_and_not_of_one_that_runs(monkeypatch):
    monkeypatch.setattr(head_module, "_NOTE_INTERVAL", 0.01)
    record = Record(name="a", ranks=2)
    folder = ClusterFolder.of(record)
    async with running_head(record):
        folder.note(record, ended.STOPPED, "the user has stopped it", time.time() - 3600)
        await asyncio.to_thread(until, "the note is withdrawn", lambda: folder.end() is None)
        folder.note(record, ended.STOPPED, "the user stops it", time.time() - 5)
        await asyncio.sleep(0.05)  # several looks
        assert folder.end().reason == "the user stops it"


async def test_a_head_whose_file_server_hangs_answers_without_its_record_on_disk(monkeypatch):
    answers = threading.Event()
    monkeypatch.setattr(ClusterFolder, "update", lambda *_: answers.wait(2 * DEADLINE))
    monkeypatch.setattr(head_module, "_SAVE_TIMEOUT", 0.05)
    async with running_head(Record(name="a", ranks=2, state="ready")) as its:
        try:
            its.head.drain("maintenance")
            async with asyncio.timeout(DEADLINE):
                assert (await its.status())["message"].startswith("maintenance: ")
        finally:
            answers.set()


@pytest.fixture
def starting(monkeypatch):
    """Let a head run in this process, which keeps its signals and variables, until its world is to start."""
    for name in stub.ONE_THREAD:
        monkeypatch.setenv(name, "1")
    monkeypatch.setattr(mpi_library, "loaded_library", lambda: None)
    monkeypatch.setattr(head_process, "_import", lambda _: None)
    monkeypatch.setattr(sys, "argv", ["program", "a"])
    before = {number: signal.getsignal(number) for number in (signal.SIGCHLD, signal.SIGINT, signal.SIGUSR1)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.usefixtures("starting")
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
def test_a_head_that_cannot_serve_writes_why_and_removes_the_key(error, message, hint, monkeypatch):
    async def fail(*_):
        raise error

    monkeypatch.setattr(mpi_library, "mpiexec_of", lambda *_: MPI("openmpi", (5, 0), "", "mpiexec"))
    monkeypatch.setattr(head_process, "WorldProcess", lambda *_, **__: SimpleNamespace(spawn=lambda _: None))
    monkeypatch.setattr(head_process, "append_directory", lambda: None)
    monkeypatch.setattr(head_process, "_serve", fail)
    record = Record(name="a", ranks=2, template=False)
    registry.create(record)
    certificates.make(ClusterFolder.of(record).path, "a")

    assert head_process.main() == 1
    written = registry.read("a")
    assert (written.state, written.message) == ("failed", message)
    assert written.failure.get("hint") == (hint and [hint])
    assert [path.name for path in ClusterFolder.of(record).path.iterdir()] == [RECORD]


@pytest.mark.usefixtures("starting")
def test_a_head_that_fails_leaves_the_folder_of_another_cluster_alone(monkeypatch):
    def fail(_):
        raise OSError(28, "No space left on device")

    other = Record(name="a", ranks=4, state="ready")
    registry.create(other)
    certificates.make(ClusterFolder.of(other).path, "a")

    monkeypatch.setattr(head_process, "await_record", lambda *_: Record(name="a", ranks=2))
    monkeypatch.setattr(processes, "check_open_files", fail)

    assert head_process.main() == 1
    assert registry.read("a") == other
    assert (ClusterFolder.of(other).path / certificates.KEY).exists()


@pytest.mark.usefixtures("starting")
def test_a_key_that_cannot_be_removed_does_not_hide_why_a_head_fails(monkeypatch):
    def fail(*_):
        raise StartError("no MPI was found.")

    record = Record(name="a", ranks=2)
    registry.create(record)
    # an error as of a file server that permits no changes
    (ClusterFolder.of(record).path / certificates.CERTIFICATE).mkdir()
    monkeypatch.setattr(mpi_library, "mpiexec_of", fail)

    assert head_process.main() == 1
    assert registry.read("a").message == "no MPI was found."


@pytest.mark.usefixtures("starting")
def test_a_head_of_a_batch_job_that_finds_no_mpi_leaves_nothing_on_its_node(monkeypatch):
    def fail(*_):
        assert memory.exists()
        raise MPINotFound("no MPI was found.")

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

    def hang(*_):
        answers.wait(DEADLINE)

    def noting(part, end):
        async def noted(**options):
            ended_in.append(part)
            await end(**options)

        return noted

    monkeypatch.setattr(head_module, "_DISK_TIMEOUT", 0.05)
    monkeypatch.setattr(ClusterFolder, "update", hang)
    monkeypatch.setattr(ClusterFolder, "remove", hang)
    async with running_head(Record(name="a", ranks=2, state="ready")) as its:
        head = its.head
        head.current.stop = noting("ranks", head.current.stop)
        head.cells.close = noting("cells", head.cells.close)
        head.scheduler.close = noting("scheduler", head.scheduler.close)
        try:
            head.end("SIGTERM was received")
            async with asyncio.timeout(DEADLINE):
                assert await its.code == 0
            assert ended_in[:3] == ["ranks", "cells", "scheduler"]  # which closes the cells as a plugin, too
        finally:
            answers.set()

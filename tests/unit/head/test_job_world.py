"""A world in a separate job leaves no job behind, at whichever moment it is stopped."""

from __future__ import annotations

import asyncio
import errno
import os
import threading
from pathlib import Path

import pytest
from support.processes import DEADLINE, until
from support.raised import raises

from workbench.deploy.folder import ClusterFolder
from workbench.deploy.record import Record
from workbench.errors import LaunchError
from workbench.head import job_world
from workbench.head.job_world import JobWorld
from workbench.launch.interface import JobState, JobStatus
from workbench.launch.mpi_library import MPI


class Scheduler:
    """Takes a job when `gate` opens, and ends it when it is canceled."""

    batch = True

    def __init__(self):
        self.gate, self.submitting, self.taken, self.cancelled = threading.Event(), threading.Event(), [], []
        self.refuses = False
        self.states = {}
        self.gate.set()

    def submit(self, spec):
        self.submitting.set()
        assert self.gate.wait(DEADLINE)
        job = str(77 + len(self.taken))
        spec.receipt.write_text(f"{job}\n")
        os.utime(spec.receipt, (0, 0))  # by the clock of another host, its file server
        self.taken.append(job)
        return job

    def statuses(self, jobs):
        return {job: JobStatus(self.states.get(job, JobState.QUEUED)) for job in jobs}

    def cancel(self, job):
        if self.refuses:
            raise LaunchError("scancel does not answer")
        self.cancelled.append(job)
        self.states[job] = JobState.CANCELLED


@pytest.fixture
def scheduler(monkeypatch):
    fake = Scheduler()
    monkeypatch.setattr(job_world, "launcher", lambda _: fake)
    monkeypatch.setattr(job_world, "_END_TIMEOUT", 0.3)
    monkeypatch.setattr(job_world, "_FIRST_INTERVAL", 0.01)
    return fake


@pytest.fixture
def world(scheduler, monkeypatch, tmp_path):
    monkeypatch.setenv("JUPYTER_DATA_DIR", str(tmp_path))
    record = Record(name="a", ranks=2, scheduler="slurm")
    ClusterFolder.of(record).path.mkdir(parents=True)
    spec = job_world.world_job_spec.__globals__["_spec"]
    monkeypatch.setattr(
        job_world,
        "world_job_spec",
        lambda record, folder, index, ranks, start: spec(
            record, folder, ranks, (), stem=f"world-{index}-{start}", log="job-1"
        ),
    )
    return JobWorld(record, MPI("openmpi", (5, 0), "", "mpiexec"), 1, 2, report=lambda _: None)


async def nobody():
    pass


async def test_a_stop_while_the_job_is_being_submitted_waits_for_its_number_and_cancels_it(world, scheduler):
    scheduler.gate.clear()
    starting = asyncio.ensure_future(world.start(10, "tls://x:1"))
    await asyncio.to_thread(until, "the submission", scheduler.submitting.is_set)
    starting.cancel()
    stopping = asyncio.ensure_future(world.stop(nobody))
    await asyncio.sleep(0.05)
    assert not stopping.done()
    scheduler.gate.set()
    await stopping
    assert scheduler.taken == scheduler.cancelled == ["77"]
    assert not list(ClusterFolder.of(world.record).path.glob("*.job"))


async def test_a_job_that_its_scheduler_does_not_list_yet_has_not_ended(world, scheduler, monkeypatch):
    answers = [JobStatus(JobState.UNKNOWN, unknown_to_scheduler=True)] * 2 + [JobStatus(JobState.RUNNING)]
    monkeypatch.setattr(scheduler, "statuses", lambda jobs: dict.fromkeys(jobs, answers.pop(0)))
    await world.start(10, "tls://x:1")
    assert (answers, world.job) == ([], "77")


async def test_a_job_that_cannot_be_cancelled_keeps_its_receipt(world, scheduler):
    starting = asyncio.ensure_future(world.start(10, "tls://x:1"))
    await asyncio.to_thread(until, "the job is taken", lambda: world.job)
    scheduler.refuses = True
    await world.stop(nobody)
    assert [path.read_text() for path in ClusterFolder.of(world.record).path.glob("*.job")] == ["77\n"]
    starting.cancel()


async def test_a_receipt_that_cannot_be_removed_does_not_stop_the_end_of_the_cluster(world, scheduler):
    starting = asyncio.ensure_future(world.start(10, "tls://x:1"))
    await asyncio.to_thread(until, "the job is taken", lambda: world.job)
    [receipt] = ClusterFolder.of(world.record).path.glob("*.job")
    receipt.unlink()
    receipt.mkdir()  # an error as of a file server that permits no changes
    await world.stop(nobody)
    assert scheduler.cancelled == ["77"]
    starting.cancel()


async def test_a_restart_spares_the_job_that_it_has_started(world, scheduler):
    scheduler.states = {"77": JobState.RUNNING, "78": JobState.RUNNING}
    await world.start(10, "tls://x:1")
    world.ready = True

    async def end_and_start_again():  # the head starts the world again as soon as the first job has ended
        scheduler.states["77"] = JobState.DONE
        await world.exited()
        await world.start(10, "tls://x:1")

    await world.stop(end_and_start_again)
    assert (scheduler.taken, scheduler.cancelled) == (["77", "78"], [])
    assert [path.name for path in ClusterFolder.of(world.record).path.glob("*.job")] == ["world-1-2.job"]


@pytest.mark.parametrize("method", ["settle", "start"])
async def test_receipts_are_looked_for_in_a_thread_because_a_file_server_may_hang(world, monkeypatch, method):
    threads = []

    def look(_, pattern):
        threads.append(threading.current_thread())
        if len(threads) == 1:
            raise OSError(errno.ESTALE, "Stale file handle")
        return iter(())

    monkeypatch.setattr(Path, "glob", look)
    if method == "settle":
        await world.settle()
        assert len(threads) >= 2
    else:
        with raises(OSError, errno=errno.ESTALE):
            await world.start(10, "tls://x:1")
    assert threading.main_thread() not in threads

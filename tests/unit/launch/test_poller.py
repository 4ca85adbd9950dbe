"""One poller asks for all jobs, the less often the longer they wait, and forgets nothing that it knew."""

from __future__ import annotations

import itertools
import threading
import time

import pytest
from support.processes import until

from workbench.launch import launchers as room
from workbench.launch.interface import UNKNOWN, JobState, JobStatus

QUEUED, RUNNING, DONE = (JobStatus(state) for state in (JobState.QUEUED, JobState.RUNNING, JobState.DONE))


class Scheduler:
    """Gives stored answers, and keeps the requests."""

    def __init__(self):
        self.answers, self.asked, self.threads, self.times = {}, [], set(), []

    def statuses(self, jobs):
        self.asked.append(sorted(jobs))
        self.times.append(time.monotonic())
        self.threads.add(threading.current_thread().name)
        return {job: self.answers[job] for job in jobs if job in self.answers}


@pytest.fixture
def scheduler(monkeypatch):
    fake = Scheduler()
    monkeypatch.setattr(room, "launcher", lambda _: fake)
    monkeypatch.setattr(room, "_FIRST", 0.01)
    monkeypatch.setattr(room, "_LONGEST", 0.05)
    return fake


@pytest.fixture
def poller(scheduler, monkeypatch):
    made = room.Poller()
    yield made
    monkeypatch.setattr(room, "_FORGET", 0.0)
    until("the thread of the poller ends", lambda: all(thread.name != "job-poller" for thread in threading.enumerate()))


def test_a_job_is_unknown_until_its_scheduler_has_answered(poller, scheduler):
    scheduler.answers["1"] = QUEUED
    assert poller.status("slurm", "1") is UNKNOWN
    until("it is known", lambda: poller.status("slurm", "1") is QUEUED)


def test_all_jobs_are_asked_for_at_once_by_one_thread(poller, scheduler):
    scheduler.answers |= {"1": QUEUED, "2": RUNNING}
    until("both", lambda: (poller.status("slurm", "1"), poller.status("slurm", "2")) == (QUEUED, RUNNING))
    assert ["1", "2"] in scheduler.asked
    assert scheduler.threads == {"job-poller"}


def test_no_answer_changes_no_status(poller, scheduler):
    scheduler.answers["1"] = RUNNING
    until("it is known", lambda: poller.status("slurm", "1") is RUNNING)
    scheduler.answers["1"] = UNKNOWN
    before = len(scheduler.asked)
    until("it was asked again", lambda: poller.status("slurm", "1") is RUNNING and len(scheduler.asked) > before + 2)
    del scheduler.answers["1"]
    before = len(scheduler.asked)
    until("it was asked again", lambda: poller.status("slurm", "1") is RUNNING and len(scheduler.asked) > before + 2)


def test_a_job_that_the_scheduler_does_not_know_is_asked_for_again(poller, scheduler):
    unknown = JobStatus(JobState.UNKNOWN, unknown_to_scheduler=True)
    scheduler.answers["1"] = unknown
    until("the answer", lambda: poller.status("slurm", "1") is unknown)
    scheduler.answers["1"] = QUEUED
    until("it is known", lambda: poller.status("slurm", "1") is QUEUED)


def test_an_end_is_final_and_not_asked_for_again(poller, scheduler):
    scheduler.answers |= {"1": DONE, "2": RUNNING}
    until("its end", lambda: poller.status("slurm", "1") is DONE)
    until("the other", lambda: poller.status("slurm", "2") is RUNNING)
    scheduler.answers["1"] = RUNNING
    before = len(scheduler.asked)
    until("more was asked", lambda: poller.status("slurm", "2") and len(scheduler.asked) > before + 2)
    assert poller.status("slurm", "1") is DONE
    assert scheduler.asked[-1] == ["2"]


def test_questions_become_fewer_and_begin_anew_with_a_change(poller, scheduler, monkeypatch):
    monkeypatch.setattr(room, "_LONGEST", 0.2)
    scheduler.answers["1"] = QUEUED

    def intervals():
        poller.status("slurm", "1")
        return [later - earlier for earlier, later in itertools.pairwise(scheduler.times)]

    until("the longest", lambda: len(intervals()) > 9 and min(intervals()[-3:]) >= 0.2)

    def short_after_a_change():
        # again and again, for it is short for a moment only
        scheduler.answers["1"] = QUEUED if poller.status("slurm", "1") is RUNNING else RUNNING
        return intervals()[-1] < 0.1

    until("short again", short_after_a_change)


def test_a_job_that_nobody_looks_at_any_more_is_forgotten(poller, scheduler, monkeypatch):
    monkeypatch.setattr(room, "_FORGET", 0.1)
    scheduler.answers["1"] = QUEUED
    poller.status("slurm", "1")
    until("the thread ends", lambda: all(thread.name != "job-poller" for thread in threading.enumerate()))
    until("it starts again", lambda: poller.status("slurm", "1") is QUEUED)


def test_an_id_that_comes_again_is_another_job(poller, scheduler):
    scheduler.answers["1"] = DONE
    until("its end", lambda: poller.status("slurm", "1") is DONE)
    scheduler.answers["1"] = QUEUED
    poller.forget("slurm", "1")
    until("the other", lambda: poller.status("slurm", "1") is QUEUED)

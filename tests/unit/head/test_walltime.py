"""The countdown to the end that a scheduler has set for a job."""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import Iterable

import pytest
from support.heads import running_head
from support.processes import until

from workbench.deploy.record import Record
from workbench.head import walltime
from workbench.head.walltime import LAST, Countdown, Walltime, job_end
from workbench.launch.interface import UNKNOWN, JobState, JobStatus, Resources
from workbench.launch.local import LocalLauncher

SOON = 10.0
HOUR = 3600.0
GRACE = 60.0


def told(countdown: Countdown, moments: Iterable[float]) -> dict[float, str]:
    """Return what is said at which of the moments, without the time of day."""
    said = {moment: countdown.warning(moment) for moment in moments}
    return {moment: words.partition(",")[0] for moment, words in said.items() if words}


def counting_to(ends: float, now: float = 0.0) -> Countdown:
    countdown = Countdown(GRACE)
    countdown.update_deadline(ends, now)
    return countdown


def test_a_long_job_is_warned_of_ten_five_and_one_minutes_before_its_end_and_once_each():
    countdown = Countdown(GRACE)
    assert countdown.update_deadline(HOUR, 0.0) == ""
    assert told(countdown, range(3601)) == {
        3000: "walltime: 10 minutes left",
        3300: "walltime: 5 minutes left",
        3540: "walltime: 1 minute left",
    }


def test_a_job_shorter_than_ten_minutes_is_told_at_its_start_and_warned_of_what_is_ahead():
    countdown = Countdown(GRACE)
    assert countdown.update_deadline(240.0, 0.0).startswith("walltime: 4 minutes left, the job ends at ")
    assert told(countdown, range(241)) == {180: "walltime: 1 minute left"}


def test_less_than_two_minutes_are_told_in_seconds():
    assert Countdown(GRACE).update_deadline(118.4, 0.0).startswith("walltime: 119 s left")
    assert Countdown(GRACE).update_deadline(59.5, 0.0).startswith("walltime: 1 minute left")


def test_of_warnings_that_were_slept_through_only_the_last_is_given():
    assert told(counting_to(HOUR), (0.0, 3350.0, 3351.0)) == {3350.0: "walltime: 4 minutes left"}


def test_work_is_taken_until_the_grace_and_tasks_run_until_the_last_seconds():
    countdown = counting_to(HOUR)
    assert [countdown.should_drain(now) for now in (0.0, 3539.0, 3540.0)] == [False, False, True]
    assert [countdown.is_final(now, since=3540.0) for now in (3540.0, 3584.0, 3585.0)] == [False, False, True]


@pytest.mark.parametrize(("length", "taken"), [(120.0, 90.0), (60.0, 45.0), (20.0, 5.0), (10.0, 0.0)])
def test_a_short_job_gives_at_most_a_quarter_of_its_time_to_its_end_but_never_less_than_that_takes(length, taken):
    countdown = counting_to(length)
    assert countdown.should_drain(taken)
    assert not countdown.should_drain(taken - 0.1) or taken == 0.0


def test_an_extended_walltime_is_followed_said_and_warned_of_again():
    countdown = counting_to(HOUR)
    assert told(countdown, (3000.0,))
    assert countdown.update_deadline(2 * HOUR, 3010.0).startswith("walltime extended: 69 minutes left")
    assert told(countdown, (3300.0, 3540.0, 6600.0)) == {6600.0: "walltime: 10 minutes left"}
    assert not countdown.should_drain(3540.0)
    assert countdown.should_drain(7140.0)
    assert not countdown.is_final(3600.0, since=3540.0), "a drain that has begun has more time"


def test_a_walltime_that_was_cut_is_followed():
    countdown = counting_to(HOUR)
    assert countdown.update_deadline(1000.0, 500.0) == ""
    assert told(countdown, (500.0,)) == {500.0: "walltime: 8 minutes left"}
    assert countdown.should_drain(940.0)


def test_an_end_that_wavers_by_seconds_repeats_no_warning():
    countdown = counting_to(HOUR)
    assert told(countdown, (3001.0,))
    assert countdown.update_deadline(HOUR + 5, 3002.0) == ""
    assert not told(countdown, (3003.0, 3006.0))


def test_what_nobody_can_tell_changes_nothing():
    countdown = counting_to(HOUR)
    assert countdown.update_deadline(None, 10.0) == ""
    assert countdown.ends == HOUR


def test_without_a_known_end_a_drain_has_the_time_of_the_grace():
    countdown = Countdown(GRACE)
    assert not countdown.should_drain(HOUR)
    assert countdown.warning(HOUR) == ""
    assert [countdown.is_final(now, since=100.0) for now in (100.0, 144.0, 145.0)] == [False, False, True]
    assert Countdown(1.0).is_final(100.0, since=100.0)


def test_a_last_save_has_its_time_before_the_end_and_in_a_short_job_at_most_a_quarter():
    countdown = Countdown(GRACE, saving=lambda: 100.0)
    countdown.update_deadline(HOUR, 0.0)
    drain, final = HOUR - GRACE - 100.0, HOUR - LAST - 100.0
    assert [countdown.should_drain(now) for now in (drain - 0.1, drain)] == [False, True]
    assert [countdown.is_final(now, since=drain) for now in (final - 0.1, final)] == [False, True]

    countdown = Countdown(GRACE, saving=lambda: 100.0)
    countdown.update_deadline(80.0, 0.0)
    assert [countdown.should_drain(now) for now in (80.0 - 40.1, 80.0 - 40.0)] == [False, True]

    # Without a known end the time counts from the drain.
    known = GRACE - LAST
    assert [Countdown(GRACE, lambda: 100.0).is_final(now, since=0.0) for now in (known - 0.1, known)] == [False, True]


class Scheduler(LocalLauncher):
    """A batch scheduler that answers what it was given, and then nothing any more."""

    batch = True

    def __init__(self, *answers: JobStatus) -> None:
        self.answers = list(answers)

    def statuses(self, jobs):
        return dict.fromkeys(jobs, self.answers.pop(0) if self.answers else UNKNOWN)


def record(**given: object) -> Record:
    return Record(name="walltime", ranks=1, **given)  # type: ignore[arg-type]


def test_a_job_that_nothing_ends_has_no_end_to_ask_for():
    assert job_end(record()) is None
    assert job_end(record(job="1:2")) is None


def test_without_a_scheduler_to_ask_the_walltime_counts_from_the_start_of_the_head():
    end = job_end(record(resources=Resources(walltime=100)))
    assert end is not None
    assert end() == pytest.approx(time.time() + 100, abs=SOON)


def test_the_word_of_the_scheduler_goes_before_what_was_asked_for_and_stands_while_it_is_silent(monkeypatch):
    running = JobStatus(JobState.RUNNING, end=5000.0)
    scheduler = Scheduler(UNKNOWN, running)
    monkeypatch.setattr(walltime, "launcher", lambda _: scheduler)
    end = job_end(record(scheduler="slurm", job="7", resources=Resources(walltime=100)))
    assert end is not None
    assert end() == pytest.approx(time.time() + 100, abs=SOON)
    assert [end(), end()] == [5000.0, 5000.0]


def test_a_cluster_inside_an_allocation_ends_with_that(monkeypatch):
    asked = []
    monkeypatch.setattr(
        walltime, "launcher", lambda name: asked.append(name) or Scheduler(JobStatus(JobState.RUNNING, end=9.0))
    )
    monkeypatch.setenv("SLURM_JOB_ID", "12")
    end = job_end(record(scheduler="here"))
    assert end is not None
    assert (end(), asked) == (9.0, ["here", "slurm"])


def follower(end, said: list[str], ends: list[float]) -> Walltime:
    def drain(reason: str) -> None:
        said.append(f"drain: {reason}")

    return Walltime(end, grace=GRACE, saving=float, learned=ends.append, report=said.append, drain=drain)


async def test_a_head_without_an_end_has_no_duty():
    said: list[str] = []
    await asyncio.wait_for(follower(None, said, []).watch(), SOON)
    assert said == []


async def test_a_scheduler_that_stumbles_is_asked_again(monkeypatch):
    monkeypatch.setattr(walltime, "_QUERY_INTERVAL", 0.01)
    ends_at = time.time() + LAST + 1
    answers = iter([OSError("no answer"), None, ends_at])

    def end() -> float | None:
        answer = next(answers, ends_at)
        if isinstance(answer, OSError):
            raise answer
        return answer

    said: list[str] = []
    ends: list[float] = []
    await asyncio.wait_for(follower(end, said, ends).watch(), SOON)
    assert said[0].startswith("walltime: 16 s left, the job ends at ")
    assert said[-1] == "drain: its walltime is up"
    assert set(ends) == {ends_at}


@pytest.mark.parametrize(
    ("left", "foreseen"), [(None, False), (3600.0, False), (60.0 + walltime.ANNOUNCED, True), (5.0, True)]
)
def test_a_signal_announces_the_end_of_the_walltime_only_shortly_before_it(left, foreseen):
    its = walltime.Walltime(None, grace=60, saving=float, learned=print, report=print, drain=print)
    its.countdown.update_deadline(None if left is None else 1000.0 + left, 1000.0)
    assert its.expects_end(1000.0) is foreseen


@pytest.mark.parametrize(
    ("answer", "drains"), [(170.0, False), (20.0, True), (HOUR, True), (None, True), (OSError("no answer"), True)]
)
async def test_a_signal_before_another_end_than_expected_counts_after_the_scheduler_was_asked(
    answer, drains, tmp_path, monkeypatch, caplog
):
    """The walltime was cut to 170 s from now; or the job is preempted, and has 20 s, or its scheduler is silent."""
    answers = iter([HOUR, answer])

    def end() -> float | None:
        given = next(answers)
        if isinstance(given, OSError):
            raise given
        return None if given is None else time.time() + given

    monkeypatch.setenv("JUPYTER_DATA_DIR", str(tmp_path))
    caplog.set_level("INFO", "workbench.head")
    expected = "SIGUSR1: the end of the walltime is near, as expected"
    async with asyncio.timeout(SOON), running_head(record(), end) as its:
        await asyncio.to_thread(until, "the first end is known", lambda: its.head.record.ends)
        its.signals[signal.SIGUSR1]()
        await asyncio.to_thread(until, "the answer", lambda: its.messages("drain") or expected in caplog.messages)
        reasons = its.messages("drain")
    assert [reason.partition(":")[0] for reason in reasons] == (
        ["the scheduler has requested the end of the job (SIGUSR1)"] if drains else []
    )

"""The head ends by the first signal, and asks its scheduler for the reason."""

from __future__ import annotations

import signal

import pytest
from support.heads import running_head

from workbench.deploy.folder import ClusterFolder
from workbench.deploy.job import ClusterJob
from workbench.deploy.record import Record

BATCH = {"scheduler": "slurm", "job": "7"}
SIGTERM = "SIGTERM was received, as when its job is canceled or deleted"


@pytest.fixture(autouse=True)
def _folder(tmp_path, monkeypatch):
    monkeypatch.setenv("JUPYTER_DATA_DIR", str(tmp_path))
    monkeypatch.setattr(ClusterJob, "cancel", lambda *_, **__: None)


@pytest.mark.parametrize(
    ("job", "reason"), [(BATCH, "its scheduler has ended job 7: preempted"), ({}, "SIGTERM was received")]
)
async def test_a_second_signal_does_not_drop_the_reason_of_the_scheduler(job, reason, monkeypatch):
    monkeypatch.setattr(ClusterJob, "end_reason", lambda _: "preempted")
    record = Record(name="a", ranks=1, **job)
    async with running_head(record, end=lambda: None) as its:
        its.signals[signal.SIGTERM]()
        its.signals[signal.SIGINT]()
    assert ClusterFolder.of(record).end().reason == reason


async def test_a_signal_during_the_end_is_not_its_reason(monkeypatch):
    monkeypatch.setattr(ClusterJob, "end_reason", lambda _: "preempted")
    record = Record(name="a", ranks=1, **BATCH)
    async with running_head(record, end=lambda: None) as its:
        its.head.end("the user has stopped it")
        its.signals[signal.SIGTERM]()
    assert ClusterFolder.of(record).end().reason == "the user has stopped it"


@pytest.mark.parametrize(
    ("known", "reason"),
    [
        ("ended for a job of higher priority", "its scheduler has ended job 7: ended for a job of higher priority"),
        ("", SIGTERM),
        (OSError("no answer"), SIGTERM),
    ],
)
async def test_the_reason_of_an_end_by_a_signal_is_that_of_the_scheduler_if_it_reports_one(known, reason, monkeypatch):
    def answer(*_: object) -> str:
        if isinstance(known, OSError):
            raise known
        return known

    monkeypatch.setattr(ClusterJob, "end_reason", answer)
    record = Record(name="a", ranks=1, **BATCH)
    async with running_head(record, end=lambda: None) as its:
        its.signals[signal.SIGTERM]()
    assert ClusterFolder.of(record).end().reason == reason

"""The job of a cluster from its starter's side: given up, stopped early, and nowhere to write."""

from __future__ import annotations

import signal
import socket
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import dask
import psutil
import pytest
from distributed.comm.tcp import TLSBackend, TLSConnector
from support.processes import DEADLINE, until
from support.requested import request
from tornado.iostream import IOStream

from workbench.comm import certificates
from workbench.commands import actions
from workbench.deploy import ended, registry
from workbench.deploy import stop as stop_module
from workbench.deploy.connection import ask_once
from workbench.deploy.folder import ClusterFolder
from workbench.deploy.job import ClusterJob
from workbench.deploy.record import Record
from workbench.deploy.start import ClusterStart
from workbench.deploy.stop import stop
from workbench.errors import HeadUnreachable, RecordError, StartError


@pytest.fixture(autouse=True)
def _own_registry(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JUPYTER_DATA_DIR", str(tmp_path))


def _heads(name: str) -> list[psutil.Process]:
    words = ["-P", "-m", "workbench.head", name]
    return [process for process in psutil.process_iter(["cmdline"]) if (process.info["cmdline"] or [])[1:5] == words]


def test_a_start_that_is_given_up_while_it_is_submitted_leaves_nothing() -> None:
    start = ClusterStart(request(1, name="given-up"))
    with ThreadPoolExecutor(1) as thread:
        submitting = thread.submit(start.submit)
        until("its folder is there", registry.names)
        start.remove()
        submitting.result()
    assert registry.names() == []
    assert not _heads("given-up")


def test_a_start_that_was_given_up_before_is_not_submitted() -> None:
    start = ClusterStart(request(1, name="given-up"))
    start.remove()
    start.submit()
    assert registry.names() == []
    assert not _heads("given-up")


def test_ctrl_c_in_the_moment_in_which_the_cluster_takes_over_its_job_leaves_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("workbench.cluster.HeadConnection", interrupted)

    with pytest.raises(KeyboardInterrupt):
        actions.start(ranks=1, name="given-up", quiet=True)

    assert registry.names() == []
    assert not _heads("given-up")


def test_ctrl_c_in_an_import_is_swallowed_by_nobody() -> None:
    # libraries that other tests have loaded may have another handler
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt), actions._interrupted_later(), suppress(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    finally:
        signal.signal(signal.SIGINT, before)


def test_a_data_folder_that_cannot_be_written_is_told(tmp_path: Path) -> None:
    start = ClusterStart(request(1, name="nowhere"))
    (tmp_path / "workbench").write_text("no folder")
    with pytest.raises(RecordError):
        start.submit()


def test_a_stop_before_the_head_has_spoken_ends_the_head_and_spares_the_starter() -> None:
    start = ClusterStart(request(1, name="early"))
    start.submit()
    until("the head runs", lambda: _heads("early"))
    heads = _heads("early")
    # This process, which the record names until then, runs on and is no obstacle.
    stop(start.record)
    psutil.wait_procs(heads, timeout=DEADLINE)
    assert registry.names() == []
    assert not _heads("early")


def test_a_stop_of_a_cluster_whose_head_never_speaks_names_no_innocent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stop_module, "_STOP_TIMEOUT_S", 0.3)
    record = request(1, name="mute")
    registry.create(record)
    stop(record)
    assert registry.names() == []


def test_a_stop_of_a_head_that_ends_before_the_handshake_goes_on_without_its_answer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    start_tls = IOStream.start_tls
    monkeypatch.setattr(TLSBackend, "_connector_class", TLSConnector)

    def closed_first(stream: IOStream, *args: Any, **kwargs: Any) -> Any:
        stream.close()
        return start_tls(stream, *args, **kwargs)

    monkeypatch.setattr(IOStream, "start_tls", closed_first)
    with socket.create_server(("127.0.0.1", 0)) as head, dask.config.set({"workbench.connect-timeout": "0.2 s"}):
        record = Record("gone", 1, state="ready", address=f"tls://127.0.0.1:{head.getsockname()[1]}")
        registry.create(record)
        certificates.make(ClusterFolder.of(record).path, record.name)
        with pytest.raises((HeadUnreachable, TimeoutError)):
            ask_once(ClusterJob(record), "workbench_close", reason="")


def test_a_stop_of_what_has_gone_meanwhile_says_nothing() -> None:
    record = request(1, name="brief")
    registry.create(record)
    ClusterFolder.of(record).remove()
    stop(record)
    assert registry.names() == []


def test_a_start_that_waits_takes_no_other_cluster_of_its_name_for_its_own() -> None:
    first, second = (Record(name="training", ranks=ranks, deadline=time.time() + DEADLINE) for ranks in (4, 64))
    registry.create(first)
    start = ClusterStart(first)
    ClusterFolder.of(first).remove()
    registry.create(second)

    with pytest.raises(StartError, match="the cluster was stopped, and another cluster now has its name") as stopped:
        start.poll()
    assert start.record == first
    with pytest.raises(StartError):
        start.abandon(stopped.value)
    assert registry.read("training") == second


@pytest.mark.parametrize(("state", "reason"), [(ended.STOPPED, "the user has stopped it"), (ended.FAILED, "no memory")])
def test_an_attach_to_a_start_that_has_ended_meanwhile_raises_its_reason_at_once(state: str, reason: str) -> None:
    record = Record(name="training", ranks=4, deadline=time.time() + DEADLINE)
    registry.create(record)
    attached = ClusterJob(record)
    assert attached.poll() == record
    ClusterFolder.of(record).note(record, state, reason)
    ClusterFolder.of(record).remove()

    with pytest.raises(StartError, match=rf"'training' did not start: {reason}"):
        attached.poll()


def test_jobs_of_another_cluster_of_the_name_are_not_its_own() -> None:
    first, second = (Record(name="training", ranks=4, scheduler="slurm") for _ in range(2))
    registry.create(second)
    (ClusterFolder.of(second).path / "job.job").write_text("4711\n")
    assert ClusterJob(first).all_jobs() == []
    assert ClusterJob(second).all_jobs() == ["4711"]

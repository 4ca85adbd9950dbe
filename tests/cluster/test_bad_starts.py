"""A start that fails says why in a sentence, shows the right log, and leaves nothing behind."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import dask
import psutil
import pytest
from distributed import Client
from support.processes import DEADLINE, GONE_WITHIN, until
from support.raised import raises

from workbench import MPICluster
from workbench.comm import certificates
from workbench.deploy import registry
from workbench.deploy.folder import ClusterFolder
from workbench.deploy.record import Record
from workbench.deploy.stop import stop
from workbench.errors import HeadUnreachable, StartError, StartTimeout

NAME = "doomed"


@pytest.fixture(autouse=True)
def _nothing_is_left() -> Iterator[None]:
    yield
    left = NAME in registry.names()
    if left:
        stop(registry.read(NAME))
    assert not left
    until("no process is left", lambda: not _processes(), GONE_WITHIN)


def _processes() -> list[int]:
    found = []
    for process in psutil.process_iter(["cmdline", "status"]):
        words = process.info["cmdline"] or []
        if NAME in words and process.info["status"] != psutil.STATUS_ZOMBIE:
            found.append(process.pid)
    return found


def _start(ranks: int = 2, timeout: float = DEADLINE) -> MPICluster:
    with dask.config.set({"workbench.start-timeout": timeout}):
        return MPICluster(ranks, name=NAME, quiet=True)


def test_no_mpiexec() -> None:
    with (
        dask.config.set({"workbench.mpi.mpiexec": "/nowhere/mpiexec"}),
        raises(StartError, option="workbench.mpi.mpiexec", given="/nowhere/mpiexec"),
    ):
        _start()


def test_an_mpiexec_of_another_mpi_than_mpi4pys(tmp_path: Path) -> None:
    stranger = tmp_path / "mpiexec"
    stranger.write_text("#!/bin/sh\necho 'Intel(R) MPI Library for Linux* OS, Version 2021.10 Build 20230619'\n")
    stranger.chmod(0o755)
    with (
        dask.config.set({"workbench.mpi.mpiexec": str(stranger)}),
        pytest.raises(
            StartError, match=r"mpi4py loads .*but mpiexec belongs to another MPI: .*Intel MPI 2021\.10.*Install"
        ),
    ):
        _start()


def test_an_mpi_that_is_not_the_one_in_use() -> None:
    with raises(StartError, option="mpi", given="intelmpi"):
        MPICluster(2, name=NAME, mpi="intelmpi", quiet=True)


@pytest.mark.mpi_flavor
def test_a_rank_that_fails_while_starting_shows_its_traceback() -> None:
    with (
        dask.config.set({"distributed.worker.http.routes": ["no_such_module"]}),
        pytest.raises(StartError) as caught,
    ):
        _start()
    said = str(caught.value)
    assert f"cluster '{NAME}' did not start: the world ended while starting" in said
    assert "0 of 2 ranks had registered" in said
    assert "failed while starting" in said
    assert "ModuleNotFoundError: No module named 'no_such_module'" in said


def test_a_rank_that_fails_with_an_error_for_the_user_shows_no_traceback() -> None:
    with pytest.raises(StartError) as caught:
        MPICluster(2, name=NAME, memory="10MB", quiet=True)
    assert "failed while starting: --memory 9.54 MiB is too small" in str(caught.value)
    assert "Traceback" not in str(caught.value)


@pytest.fixture
def preload(tmp_path: Path) -> Callable[[str], dask.config.set]:
    """Have rank 1 do something just before its worker registers."""

    def preload(deed: str) -> dask.config.set:
        file = tmp_path / "preload.py"
        file.write_text(
            f"import os, signal, time\n\ndef dask_setup(worker):\n    if worker.name == 1:\n        {deed}\n"
        )
        return dask.config.set({"distributed.worker.preload": [str(file)]})

    return preload


@pytest.mark.mpi_flavor
def test_a_rank_that_is_killed_while_starting_takes_the_world_down(
    preload: Callable[[str], dask.config.set],
) -> None:
    with preload("os.kill(os.getpid(), signal.SIGKILL)"), pytest.raises(StartError, match="did not start: the world"):
        _start()


def test_a_world_that_hangs_while_starting_meets_its_deadline(preload: Callable[[str], dask.config.set]) -> None:
    said, seconds = "", 4.0
    while "1 of 2 ranks had registered" not in said:  # a rank that comes may take longer
        assert seconds < DEADLINE
        with preload("time.sleep(600)"), pytest.raises(StartTimeout) as caught:
            _start(timeout=seconds)
        said, seconds = str(caught.value), 2 * seconds
    assert "the world was not ready after" in said
    assert "1 of 2 ranks had registered, missing: 1" in said
    assert "workbench.start-timeout" in said


def test_a_head_that_dies_before_it_speaks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONWARNINGS", "error::ImportWarning")
    monkeypatch.setenv("PYTHONHOME", "/nowhere")
    with pytest.raises(StartError) as caught:
        _start()
    assert "head.log" in str(caught.value)
    assert "encodings" in str(caught.value), "Python's own words about its broken home"


def test_singletons_are_diagnosed(tmp_path: Path) -> None:
    # An mpiexec that claims to be the right one and starts n worlds of one rank each.
    from workbench.launch import mpi_library

    real = mpi_library.find()
    liar = tmp_path / "mpiexec"
    liar.write_text(
        f'#!/bin/sh\n[ "$1" = --version ] && exec {real.mpiexec} --version\n'
        'while [ "$1" != -I ]; do shift; done\n'
        f'{sys.executable} "$@" & {sys.executable} "$@"; wait\n'
    )
    liar.chmod(0o755)
    with (
        dask.config.set({"workbench.mpi.mpiexec": str(liar)}),
        pytest.raises(StartError, match=r"the MPI world has 1 ranks, but 2 ranks were started.*are of different MPIs"),
    ):
        _start()


def test_a_head_that_cannot_be_reached_is_named_with_host_and_port() -> None:
    # It takes the connection and never answers, as a filtering firewall does.
    with socket.socket() as deaf:
        deaf.bind(("127.0.0.1", 0))
        deaf.listen()
        port = deaf.getsockname()[1]
        record = Record(name=NAME, ranks=2, state="ready", address=f"tls://127.0.0.1:{port}")
        registry.create(record)
        certificates.make(ClusterFolder.of(record).path, NAME)
        try:
            with (
                dask.config.set({"workbench.connect-timeout": "0.5 s"}),
                pytest.raises(HeadUnreachable),
            ):
                MPICluster.attach(NAME)
        finally:
            ClusterFolder.of(record).remove()


def test_a_record_that_appears_late_is_waited_for() -> None:
    # As on a home on a network: the job runs before its node sees the record.
    patient = {**os.environ, "DASK_WORKBENCH__RECORD_TIMEOUT": f"{DEADLINE:.0f} s"}
    head = subprocess.Popen([sys.executable, "-m", "workbench.head", NAME], env=patient)
    until("the head runs", lambda: _processes() == [head.pid])
    from support.requested import request

    from workbench.deploy.job_spec import write_dask_settings

    record = request(1, name=NAME)
    registry.create(record)
    certificates.make(ClusterFolder.of(record).path, NAME)
    write_dask_settings(record, ClusterFolder.of(record))
    until("the cluster is ready", lambda: registry.read(NAME).state == "ready")
    with MPICluster.attach(NAME) as cluster, Client(cluster) as client:
        assert len(client.run(os.getpid)) == 1
        cluster.close(shutdown=True)
    assert head.wait(GONE_WITHIN) == 0


@pytest.mark.parametrize("address", ["tls://127.0.0.1:1", None])
def test_a_job_that_has_run_before_does_not_begin_again(address) -> None:
    # An administrator has put it back into the queue, and its first head was killed before it could tidy up.
    record = Record(name=NAME, ranks=1, state="starting", address=address)
    registry.create(record)
    certificates.make(ClusterFolder.of(record).path, NAME)
    head = subprocess.run(
        [sys.executable, "-m", "workbench.head", NAME, record.id], capture_output=True, text=True, check=False
    )
    assert head.returncode == 1
    assert "its job was put back into the queue after it had run" in head.stderr
    if address is None:
        assert registry.read(NAME).state == "failed", "somebody waits for it to start"
        ClusterFolder.of(record).remove()
    assert NAME not in registry.names()

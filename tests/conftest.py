"""What holds for every test: nothing of the user is read or touched, and nothing of the run is left behind."""

from __future__ import annotations

import gc
import os
import secrets
import shutil
import signal
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from support.patience import DEADLINE

# Unix sockets are made below it, and their paths may have 107 characters: $TMPDIR is too long at many places.
# The name is hexadecimal, because Dask parses DASK_CONFIG as Python: 7is in a name would cause a SyntaxWarning, which
# tests of an output would find there.
SESSION = Path("/tmp", f"wbtest-{secrets.token_hex(4)}")  # noqa: S108
SESSION.mkdir(mode=0o700)
# Inherited by every process that a test starts, also by those that leave the process tree. A process of `pytest -n` has
# a separate marker, too; that of the whole run finds what the process leaves behind if it crashes.
MARKER = ("WORKBENCH_TEST_PROCESS" if "PYTEST_XDIST_WORKER" in os.environ else "WORKBENCH_TEST_RUN", uuid.uuid4().hex)
# Helpers of multiprocessing that end with this process.
HELPERS = ("multiprocessing.resource_tracker", "multiprocessing.forkserver")

pytest_plugins = ["support.order", "support.evidence", "support.times", "browser.evidence"]

_left_behind, _records = pytest.StashKey[list[str]](), pytest.StashKey[list[str]]()


def _isolate() -> None:
    for name in [name for name in os.environ if name.startswith("DASK_")]:
        del os.environ[name]
    for name in (
        "DASK_CONFIG",
        "DASK_ROOT_CONFIG",
        "IPYTHONDIR",
        "JUPYTER_CONFIG_DIR",
        "JUPYTER_DATA_DIR",
        "XDG_RUNTIME_DIR",
    ):
        folder = SESSION / name.lower()
        folder.mkdir(mode=0o700)
        os.environ[name] = str(folder)
    # If this run is killed, its clusters must end by themselves.
    os.environ["DASK_WORKBENCH__IDLE_TIMEOUT"] = "10 minutes"
    # A machine that has other work may take longer than a user's patience.
    os.environ["DASK_WORKBENCH__CONNECT_TIMEOUT"] = "40 s"
    # On a login node a start would be a job in its queue.
    os.environ["DASK_WORKBENCH__SCHEDULER"] = "local"
    # Threads of BLAS and OpenMP wait for each other by spinning, and take most of the cores of a machine of two.
    os.environ |= dict.fromkeys(("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS"), "1")
    os.environ[MARKER[0]] = MARKER[1]
    # A shell starts background jobs with SIGINT ignored, and what tests start would inherit that.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    # Ranks import the functions of tests by name, and with them `support`.
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(Path(__file__).parent), os.environ.get("PYTHONPATH")]))


# At import, for Dask reads its environment when it is imported: maybe by the next conftest.py.
_isolate()


def _is_ours(process: psutil.Process) -> bool:
    try:
        return process.environ().get(MARKER[0]) == MARKER[1]
    except psutil.Error:
        return False


def _is_left(process: psutil.Process) -> bool:
    try:
        return process.status() != psutil.STATUS_ZOMBIE and not any(
            helper in argument for argument in process.cmdline() for helper in HELPERS
        )
    except psutil.Error:
        return False


def processes_of_session() -> list[psutil.Process]:
    """Return the living processes that this run has started, directly or not."""
    this = psutil.Process()
    found = {*this.children(recursive=True), *filter(_is_ours, psutil.process_iter())} - {this}
    return sorted(filter(_is_left, found), key=lambda process: process.pid)


def _describe(process: psutil.Process) -> str:
    try:
        return f"{process.pid}: {' '.join(process.cmdline())[:300]}"
    except psutil.Error:
        return f"{process.pid}: ended meanwhile"


@pytest.fixture(autouse=True, scope="module")
def default_scheduler() -> Iterator[None]:
    """Clients that are closed in another order than they were made leave Dask with a default that is gone."""
    yield
    if "distributed" in sys.modules:
        import dask
        from distributed import default_client

        try:
            default_client()
        except ValueError:
            dask.config.config.pop("scheduler", None)


@pytest.fixture(autouse=True, scope="module")
def default_interrupt() -> Iterator[None]:
    """The handler of SIGINT that Panel installs outlives its server, and would get the interrupts of later tests."""
    yield
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(params=["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def device(request: pytest.FixtureRequest) -> str:
    """A device of PyTorch: the CPU every day, and a GPU in `make test-gpu`."""
    if request.param == "cuda":
        import torch

        if not torch.cuda.is_available():
            pytest.fail("PyTorch finds no GPU here: run tests marked gpu, as make test-gpu does, on a host with one")
    return request.param


@pytest.fixture
def failing_worlds() -> Iterator[None]:
    """Have every world that is started meanwhile end immediately, with a line in its log."""
    settings = Path(os.environ["DASK_CONFIG"]) / "failing.yaml"
    settings.write_text("workbench: {mpi: {extra-args: [--no-such-option]}}")
    yield
    settings.unlink()


@pytest.fixture
def hanging_worlds(tmp_path: Path) -> Iterator[None]:
    """Have every world that is started meanwhile never come up."""
    from workbench.launch import mpi_library

    program = tmp_path / "mpiexec"
    program.write_text(
        f'#!/bin/sh\n[ "$1" = --version ] && exec {mpi_library.find().mpiexec} --version\nexec sleep 600\n'
    )
    program.chmod(0o755)
    settings = Path(os.environ["DASK_CONFIG"]) / "hanging.yaml"
    settings.write_text(f"workbench: {{mpi: {{mpiexec: {program}}}}}")
    yield
    settings.unlink()


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    """Leave what the collection makes out of garbage collections: nothing of it goes, and each would look at all."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


@pytest.hookimpl(trylast=True)  # after the fixtures of the session have ended what they started
def pytest_sessionfinish(session: pytest.Session) -> None:
    psutil.wait_procs(processes_of_session(), timeout=DEADLINE / 2)
    left = processes_of_session()
    described = session.config.stash.setdefault(_left_behind, [])
    described += map(_describe, left)
    if hasattr(session.config, "workeroutput"):  # this is one of the processes of `pytest -n`
        session.config.workeroutput |= {"left behind": described, "records": str(SESSION)}
    if described:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED
    for end in (psutil.Process.terminate, psutil.Process.kill):
        for process in left:
            try:
                end(process)
            except psutil.NoSuchProcess:
                continue
        _, left = psutil.wait_procs(left, timeout=5)
    if session.exitstatus == pytest.ExitCode.OK:
        shutil.rmtree(SESSION, ignore_errors=True)


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    """Receive what one of the processes of `pytest -n` has left behind, and the folder of its records."""
    if told := getattr(node, "workeroutput", None):  # not of one that crashed
        node.config.stash.setdefault(_left_behind, []).extend(told["left behind"])
        node.config.stash.setdefault(_records, []).append(told["records"])


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    left = config.stash.get(_left_behind, [])
    if left:
        terminalreporter.section("processes left behind (ended now)", red=True, bold=True)
        terminalreporter.write_line("\n".join(left))
    left_out = [report for report in terminalreporter.getreports("skipped") if "tests/slurm/" in report.nodeid]
    if left_out:
        terminalreporter.section(f"{len(left_out)} TESTS ON A LIVE Slurm WERE LEFT OUT", red=True, bold=True)
        terminalreporter.write_line("\n".join(sorted({report.longrepr[2] for report in left_out})))
    if SESSION.exists():
        folders = [folder for folder in config.stash.get(_records, [str(SESSION)]) if Path(folder).exists()]
        terminalreporter.write_line(f"records and logs of this run: {', '.join(folders)}")

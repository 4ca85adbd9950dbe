"""What holds for every test: nothing of the user is read or touched, and nothing of the run is left behind."""

from __future__ import annotations

import os
import shutil
import signal
import tempfile
import uuid
from pathlib import Path

import psutil
import pytest

# Unix sockets are made below it, and their paths may have 107 characters: $TMPDIR is too long at many places.
SESSION = Path(tempfile.mkdtemp(prefix="wbtest-", dir="/tmp"))
# Inherited by every process that a test starts, also by those that leave the process tree.
MARKER = ("WORKBENCH_TEST_SESSION", uuid.uuid4().hex)
# Helpers of multiprocessing that end with this process.
HELPERS = ("multiprocessing.resource_tracker", "multiprocessing.forkserver")

_left_behind = pytest.StashKey[list[str]]()


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
    # If this run is killed, nobody ends its clusters but they themselves.
    os.environ["DASK_WORKBENCH__IDLE_TIMEOUT"] = "10 minutes"
    # On a login node a start would be a job in its queue.
    os.environ["DASK_WORKBENCH__SCHEDULER"] = "local"
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


@pytest.hookimpl(tryfirst=True)  # before `-m` selects
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.is_relative_to(config.rootpath / "tests" / "mpi"):
            item.add_marker("mpi_flavour")


@pytest.hookimpl(trylast=True)  # after the fixtures of the session have ended what they started
def pytest_sessionfinish(session: pytest.Session) -> None:
    psutil.wait_procs(processes_of_session(), timeout=5)
    left = processes_of_session()
    session.config.stash[_left_behind] = [_describe(process) for process in left]
    if left:
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


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    left = config.stash.get(_left_behind, [])
    if left:
        terminalreporter.section("processes left behind (ended now)", red=True, bold=True)
        terminalreporter.write_line("\n".join(left))
    left_out = [report for report in terminalreporter.getreports("skipped") if "tests/slurm/" in report.nodeid]
    if left_out:
        terminalreporter.section(f"{len(left_out)} TESTS ON A LIVE SLURM WERE LEFT OUT", red=True, bold=True)
        terminalreporter.write_line("\n".join(sorted({report.longrepr[2] for report in left_out})))
    if SESSION.exists():
        terminalreporter.write_line(f"records and logs of this run: {SESSION}")

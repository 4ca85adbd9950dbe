"""The job of a cluster as its starter sees it: submit it, look how it comes up, see it gone."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from concurrent.futures import ThreadPoolExecutor

from distributed.core import rpc

from workbench import certificates, config, logs, registry, scratch
from workbench.errors import (
    ClusterExists,
    ClusterNotFound,
    HeadUnreachable,
    RecordError,
    StartError,
    StartTimeout,
)
from workbench.launch.choose import launcher
from workbench.launch.interface import JobState
from workbench.launch.request import job_spec, write_dask_settings
from workbench.registry import Record

# Seconds between two looks at a cluster that is starting or ending.
LOOK = 0.05
# Seconds: the head sees to the deadline of a start itself and knows more; this is for a head that does not.
_GRACE = 5.0
# Seconds for the end of a cluster: its ranks are asked, then its mpiexec, then both are killed.
_END = 15.0


class Job:
    """One cluster's job.

    Parameters
    ----------
    record
        The cluster that is asked for, or one that runs already.
    renamable
        Whether another free name will do, if the one in `record` is taken meanwhile.

    Notes
    -----
    All methods may block for a while: call them off the event loop.
    """

    def __init__(self, record: Record, *, renamable: bool) -> None:
        self.record = record
        self._renamable = renamable
        self._id: str | None = None
        # A start can be given up while another thread is still submitting it.
        self._submitting = threading.Lock()
        self._given_up = False

    def submit(self) -> None:
        """Make the cluster's folder and key, and hand its job to the launcher.

        Raises
        ------
        ClusterExists
            If there is a cluster of that name.
        LaunchError
            If the job was not taken.
        RecordError
            If the folder cannot be written.
        """
        with self._submitting:
            if self._given_up:
                return
            try:
                self._make_folder()
            except RecordError:
                raise
            except OSError as error:
                raise RecordError(
                    f"cluster {self.record.name!r} cannot be started: {registry.clusters_folder()} has to be a folder "
                    f"that you can write to, with room on its disk, but: {error}. "
                    "Make it so, or set JUPYTER_DATA_DIR to another folder."
                ) from error
            self._id = launcher(self.record.scheduler).submit(job_spec(self.record))

    def _make_folder(self) -> None:
        while True:
            try:
                registry.create(self.record)
                break
            except ClusterExists:
                if not self._renamable:
                    raise
                # Another process has taken the name that was free a moment ago.
                self.record = self.record.replace(name=registry.free_name())
        certificates.make(self.record.folder, self.record.name)
        write_dask_settings(self.record)

    def look(self) -> Record:
        """Return the record as it is now.

        Raises
        ------
        StartError
            If the cluster has failed to start, with the end of the log that tells why.
        StartTimeout
            If it has not come up in time.
        """
        self._read()
        if self.record.state != "failed" and self._job_has_ended():
            self._read()  # it may have spoken between the two looks
            if self.record.state != "failed":
                raise self.failure("its head ended unexpectedly")
        if self.record.state == "failed":
            raise self.failure(self.record.message)
        if self.record.address is None and time.time() > self.record.deadline + _GRACE:
            raise self.failure(f"its head was not ready after its deadline, state {self.record.state!r}")
        return self.record

    def _read(self) -> None:
        with contextlib.suppress(ClusterNotFound):  # a network file system may show it late
            self.record = registry.read(self.record.name)

    def _job_has_ended(self) -> bool:
        return self._id is not None and launcher(self.record.scheduler).state(self._id) is JobState.ENDED

    def failure(self, reason: str) -> StartError:
        """Return the error that says why the cluster did not start."""
        kind = StartTimeout if "not ready after" in reason else StartError
        tail = logs.tail(self.record)
        # The head's last word is the reason itself, where nothing else failed.
        more = "" if reason in tail else f"\n{tail}"
        return kind(f"cluster {self.record.name!r} did not start: {reason}{more}")

    def runs(self) -> bool:
        """Tell whether the cluster may still be there."""
        with contextlib.suppress(OSError):
            return registry.owns_lease(self.record) and self.record.process.alive() is not False
        return True

    def await_end(self) -> None:
        """Return when nothing is left of the cluster; after a deadline, see to it."""
        if not _has_ended(self.record):
            self.remove()

    def remove(self) -> None:
        """Leave nothing of the cluster: job, record, key, sockets."""
        with self._submitting:
            self._given_up = True
        if self._id is not None:
            launcher(self.record.scheduler).cancel(self._id)
        _tidy(self.record)


def submitted_script(record: Record) -> str:
    """Return the script of a cluster's job as its starter has submitted it, whichever Python asks.

    Raises
    ------
    ClusterNotFound
        If the cluster has ended.
    """
    try:
        return job_spec(record).script.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise ClusterNotFound(
            f"cluster {record.name!r} has ended, and its script with it. Its logs are in {record.logs}."
        ) from None


def stop(record: Record) -> None:
    """End a cluster of yours, in whatever state it is, and return when nothing of it is left.

    Raises
    ------
    HeadUnreachable
        If its head neither answers nor ends.
    """

    async def ask() -> None:
        if record.address is None:
            raise OSError("the head does not listen yet")
        security = certificates.security(record.folder).get_connection_args("client")
        async with (
            asyncio.timeout(config.seconds("connect-timeout")),
            rpc(record.address, connection_args=security) as head,
        ):
            await head.workbench_close(reason="the user has stopped it")

    record = _once_it_has_spoken(record)
    try:
        # In a notebook this thread has a loop that runs already.
        with ThreadPoolExecutor(1) as thread:
            thread.submit(asyncio.run, ask()).result()
    except OSError:
        # It does not listen yet, or no longer, or its key is gone: without its lease it ends.
        registry.remove(record)
    if not _has_ended(record):
        process = record.process
        raise HeadUnreachable(
            f"cluster {record.name!r} does not end: its head neither answers nor gives up after {_END:.0f} s. "
            f"End it on {process.host} with: kill -9 {process.pid}"
        )


def _once_it_has_spoken(record: Record) -> Record:
    """Return the record that the head has written; until then it names its starter, who is not to be ended."""
    deadline = time.monotonic() + _END
    while record.state == "submitted" and time.monotonic() < deadline:
        time.sleep(LOOK)
        try:
            now = registry.read(record.name)
        except ClusterNotFound:
            break
        if now.id != record.id:
            break
        record = now
    return record


def _has_ended(record: Record) -> bool:
    """Wait until neither lease nor head are there; False if they outlast the deadline."""
    deadline = time.monotonic() + _END
    while time.monotonic() < deadline:
        # A head that has not spoken ends as soon as it finds no record.
        alive = False if record.state == "submitted" else record.process.alive()
        if alive is False:
            _tidy(record)  # nothing is left to do if the head has ended in order, but it may have been killed
        with contextlib.suppress(OSError):
            if not alive and not registry.owns_lease(record):
                return True
        time.sleep(LOOK)
    return False


def _tidy(record: Record) -> None:
    with contextlib.suppress(OSError):
        registry.remove(record)
    if record.process.is_local:
        scratch.remove(record.id)

"""Records as jobs meet them: on a network file system one may appear late, or be another cluster's by now."""

from __future__ import annotations

import socket
import time

from workbench import config
from workbench.deploy.record import Record, clusters_folder
from workbench.deploy.registry import RECORD, read
from workbench.errors import ClusterNotFound


def await_record(name: str, identity: str | None = None) -> Record:
    """Return the record of cluster `name`, waiting for it to appear: homes on a network are late.

    Parameters
    ----------
    identity
        Of the very cluster that is meant: a job that waited for long must not take another's for its own. None: any.

    Raises
    ------
    ClusterNotFound
        If it has not appeared after ``workbench.record-timeout``.
    """
    timeout = config.seconds("record-timeout")
    deadline = time.monotonic() + timeout
    while True:
        try:
            return _read_this(name, identity)
        except ClusterNotFound as error:
            if time.monotonic() > deadline:
                raise ClusterNotFound(
                    f"{error} Waited {timeout:.0f} s for {clusters_folder() / name / RECORD} on {socket.gethostname()} "
                    "(workbench.record-timeout)."
                ) from None
        time.sleep(0.05)


def _read_this(name: str, identity: str | None) -> Record:
    record = read(name)
    if identity not in (None, record.id):
        raise ClusterNotFound(f"cluster {name!r} is another one now, with the id {record.id}.")
    return record

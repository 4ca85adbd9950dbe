"""A report: the dashboard of a cluster as one file, which opens without a server and after the cluster's end."""

from __future__ import annotations

import json
import subprocess
import sys

from workbench.commands import actions
from workbench.deploy.record import Record
from workbench.errors import ClusterNotFound, InvalidRequest, StartError, StartTimeout, from_fields
from workbench.host import files

# Draws it, apart: the notebook is not to load Panel. With this exit code it has printed the fields of an error.
_MODULE = "workbench.lab.dashboard.report"
_REFUSED = 3
# Seconds for it: two to load Panel, five to draw, on a machine with nothing else to do.
_DEADLINE = 120.0


def report(file: str, name: str | None, bound: Record | None = None) -> str:
    """Write the report of a cluster, and return a message.

    Parameters
    ----------
    file
        Path of an ``.html`` file; an existing file is replaced once the report is complete.
    name, bound
        The cluster, as of `workbench.commands.actions.choose`.

    Raises
    ------
    InvalidRequest
        If the file cannot be written, or the ranks have sent no measurements.
    ClusterNotFound
        If the cluster is unknown or has ended.
    HeadUnreachable
        If its head does not answer.
    StartError
        If the report was not drawn, or not before the deadline.
    """
    if not file.lower().endswith((".html", ".htm")):
        allowed = f"a name that ends in .html, for example {file}.html: a report is an HTML file"
        raise InvalidRequest(option="report", given=file, allowed=allowed)
    path = files.validate("report", file)
    try:
        record = actions.choose(name, bound)
    except ClusterNotFound as error:
        message = f"{error.message} A report can only be written while its cluster runs."
        raise error.converted(ClusterNotFound, message) from None
    files.write("report", path, _drawn(record.name))
    return f"{file} has the report of cluster {record.name!r}"


def _drawn(name: str) -> bytes:
    # -P: a file in the notebook's folder must not shadow a module.
    command = [sys.executable, "-P", "-m", _MODULE, name]
    try:
        done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, timeout=_DEADLINE, check=False)
    except subprocess.TimeoutExpired as error:
        raise StartTimeout(
            f"the report of cluster {name!r} was not drawn within {_DEADLINE:.0f} s.", hint="Try again."
        ) from error
    if done.returncode == _REFUSED:
        raise from_fields(json.loads(done.stdout))
    if done.returncode:
        raise StartError(
            f"the report of cluster {name!r} was not drawn (exit code {done.returncode}).",
            hint=f"`{' '.join(command)}` shows the error.",
            log=done.stderr.decode(errors="replace").strip(),
        )
    return done.stdout

"""An agent like ``rsh`` on top of PBS's own ``pbs_tmrsh``, with which MPI reaches the other nodes of a PBS job.

Processes that the agent starts belong to the job: PBS counts their use of resources, and ends them with the job.
"""

from __future__ import annotations

import shlex
import shutil

from workbench import config
from workbench.errors import LaunchError
from workbench.files import atomic_file
from workbench.files.private import make_private


def agent_text(tmrsh: str) -> str:
    """Return the text of a program with the command line of ``rsh``: ``[OPTION]... HOST COMMAND...``.

    Parameters
    ----------
    tmrsh
        Path of ``pbs_tmrsh``.

    Notes
    -----
    The program joins the words of the command and passes them to a shell, as ``rsh`` and ``ssh`` do and ``pbs_tmrsh``
    does not. Both MPIs rely on this, for example to set variables before the program.
    """
    return f"""\
#!/bin/sh
# mpiexec calls this program like rsh: [OPTION]... HOST COMMAND...
while :; do
    case "$1" in
        -l | -p | -o) shift 2 ;;
        -*) shift ;;
        *) break ;;
    esac
done
host=$1
shift
exec {shlex.quote(tmrsh)} "$host" /bin/sh -c "$*"
"""


def agent_path() -> str:
    """Write the program of `agent_text` to a folder that all nodes share, and return its path.

    Raises
    ------
    LaunchError
        If ``pbs_tmrsh`` is not on PATH, or if the program cannot be written.
    """
    tmrsh = shutil.which("pbs_tmrsh")
    if tmrsh is None:
        raise LaunchError("pbs_tmrsh is not on PATH.", hint="Add the folder bin of PBS to PATH.")
    path = config.data_folder() / "workbench" / "pbs-agent"
    if any(map(str.isspace, str(path))):
        raise LaunchError(
            f"{path}: MPI cannot run an agent whose path has blanks.",
            hint="Set JUPYTER_DATA_DIR to a folder without blanks.",
        )
    text = agent_text(tmrsh)
    try:
        if not (path.exists() and path.read_text(encoding="utf-8") == text):
            make_private(path.parent)
            # In one step, since another job of the user may run the program.
            atomic_file.replace(path, text.encode(), 0o700)
    except OSError as error:
        raise LaunchError(f"cannot write {path}: {error}.", hint="Check permissions, space and quota.") from error
    return str(path)

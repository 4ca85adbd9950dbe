"""How an MPI reaches the other nodes of a PBS job without ssh: a program like ``rsh`` over PBS's own ``pbs_tmrsh``.

Processes that are started so belong to the job: PBS counts what they use, and ends them with it.
"""

from __future__ import annotations

import shlex
import shutil
import tempfile
from pathlib import Path

from workbench import config
from workbench.errors import LaunchError
from workbench.files.private import make_private


def agent_text(tmrsh: str) -> str:
    """Return the text of a program that is called as ``rsh`` is, ``[OPTION]... HOST COMMAND...``.

    Parameters
    ----------
    tmrsh
        Path of ``pbs_tmrsh``.

    Notes
    -----
    The words of the command are put together and given to a shell, as ``rsh`` and ``ssh`` do: both MPIs count on
    that, for instance with variables that are set ahead of the program. ``pbs_tmrsh`` by itself would not do it.
    """
    return f"""\
#!/bin/sh
# Called by mpiexec as rsh would be: [OPTION]... HOST COMMAND...
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
    """Return the path of the program of `agent_text`, after writing it where all nodes see it.

    Raises
    ------
    LaunchError
        If there is no ``pbs_tmrsh`` here, or the program cannot be written.
    """
    tmrsh = shutil.which("pbs_tmrsh")
    if tmrsh is None:
        raise LaunchError("there is no pbs_tmrsh on PATH: it is in the folder bin of PBS.", hint="Put that on PATH.")
    path = config.data_folder() / "workbench" / "pbs-agent"
    if any(map(str.isspace, str(path))):
        raise LaunchError(
            f"{path}: MPI cannot run an agent whose path has blanks.", hint="Set JUPYTER_DATA_DIR to another folder."
        )
    text = agent_text(tmrsh)
    try:
        if not (path.exists() and path.read_text(encoding="utf-8") == text):
            _write(path, text)
    except OSError as error:
        raise LaunchError(f"cannot write {path}: {error}.", hint="Check permissions, space and quota.") from error
    return str(path)


def _write(path: Path, text: str) -> None:
    make_private(path.parent)
    # Another job of the user may be running it: it is replaced as a whole.
    descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=path.name)
    try:
        with open(descriptor, "w", encoding="utf-8") as file:
            file.write(text)
        Path(name).chmod(0o700)
        Path(name).replace(path)
    except OSError:
        Path(name).unlink()
        raise

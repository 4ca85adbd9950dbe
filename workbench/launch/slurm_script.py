"""The script of a Slurm job; pure functions."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import replace

from workbench.errors import InvalidRequest
from workbench.launch.interface import JobSpec
from workbench.launch.jobqueue import Site, header
from workbench.launch.script import after_prologue
from workbench.launch.walltime import clock

_LONG = {
    "-A": "--account", "-C": "--constraint", "-D": "--chdir", "-J": "--job-name", "-M": "--clusters", "-N": "--nodes",
    "-W": "--wait", "-a": "--array", "-c": "--cpus-per-task", "-e": "--error", "-i": "--input", "-n": "--ntasks",
    "-o": "--output", "-p": "--partition", "-q": "--qos", "-t": "--time",
}  # fmt: skip
OURS = {
    "--job-name": "--name",
    "--nodes": "--nodes",
    "--ntasks": "the number of ranks",
    "--ntasks-per-node": "--ranks-per-node",
    "--cpus-per-task": "--threads",
    **dict.fromkeys(
        (
            "--array",
            "--chdir",
            "--clusters",
            "--comment",
            "--error",
            "--input",
            "--no-requeue",
            "--open-mode",
            "--output",
            "--parsable",
            "--requeue",
            "--signal",
            "--test-only",
            "--wait",
            "--wrap",
        ),
        "",
    ),
}
"""Options that every job sets or must not have, with the workbench's option for each; empty if there is none."""
OPTIONS = {
    "--time": "walltime",
    "--partition": "queue",
    "--account": "account",
    "--constraint": "constraint",
    "--reservation": "reservation",
    "--gpus-per-task": "gpus_per_rank",
}
"""Options for fields of `Resources`."""
# A site cannot omit these options, which define the geometry of the MPI world and the place of its output.
_KEPT = ("--job-name", "--output", "--nodes", "--ntasks", "--ntasks-per-node", "--cpus-per-task")
MEMORY = "--mem-per-cpu"
"""The option for the memory of a rank."""
_OF_MEMORY = ("--mem", "--mem-per-cpu", "--mem-per-gpu")


def option(directive: str) -> str:
    """Return the option that a directive sets, in its long form.

    Examples
    --------
    >>> option("-p debug"), option("-n4"), option("#SBATCH --mem=4G"), option("--exclusive")
    ('--partition', '--ntasks', '--mem', '--exclusive')
    """
    words = directive.removeprefix("#SBATCH").split(None, 1)
    name = words[0].partition("=")[0] if words else ""
    if not name.startswith("-"):
        # dask-jobqueue skips by any part of a line: mem
        return f"--{name}"
    return name if name.startswith("--") else _LONG.get(name[:2], name[:2])


def same(first: str, second: str) -> bool:
    """Return whether two options set the same resource; all options for memory do."""
    return first == second or (first in _OF_MEMORY and second in _OF_MEMORY)


def script(spec: JobSpec, site: Site, notice: int | None) -> str:
    """Return the script of a job.

    Parameters
    ----------
    spec
        The job, with complete resources.
    site
        The source of the first line, the prologue, the memory of a node and the directives to skip.
    notice
        Seconds before the walltime at which Slurm signals the head; None: no signal.

    Raises
    ------
    InvalidRequest
        If a value has a line break or another control character, which no script can contain.
    """
    extra = [f"#SBATCH {line}" for line in spec.resources.extra]
    lines = [line for line in _directives(spec, site, notice) if line in extra or not _skipped(line, site)]
    directory, program = shlex.quote(str(spec.directory)), shlex.quote(spec.command[0])
    commands = [
        *(f"export {name}={shlex.quote(value)}" for name, value in spec.environment),
        *_missing(f"-d {directory}", spec.directory, "the job's folder"),
        *_missing(f"-x {program}", spec.command[0], "the Python of the cluster"),
        f"cd {directory} || exit 1",
        f"exec {shlex.join(spec.command)}",
    ]
    return "\n".join([site.shebang, *lines, "", *after_prologue(site.shebang, site.prologue, commands), ""])


def comment(identity: str) -> str:
    """Return the comment of a job, which identifies the job if its number is not known."""
    return f"workbench:{identity}"


def _missing(test: str, path: object, noun: str) -> Iterator[str]:
    beginning = f"workbench: {path} does not exist on "
    end = f": {noun} must be on a file system that the nodes share."
    message = f'{shlex.quote(beginning)} "$(hostname)" {shlex.quote(end)}'
    yield f"test {test} || {{ printf '%s%s%s\\n' {message} >&2; exit 1; }}"


def _directives(spec: JobSpec, site: Site, notice: int | None) -> Iterator[str]:
    request = spec.resources
    settings: list[tuple[str, object]] = [
        ("--job-name", spec.name),
        ("--comment", comment(spec.identity)),
        ("--output", _file_name(str(spec.log))),
        ("--open-mode", "append"),
        ("--nodes", request.nodes),
        ("--ntasks", spec.ranks),
        ("--ntasks-per-node", request.ranks_per_node),
        ("--cpus-per-task", spec.threads),
        ("--mem-per-cpu", spec.memory and _mebibytes(spec.memory, spec.threads)),
        ("--mem", _mebibytes(site.memory, 1) if spec.memory is None and site.memory is not None else None),
        ("--constraint", request.constraint),
        ("--reservation", request.reservation),
        ("--gpus-per-task", request.gpus_per_rank),
        ("--signal", notice and f"B:USR1@{notice}"),
    ]
    yield from (f"#SBATCH {name}={quoted(str(value))}" for name, value in settings if value is not None)
    # A head that Slurm starts again would find the record of its first start.
    yield "#SBATCH --no-requeue"
    yield from header(
        "slurm",
        replace(
            site,
            queue=request.queue and quoted(request.queue),
            account=request.account and quoted(request.account),
            walltime=None if request.walltime is None else clock(request.walltime),
            extra=request.extra,
        ),
    )


def _skipped(line: str, site: Site) -> bool:
    name = option(line)
    return name not in _KEPT and any(same(name, option(skip)) for skip in site.skip)


def _mebibytes(size: int, parts: int) -> str:
    # 0 is all memory of a node.
    return f"{-(-size // (parts * 2**20))}M" if size else "0"


def quoted(value: str) -> str:
    """Return a value with quotes as sbatch reads them in a script: double quotes, and a backslash inside of them."""
    if any(ord(letter) < 32 or ord(letter) == 127 for letter in value):
        raise InvalidRequest(
            f"{value!r} is not valid: a job script cannot contain a line break or another control character."
        )
    return (
        value if re.fullmatch(r"[\w@%+=:,./^&|*!()\[\]-]*", value) else '"' + re.sub(r'(["\\])', r"\\\1", value) + '"'
    )


def _file_name(path: str) -> str:
    # %j would be the job's id. After a backslash Slurm does not expand anything.
    return path.replace("\\", "\\\\") if "\\" in path else path.replace("%", "%%")


def overriding(text: str, environment: Mapping[str, str]) -> list[str]:
    """Return the names of variables with which sbatch would override the script.

    Parameters
    ----------
    text
        The script.
    environment
        Variables by name.
    """
    options = {option(line) for line in text.splitlines() if line.startswith("#SBATCH")}
    return sorted(
        name for name in environment if name in _NEVER or any(same(_VARIABLES.get(name, ""), each) for each in options)
    )


_VARIABLES = {
    "SBATCH_ACCOUNT": "--account",
    "SBATCH_CONSTRAINT": "--constraint",
    "SBATCH_GPUS_PER_TASK": "--gpus-per-task",
    "SBATCH_JOB_NAME": "--job-name",
    "SBATCH_MEM_PER_CPU": "--mem-per-cpu",
    "SBATCH_MEM_PER_GPU": "--mem-per-gpu",
    "SBATCH_MEM_PER_NODE": "--mem",
    "SBATCH_NO_REQUEUE": "--no-requeue",
    "SBATCH_OPEN_MODE": "--open-mode",
    "SBATCH_OUTPUT": "--output",
    "SBATCH_PARTITION": "--partition",
    "SBATCH_QOS": "--qos",
    "SBATCH_REQUEUE": "--no-requeue",
    "SBATCH_RESERVATION": "--reservation",
    "SBATCH_SIGNAL": "--signal",
    "SBATCH_TIMELIMIT": "--time",
}
# With these variables sbatch would not submit one job in the background to this cluster, or the job would have other
# files in place of its log and of an empty input.
_NEVER = ("SBATCH_ARRAY_INX", "SBATCH_CLUSTERS", "SBATCH_ERROR", "SBATCH_INPUT", "SBATCH_WAIT", "SLURM_CLUSTERS")

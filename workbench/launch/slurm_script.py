"""The resources of a Slurm job, as options of the submission, and the script of the job."""

from __future__ import annotations

import itertools
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from workbench.errors import InvalidRequest, named
from workbench.launch.batch import after_prologue
from workbench.launch.interface import JobSpec
from workbench.launch.jobqueue import Site, breaking, fill, header, invalid
from workbench.launch.options import Resources
from workbench.launch.walltime import UNLIMITED, clock

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
        ("--dependency", f"afterany:{spec.after}" if spec.after else None),
        ("--kill-on-invalid-dep", "yes" if spec.after else None),
    ]
    yield from (f"#SBATCH {name}={quoted(str(value))}" for name, value in settings if value is not None)
    # A head that Slurm starts again finds the record of its first start, and continues only if the user wants that.
    yield "#SBATCH --requeue" if spec.requeue else "#SBATCH --no-requeue"
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
        why = "a job script cannot contain a line break or another control character"
        raise InvalidRequest(f"{value!r} is not valid: {why}.", given=value)
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
        name for name in environment if name in _NEVER or any(same(_OPTION_OF.get(name, ""), each) for each in options)
    )


_OPTION_OF = {
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

# One argument of sbatch, with its quotes.
_WORD = re.compile(r"""(?:[^\s"'\\]|\\.|"(?:\\.|[^"\\])*"|'[^']*')+""")
# With these directives the job would be several jobs, or the job of a cluster that the workbench does not query.
_BREAKING = ("--array", "--clusters")
# Variables of sbatch, which have priority over the directives of a script.
_OPTION_VARIABLES = {
    "queue": "SBATCH_PARTITION",
    "account": "SBATCH_ACCOUNT",
    "constraint": "SBATCH_CONSTRAINT",
    "reservation": "SBATCH_RESERVATION",
}


def resolve(
    resources: Resources, site: Site, environment: Mapping[str, str], *, ranks: int, memory: int | None
) -> Resources:
    """Return the complete resources of a job.

    Parameters
    ----------
    resources
        The user's request; complete resources stay unchanged.
    site
        The site's settings as of `by_directives`, for options that neither `resources` nor `environment` has.
    environment
        The user's variables, for example ``SBATCH_PARTITION``.
    ranks
        Size of the world.
    memory
        Bytes per rank; None: no request.

    Raises
    ------
    InvalidRequest
        If an option is not valid.

    Notes
    -----
    A directive of the site is omitted if another source sets the same option: always for name, output, signal and
    geometry of the job, and for queue, account, memory and similar options if the user has set them. A directive has
    priority over the other settings of the site.
    """
    user_extra = [line for line in resources.extra if line not in site.extra]
    for line in user_extra:
        _check_extra(line)
    _check_skipped(resources, memory, site)
    from_environment: dict[str, Any] = {
        field: environment[variable]
        for field, variable in _OPTION_VARIABLES.items()
        if getattr(resources, field) is None and environment.get(variable)
    }
    complete = fill(replace(resources, **from_environment), site, ranks=ranks, minute=60)
    skipped: dict[str, Any] = {field: None for name, field in OPTIONS.items() if _is_skipped(name, site)}
    complete = replace(complete, **skipped)
    for field in OPTIONS.values():
        _check_value(field, getattr(complete, field))
    site_extra = (line for line in site.extra if not _why_left_out(line, complete, memory))
    return replace(complete, extra=tuple(dict.fromkeys((*site_extra, *user_extra))))


def by_directives(site: Site) -> Site:
    """Return the settings of a site with one option per directive, after directives have replaced other settings.

    Raises
    ------
    InvalidRequest
        If a directive cannot be read, or would change the kind of job.
    """
    lines = [part for line in site.extra for part in _parts(line, site.section)]
    for line in lines:
        if option(line) in _BREAKING:
            why = "a cluster is one job of the system on which the job is submitted"
            raise breaking(site.section, line, why)
    site = replace(site, extra=tuple(lines))
    fields = {name: field for name, field in OPTIONS.items() if field in ("walltime", "queue", "account")}
    for name, field in (*fields.items(), (MEMORY, "memory")):
        found = [line for line in lines if same(option(line), name)]
        if found:
            # What the site skips are the lines of the other settings.
            skip = tuple(line for line in site.skip if not same(name, option(line)))
            value: Any = None if field == "memory" else _value(found[-1])
            left = tuple(line for line in site.extra if field == "memory" or line not in found)
            site = replace(site, **{field: value}, skip=skip, extra=left)
    if site.walltime is not None and site.walltime.strip().lower() in UNLIMITED:
        unlimited = () if _is_skipped("--time", site) else ("--time=UNLIMITED",)
        site = replace(site, walltime=None, extra=(*site.extra, *unlimited))
    return site


def left_out(site: Site, complete: Resources, memory: int | None) -> list[str]:
    """Return in sentences which directives of the site, as of `by_directives`, a job does not have, and why."""
    reasons = {line: _why_left_out(line, complete, memory) for line in site.extra}
    return [
        f"not used: {line} of jobqueue.{site.section}.job-extra-directives, because {reason}"
        for line, reason in reasons.items()
        if reason
    ]


def _why_left_out(line: str, complete: Resources, memory: int | None) -> str:
    """Return why a job does not have a directive of the site; empty if the job has the directive."""
    name = option(line)
    if instead := OURS.get(name):
        return f"{instead} of the start sets {name}"
    if name in OURS:
        return f"the workbench sets {name}"
    if same(name, MEMORY) and memory is not None:
        return "--memory is given"
    field = OPTIONS.get(name)
    return f"--{named(field)} is given" if field and getattr(complete, field) is not None else ""


def _parts(line: str, section: str) -> list[str]:
    """Return the options in a directive, each with its value."""
    words = _WORD.findall(line)
    if "#" in (first := [word[0] for word in words]):
        words = words[: first.index("#")]
    starts = [index for index, word in enumerate(words) if re.match(r"--?[A-Za-z]", word)]
    if not line.isprintable() or starts[:1] != [0] or "".join(_WORD.sub("", line).split()):
        raise invalid(section, "job-extra-directives", line, "options of sbatch in each item of the list")
    return [" ".join(words[start:end]) for start, end in itertools.pairwise([*starts, len(words)])]


def _value(line: str) -> str:
    """Return the value of an option."""
    words = shlex.split(line)
    value = words[0].partition("=")[2] if words[0].startswith("--") else words[0][2:]
    return value or " ".join(words[1:])


def _check_extra(line: str) -> None:
    if _options(line) != 1:
        raise InvalidRequest(
            option="extra", given=line, allowed="one option of sbatch on one line, e.g. --extra '--qos=high'"
        )
    name = _unabbreviated(option(line))
    instead = "--memory" if same(name, MEMORY) else OURS.get(name)
    if field := OPTIONS.get(name):
        instead = f"--{named(field)}"
    if instead is not None:
        hint = f"Use {instead} of the workbench, outside of --extra." if instead else "Omit this directive."
        raise InvalidRequest(
            f"--extra {line!r} is not valid: the workbench sets {name}.", option="extra", given=line, hint=hint
        )


def _unabbreviated(name: str) -> str:
    """Return the workbench's option that sbatch reads for an abbreviated name, or the name itself."""
    ours = (*OURS, *OPTIONS, MEMORY)
    full_name = next((known for known in ours if name.startswith("--") and known.startswith(name)), name)
    return name if name in ours else full_name


def _check_skipped(resources: Resources, memory: int | None, site: Site) -> None:
    for name, field in (*OPTIONS.items(), (MEMORY, "memory")):
        if (memory if field == "memory" else getattr(resources, field)) is not None and _is_skipped(name, site):
            raise InvalidRequest(
                f"--{named(field)} has no effect: the settings of the site remove {name} from every job "
                f"(jobqueue.{site.section}.job-directives-skip).",
                option=field,
                hint="Omit the option, or change these settings.",
            )


def _is_skipped(name: str, site: Site) -> bool:
    return any(same(name, option(line)) for line in site.skip)


def _check_value(field: str, value: Any) -> None:
    try:
        quoted("" if value is None else str(value))
    except InvalidRequest as error:
        raise error.converted(InvalidRequest, f"--{named(field)} {error.message}", option=field, given=value) from None


def _options(line: str) -> int:
    """Return the number of options in a directive; 0 if the directive cannot be read."""
    try:
        words: Sequence[str] = shlex.split(line) if line.isprintable() else ()
    except ValueError:
        return 0
    return sum(word.startswith("-") for word in words) if words and words[0].startswith("-") else 0

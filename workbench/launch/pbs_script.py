"""The resources of a PBS job, as options of the submission, and the script of the job."""

from __future__ import annotations

import enum
import itertools
import re
import shlex
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from workbench.errors import InvalidRequest
from workbench.hints import Option
from workbench.launch.batch import after_prologue, is_csh
from workbench.launch.interface import JobSpec
from workbench.launch.jobqueue import Site, breaking, fill, header, invalid, scheduler_bytes
from workbench.launch.multinode import requested_counts
from workbench.launch.options import Resources
from workbench.launch.pbs_parse import CODE_NO_COMMAND, CODE_NO_OUTPUT
from workbench.launch.walltime import pbs_clock

# Resources that directives of a site never change.
GEOMETRY = frozenset(
    f"-l {name}"
    for name in ("select", "nodes", "nodect", "ncpus", "mpiprocs", "ompthreads", "mem", "pmem", "procs", "ngpus")
)
OURS = GEOMETRY | {"-N", "-j", "-o", "-e", "-r", "-S"}
_NAME = re.compile(r"[^A-Za-z0-9_.+-]")
_LONGEST_NAME = 230


class Flavor(enum.Enum):
    """Flavor of a PBS."""

    PRO = "PBS"
    """OpenPBS and PBS Pro."""
    EMULATION = "Slurm's emulation of PBS"


def order_directives(spec: JobSpec, flavor: Flavor) -> list[str]:
    """Return the directives for the start of a job: once or again, and after which job; PBS keeps no output."""
    # Without a host OpenPBS copies the empty output to the host of qsub: where scp fails, each job ends 95 s later.
    output = "localhost:/dev/null" if flavor is Flavor.PRO else "/dev/null"
    after = [f"-W depend=afterany:{spec.after}"] if spec.after else []
    return ["-j oe", f"-o {output}", f"-r {'y' if spec.requeue else 'n'}", *after]


def directives(text: str) -> set[str]:
    """Return the options in a directive; ``-l`` and ``-W`` with the name of the resource or attribute.

    Examples
    --------
    >>> sorted(directives("-l select=2:ncpus=4,place=scatter -N name"))
    ['-N', '-l place', '-l select']
    """
    try:
        words = shlex.split(text, comments=True)
    except ValueError as error:
        raise InvalidRequest(f"the directive {text!r} cannot be read: {error}.") from error
    options = set()
    for word, following in itertools.pairwise([*words, ""]):
        if not re.match(r"-[A-Za-z]", word):
            continue
        option, value = word[:2], word[2:].lstrip("=") or following
        names = {f"{option} {part.partition('=')[0].strip()}" for part in value.split(",") if part.strip()}
        options |= (names or {option}) if option in ("-l", "-W") else {option}
    return options


def parts(text: str) -> list[str]:
    """Return the options in a directive, each with its value; ``-l`` and ``-W`` for each resource or attribute.

    Examples
    --------
    >>> parts("-l software=abc,mem=4gb -m n")
    ['-l software=abc', '-l mem=4gb', '-m n']
    """
    words = shlex.split(text, comments=True)
    starts = [index for index, word in enumerate(words) if re.match(r"-[A-Za-z]", word)]
    found = []
    for start, end in itertools.pairwise([*starts, len(words)]):
        option, value = words[start][:2], " ".join([words[start][2:].lstrip("="), *words[start + 1 : end]]).strip()
        # A comma may also be part of a value: -W group_list=a,b
        values = re.split(r",(?=\s*\w+=)", value) if option in ("-l", "-W") else [value]
        found += [f"{option} {shlex.quote(each.strip())}" if each else option for each in values]
    return found


def job_name(name: str, identity: str) -> str:
    """Return the name of a job: `name` with characters that PBS accepts, and the identity of the job.

    Examples
    --------
    >>> job_name("1 long/name", "0123456789:job")
    'w1_long_name-01234567'
    >>> job_name("training", "0123456789:world-1-2")
    'training-01234567-1-2'
    """
    cluster, _, stem = identity.partition(":")
    mark = f"-{cluster[:8]}{stem.removeprefix('job').removeprefix('world')}" if identity else ""
    legal = _NAME.sub("_", name)
    # The first character must be a letter.
    legal = legal if legal[:1].isalpha() else f"w{legal}"
    return legal[: _LONGEST_NAME - len(mark)] + mark


def skipped(skip: Iterable[str]) -> set[str]:
    """Return the options, as of `directives`, that entries of a site omit from every job; never the geometry."""
    entries = [entry.removeprefix("#PBS").strip() for entry in skip]
    # dask-jobqueue accepts any part of a line, for example `walltime`.
    options = [entry if entry.startswith("-") else f"-l {entry}" for entry in entries]
    return set().union(*map(directives, options)) - GEOMETRY


def requests(spec: JobSpec, flavor: Flavor, node_memory: int | None) -> list[str]:
    """Return the values of ``-l`` for nodes, ranks, threads, memory and GPUs.

    Parameters
    ----------
    node_memory
        Bytes per node if the job's `spec` has no memory; None: no request.
    """
    request = spec.resources
    shares = _shares(spec.ranks, request.nodes, request.ranks_per_node)
    if flavor is Flavor.EMULATION:
        # The emulation reads only one type of chunk.
        shares = [(sum(nodes for nodes, _ in shares), max(ranks for _, ranks in shares))]
    chunks = []
    for chunk, ranks in shares:
        parts = [str(chunk), f"ncpus={ranks * spec.threads}", f"mpiprocs={ranks}", f"ompthreads={spec.threads}"]
        if memory := spec.memory * ranks if spec.memory else node_memory if request.nodes else None:
            parts.append(f"mem={_megabytes(memory)}")
        if request.gpus_per_rank:
            parts.append(f"ngpus={request.gpus_per_rank * ranks}")
        if request.constraint and flavor is Flavor.PRO:
            parts.append(request.constraint)
        chunks.append(":".join(parts))
    lines = [f"select={'+'.join(chunks)}"]
    if flavor is Flavor.EMULATION:
        return [*lines, *([f"proc={request.constraint}"] if request.constraint else [])]
    placed = any("-l place" in directives(line) for line in request.extra)
    return [*lines, *(["place=scatter"] if request.nodes and not placed else [])]


def script_text(spec: JobSpec, site: Site, flavor: Flavor) -> str:
    """Return the script that becomes the head on the first node of its job.

    Raises
    ------
    InvalidRequest
        If a value has more than one line.
    """
    request = spec.resources
    for value in (
        spec.name,
        request.queue,
        request.account,
        request.constraint,
        *request.extra,
        spec.log,
        spec.directory,
    ):
        if "\n" in str(value):
            raise InvalidRequest(f"{str(value)!r} has more than one line. PBS needs names and paths on one line.")
    always = (f"-N {job_name(spec.name, spec.identity)}", "-S /bin/bash", *order_directives(spec, flavor))
    lines = [f"#PBS {line}" for line in always if not directives(line) & skipped(site.skip)]
    # An advance reservation of PBS is a queue.
    queue = request.reservation.partition(".")[0] if request.reservation else request.queue
    walltime = None if request.walltime is None else pbs_clock(request.walltime)
    lines += header("pbs", replace(site, queue=queue, account=request.account, walltime=walltime, extra=request.extra))
    log, folder, program = (shlex.quote(str(text)) for text in (spec.log, spec.directory, spec.command[0]))
    missing = f"workbench: {spec.command[0]} or the folder {spec.directory} does not exist on"
    commands = [
        f"if ! [ -x {program} ] || ! cd {folder}; then",
        f"    printf '%s %s\\n' {shlex.quote(missing)} \"$(hostname): its file system is not shared with this node\"",
        f"    exit {CODE_NO_COMMAND}",
        "fi",
        *(f"export {name}={shlex.quote(value)}" for name, value in spec.environment),
        f"exec {shlex.join(spec.command)}",
    ]
    commands = after_prologue(site.shebang, site.prologue, commands)
    if is_csh(site.shebang):
        # -S names the shell of the lines before.
        shell, end = site.shebang.removeprefix("#!").strip(), "workbench-end-of-prologue"
        commands = [f"exec {shell} << '{end}'", *commands, end]
    text = [
        site.shebang,
        *lines[:1],
        *(f"#PBS -l {request}" for request in requests(spec, flavor, site.memory)),
        *lines[1:],
        "umask 077",
        # PBS would keep the output on the node until the end of the job.
        f"(: >>{log}) 2>/dev/null || exit {CODE_NO_OUTPUT}",
        f"exec >>{log} 2>&1 </dev/null",
        *commands,
    ]
    return "\n".join([*text, ""])


def _shares(ranks: int, nodes: int | None, per_node: int | None) -> list[tuple[int, int]]:
    """Return pairs of a number of nodes and the ranks on each; without `nodes`, each rank is a chunk."""
    if nodes is None:
        return [(ranks, 1)]
    counts = requested_counts(ranks, nodes, per_node or -(-ranks // nodes))
    return [(len(list(group)), size) for size, group in itertools.groupby(counts)]


def _megabytes(number: int) -> str:
    # A megabyte of PBS has 2**20 bytes.
    return f"{-(-number // 2**20)}mb"


# Directives for which the workbench has an option, by the field of `Resources`, which has the name of the option.
_FIELDS = {"queue": "-q", "account": "-A", "walltime": "-l walltime"}
# With these directives the job would not be one job in the background, or qsub would not return its id.
_BREAKING = frozenset({"-J", "-t", "-I", "-X", "-z", "-C", "-G", "-W block"})
# The specification of chunks, of which `_site_constraint` keeps a part.
_CHUNKS = frozenset({"-l select", "-l nodes"})
_RESERVATION = re.compile(r"[RSM]\d+(\.\S+)?", re.ASCII)
_CHUNK_RESOURCES = re.compile(r"[A-Za-z]\w*=[^\s:=+,]+(:[A-Za-z]\w*=[^\s:=+,]+)*", re.ASCII)
_WORD = re.compile(r"[A-Za-z][\w.-]*", re.ASCII)


def resolve(resources: Resources, site: Site, flavor: Flavor, *, ranks: int) -> Resources:
    """Return the complete resources of a job.

    Parameters
    ----------
    resources
        The user's request; complete resources stay unchanged.
    site
        The site's settings as of `by_directives`, for options that `resources` does not have.
    flavor
        Flavor of the PBS.
    ranks
        Size of the world.

    Raises
    ------
    InvalidRequest
        If PBS cannot express an option.

    Notes
    -----
    A directive of the site is omitted if another source sets the same option: always for name, output and geometry of
    the job, and for queue, account and walltime if the user has set them. The constraint defaults to the resources of
    the chunk in ``resource-spec`` that are not part of the geometry (``model=...``).
    """
    user_extra = [line for line in resources.extra if line not in site.extra]
    for line in user_extra:
        _check_extra(line)
    removed = skipped(site.skip)
    for field, option in _FIELDS.items():
        if getattr(resources, field) is not None and option in removed:
            raise InvalidRequest(
                f"--{field} has no effect: the settings of the site remove {option} from every job "
                f"(jobqueue.{site.section}.job-directives-skip).",
                option=field,
                hint="Omit the option, or change these settings.",
            )
    _check_reservation(resources, flavor)
    complete = fill(_on_one_node(resources, flavor), _without_queue(site, resources), ranks=ranks, minute=1)
    unset: dict[str, Any] = {field: None for field, option in _FIELDS.items() if option in removed}
    complete = replace(complete, **unset)
    if complete.constraint is None and flavor is Flavor.PRO:
        complete = replace(complete, constraint=_site_constraint(site))
    _check_constraint(complete.constraint, flavor)
    if complete.gpus_per_rank and flavor is Flavor.EMULATION:
        raise InvalidRequest(
            "--gpus-per-rank is not possible: Slurm's emulation of PBS ignores requests of GPUs without an error.",
            option="gpus_per_rank",
            given=complete.gpus_per_rank,
            hint=("Use ", Option("scheduler"), " slurm."),
        )
    for field in ("queue", "account", "constraint", "reservation"):
        value = getattr(complete, field)
        if value is not None and (not value or re.search(r"[\s\"'\\]", value)):
            raise InvalidRequest(option=field, given=value, allowed="a name without blanks and quotes")
    site_extra = (line for line in site.extra if not _why_left_out(line))
    return replace(complete, extra=tuple(dict.fromkeys((*site_extra, *user_extra))))


def by_directives(site: Site, environment: Mapping[str, str]) -> Site:
    """Return the settings of a site, after directives and the specification of resources have replaced other settings.

    Parameters
    ----------
    site
        The settings as read.
    environment
        The user's variables: ``PBS_ACCOUNT`` is the account if the site has none, as in dask-jobqueue.

    Raises
    ------
    InvalidRequest
        If a directive would change the kind of job, or the specification of resources cannot be read.
    """
    for line in site.extra:
        if kinds := directives(line) & _BREAKING:
            why = f"{min(kinds)} changes the kind of job, and a cluster is one job that runs in the background"
            raise breaking(site.section, line, why)
    known = OURS | set(_FIELDS.values())
    try:
        specified = parts(f"-l {site.resource_spec}") if site.resource_spec else []
    except ValueError as error:
        allowed = f"resources in the syntax of qsub -l; this text cannot be read: {error}"
        raise invalid(site.section, "resource-spec", site.resource_spec, allowed) from None
    lines = [part for part in specified if not directives(part) & _CHUNKS]
    for line in site.extra:
        # Other directives stay as they are written.
        lines += parts(line) if directives(line) & known else [line]
    memory = re.search(r"select=(?:1:)?(?:[^\d\s,+][^\s,+:]*:)*mem=(\w+)", site.resource_spec or "")
    account = site.account or environment.get("PBS_ACCOUNT")
    site = replace(site, memory=(scheduler_bytes(memory[1]) if memory else None) or site.memory, account=account)
    for field, option in _FIELDS.items():
        if found := [line for line in lines if option in directives(line)]:
            value: Any = " ".join(shlex.split(found[-1])[1:]).removeprefix("walltime=")
            lines = [line for line in lines if line not in found]
            # What the site skips are the lines of the other settings.
            skip = tuple(entry for entry in site.skip if option not in skipped([entry]))
            site = replace(site, **{field: value}, skip=skip)
    return replace(site, extra=tuple(lines))


def left_out(site: Site) -> list[str]:
    """Return in sentences which directives of the site, as of `by_directives`, a job does not have, and why."""
    where = f"of jobqueue.{site.section}"
    reasons = {line: _why_left_out(line) for line in site.extra}
    chunk, plus, others = _chunk(site).partition("+")
    odd = [part for part in chunk.split(":")[1:] if "=" not in part] + ([f"+{others}"] if plus else [])
    return [
        *(f"not used: {line} {where}.job-extra-directives, because {why}" for line, why in reasons.items() if why),
        *(f"not used: {part} {where}.resource-spec, because all chunks of a job are alike, with NAME=VALUE"
          for part in odd),
    ]  # fmt: skip


def _why_left_out(line: str) -> str:
    """Return why a job does not have a directive of the site; empty if the job has the directive."""
    found = directives(line) & OURS
    return f"the {'options of the start set' if found & GEOMETRY else 'workbench sets'} {min(found)}" if found else ""


def _on_one_node(resources: Resources, flavor: Flavor) -> Resources:
    # In the emulation a chunk is a complete node, so the default must be one node.
    has_geometry = flavor is Flavor.PRO or resources.nodes is not None or resources.ranks_per_node is not None
    return resources if has_geometry else replace(resources, nodes=1)


def _without_queue(site: Site, resources: Resources) -> Site:
    # A reservation of PBS is a queue.
    return site if resources.reservation is None else replace(site, queue=None)


def _check_extra(line: str) -> None:
    if not line.startswith("-") or "\n" in line:
        allowed = "the text after #PBS on one line, e.g. --extra '-m n'"
        raise InvalidRequest(option="extra", given=line, allowed=allowed)
    options = directives(line)
    for field, option in _FIELDS.items():
        if option in options:
            raise InvalidRequest(
                f"--extra {line!r} is not valid: use --{field} instead of {option}.", option="extra", given=line
            )
    if reserved := sorted(options & (OURS | _BREAKING)):
        raise InvalidRequest(
            f"--extra {line!r}: {reserved[0]} is not valid here, because the workbench sets nodes, ranks, threads, "
            "memory, name and output of the job from its other options.",
            option="extra",
            given=line,
            hint="Omit this directive.",
        )


def _check_reservation(resources: Resources, flavor: Flavor) -> None:
    if resources.reservation is None:
        return
    if flavor is not Flavor.PRO:
        raise InvalidRequest(
            f"--reservation {resources.reservation!r} is not possible: {flavor.value} has no reservations.",
            option="reservation",
            given=resources.reservation,
            hint="Omit the option.",
        )
    if not _RESERVATION.fullmatch(resources.reservation):
        allowed = "the name of a reservation of PBS, in the form R123. pbs_rstat lists the reservations"
        raise InvalidRequest(option="reservation", given=resources.reservation, allowed=allowed)
    if resources.queue is not None:
        raise InvalidRequest(
            f"--reservation {resources.reservation} with --queue {resources.queue} is not valid: a reservation of PBS "
            "is a queue.",
            option="reservation",
            given=resources.reservation,
            hint="Pass only one of these options.",
        )


def _check_constraint(constraint: str | None, flavor: Flavor) -> None:
    if constraint is None:
        return
    pattern, example = (_CHUNK_RESOURCES, "model=milan") if flavor is Flavor.PRO else (_WORD, "bigmem")
    names = {f"-l {part.partition('=')[0]}" for part in constraint.split(":")}
    if not pattern.fullmatch(constraint) or names & GEOMETRY:
        allowed = f"a property of nodes, in {flavor.value} for example {example}"
        hint = "Nodes, ranks, threads, memory and GPUs have separate options."
        raise InvalidRequest(option="constraint", given=constraint, allowed=allowed, hint=hint)


def _site_constraint(site: Site) -> str | None:
    found = [part for part in _chunk(site).partition("+")[0].split(":") if "=" in part]
    return ":".join(part for part in found if f"-l {part.partition('=')[0]}" not in GEOMETRY) or None


def _chunk(site: Site) -> str:
    match = re.search(r"select=([^\s,]*)", site.resource_spec or "")
    return match[1] if match else ""

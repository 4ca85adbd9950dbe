"""The script of a PBS job, with directives that the PBS which answers understands; text apart from action."""

from __future__ import annotations

import enum
import re
import shlex
from dataclasses import replace
from itertools import pairwise

from workbench.errors import InvalidRequest
from workbench.launch.interface import JobSpec
from workbench.launch.jobqueue import Site, header
from workbench.launch.pbs_parse import CODE_NO_COMMAND, CODE_NO_OUTPUT
from workbench.launch.walltime import pbs_clock

# On the command line too: SLURM's emulation does not read them in the script.
SUBMIT_OPTIONS = ("-j", "oe", "-o", "/dev/null", "-r", "n")
# What directives of a site never change.
GEOMETRY = frozenset(
    f"-l {name}"
    for name in ("select", "nodes", "nodect", "ncpus", "mpiprocs", "ompthreads", "mem", "pmem", "procs", "ngpus")
)
OURS = GEOMETRY | {"-N", "-j", "-o", "-e", "-r", "-S"}
_NAME = re.compile(r"[^A-Za-z0-9_.+-]")


class Flavour(enum.Enum):
    """The PBS that answers."""

    PRO = "PBS"
    """OpenPBS and PBS Pro."""
    TORQUE = "Torque"
    EMULATION = "SLURM's emulation of PBS"


def directives(text: str) -> set[str]:
    """Return what a directive sets, each as its option, with the name of what it sets behind ``-l`` and ``-W``.

    Examples
    --------
    >>> sorted(directives("-l select=2:ncpus=4,place=scatter -N name"))
    ['-N', '-l place', '-l select']
    """
    try:
        words = shlex.split(text, comments=True)
    except ValueError as error:
        raise InvalidRequest(f"the directive {text!r} cannot be read: {error}.") from error
    found = set()
    for word, value in pairwise([*words, ""]):
        if not re.match(r"-[A-Za-z]", word):
            continue
        option, given = word[:2], word[2:].lstrip("=") or value
        named = {f"{option} {part.partition('=')[0].strip()}" for part in given.split(",") if part.strip()}
        found |= (named or {option}) if option in ("-l", "-W") else {option}
    return found


def job_name(name: str, identity: str, flavour: Flavour) -> str:
    """Return the name of a job: as near to `name` as PBS takes it, and its identity, by which it can be found.

    Examples
    --------
    >>> job_name("1 long/name", "0123456789:job", Flavour.PRO)
    'w1_long_name-01234567'
    >>> job_name("training", "0123456789:world-1-2", Flavour.TORQUE)
    'tr-01234567-1-2'
    """
    cluster, _, stem = identity.partition(":")
    mark = f"-{cluster[:8]}{stem.removeprefix('job').removeprefix('world')}" if identity else ""
    legal = _NAME.sub("_", name)
    legal = legal if legal[:1].isalpha() else f"w{legal}"
    return legal[: (15 if flavour is Flavour.TORQUE else 230) - len(mark)] + mark


def skipped(site: Site) -> set[str]:
    """Return what a site's settings leave out of every job, as of `directives`: never geometry."""
    entries = [entry.removeprefix("#PBS").strip() for entry in site.skip]
    # dask-jobqueue looks for the text anywhere: `walltime` is enough for it.
    named = [entry if entry.startswith("-") else f"-l {entry}" for entry in entries]
    return set().union(*map(directives, named)) - GEOMETRY


def requests(spec: JobSpec, flavour: Flavour, node_memory: int | None) -> list[str]:
    """Return what the job asks for in nodes, ranks, threads, memory and GPUs, each as it stands behind ``-l``.

    Parameters
    ----------
    node_memory
        Bytes that a node's share asks for where the job's `spec` says nothing; None: nothing.
    """
    asked = spec.resources
    shares = _shares(spec.ranks, asked.nodes, asked.ranks_per_node)
    if flavour is Flavour.TORQUE:
        parts = [f"{nodes}:ppn={ranks * spec.threads}{_torque_ends(spec, ranks)}" for nodes, ranks in shares]
        total = spec.memory * spec.ranks if spec.memory else (node_memory or 0) * sum(nodes for nodes, _ in shares)
        return [f"nodes={'+'.join(parts)}", *([f"mem={_megabytes(total)}"] if total else [])]
    if flavour is Flavour.EMULATION:
        # It reads one kind of chunk alone.
        shares = [(sum(nodes for nodes, _ in shares), max(ranks for _, ranks in shares))]
    chunks = []
    for chunk, ranks in shares:
        parts = [str(chunk), f"ncpus={ranks * spec.threads}", f"mpiprocs={ranks}", f"ompthreads={spec.threads}"]
        if memory := spec.memory * ranks if spec.memory else node_memory if asked.nodes else None:
            parts.append(f"mem={_megabytes(memory)}")
        if asked.gpus_per_rank:
            parts.append(f"ngpus={asked.gpus_per_rank * ranks}")
        if asked.constraint and flavour is Flavour.PRO:
            parts.append(asked.constraint)
        chunks.append(":".join(parts))
    lines = [f"select={'+'.join(chunks)}"]
    if flavour is Flavour.EMULATION:
        return [*lines, *([f"proc={asked.constraint}"] if asked.constraint else [])]
    placed = any("-l place" in directives(line) for line in asked.extra)
    return [*lines, *(["place=scatter"] if asked.nodes and not placed else [])]


def script_text(spec: JobSpec, site: Site, flavour: Flavour) -> str:
    """Return the script that becomes the head on the first node of its job.

    Notes
    -----
    Of what is said in every job, that which the site's settings tell to skip is left out.

    Raises
    ------
    InvalidRequest
        If a value has more than one line.
    """
    asked = spec.resources
    for value in (spec.name, asked.queue, asked.account, asked.constraint, *asked.extra, spec.log, spec.directory):
        if "\n" in str(value):
            raise InvalidRequest(f"{str(value)!r} has more than one line; a name or a path for PBS has one.")
    always = (f"-N {job_name(spec.name, spec.identity, flavour)}", "-S /bin/bash", "-j oe", "-o /dev/null", "-r n")
    lines = [f"#PBS {line}" for line in always if not directives(line) & skipped(site)]
    # An advance reservation of PBS is a queue.
    queue = asked.reservation.partition(".")[0] if asked.reservation else asked.queue
    walltime = None if asked.walltime is None else pbs_clock(asked.walltime)
    lines += header("pbs", replace(site, queue=queue, account=asked.account, walltime=walltime, extra=asked.extra))
    log, folder, program = (shlex.quote(str(text)) for text in (spec.log, spec.directory, spec.command[0]))
    missing = f"workbench: {spec.command[0]} or the folder {spec.directory} does not exist on"
    text = [
        site.shebang,
        *lines[:1],
        *(f"#PBS -l {request}" for request in requests(spec, flavour, site.memory)),
        *lines[1:],
        "umask 077",
        # Its output is there while it runs, wherever the scheduler would keep it until the end.
        f"(: >>{log}) 2>/dev/null || exit {CODE_NO_OUTPUT}",
        f"exec >>{log} 2>&1 </dev/null",
        *site.prologue,
        f"if ! [ -x {program} ] || ! cd {folder}; then",
        f"    printf '%s %s\\n' {shlex.quote(missing)} \"$(hostname): its file system is not shared with this node\"",
        f"    exit {CODE_NO_COMMAND}",
        "fi",
        *(f"export {name}={shlex.quote(value)}" for name, value in spec.environment),
        f"exec {shlex.join(spec.command)}",
    ]
    return "\n".join([*text, ""])


def _shares(ranks: int, nodes: int | None, per_node: int | None) -> list[tuple[int, int]]:
    """Return numbers of nodes with the ranks of each; without nodes a rank alone is the share."""
    if nodes is None:
        return [(ranks, 1)]
    most = per_node or -(-ranks // nodes)
    full, rest = divmod(ranks, most)
    if full + bool(rest) < nodes:
        # Filled one after the other, the last nodes would stay empty.
        fewest, more = divmod(ranks, nodes)
        return [(count, size) for count, size in ((more, fewest + 1), (nodes - more, fewest)) if count]
    return [(count, size) for count, size in ((full, most), (1, rest)) if count and size]


def _torque_ends(spec: JobSpec, ranks: int) -> str:
    gpus = f":gpus={spec.resources.gpus_per_rank * ranks}" if spec.resources.gpus_per_rank else ""
    return gpus + (f":{spec.resources.constraint}" if spec.resources.constraint else "")


def _megabytes(number: int) -> str:
    # PBS counts 2**20 bytes a megabyte.
    return f"{-(-number // 2**20)}mb"

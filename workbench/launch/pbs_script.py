"""The script of a PBS job, with the directives of each flavor; pure functions."""

from __future__ import annotations

import enum
import itertools
import re
import shlex
from collections.abc import Iterable
from dataclasses import replace

from workbench.errors import InvalidRequest
from workbench.launch.interface import JobSpec
from workbench.launch.jobqueue import Site, header
from workbench.launch.multinode import requested_counts
from workbench.launch.pbs_parse import CODE_NO_COMMAND, CODE_NO_OUTPUT
from workbench.launch.script import after_prologue, is_csh
from workbench.launch.walltime import pbs_clock

# Resources that directives of a site never change.
GEOMETRY = frozenset(
    f"-l {name}"
    for name in ("select", "nodes", "nodect", "ncpus", "mpiprocs", "ompthreads", "mem", "pmem", "procs", "ngpus")
)
OURS = GEOMETRY | {"-N", "-j", "-o", "-e", "-r", "-S"}
_NAME = re.compile(r"[^A-Za-z0-9_.+-]")


class Flavor(enum.Enum):
    """Flavor of a PBS."""

    PRO = "PBS"
    """OpenPBS and PBS Pro."""
    TORQUE = "Torque"
    EMULATION = "Slurm's emulation of PBS"


def output_directives(flavor: Flavor) -> tuple[str, ...]:
    """Return the directives by which PBS keeps no output and starts the job once."""
    # Without a host OpenPBS copies the empty output to the host of qsub: where scp fails, each job ends 95 s later.
    output = "localhost:/dev/null" if flavor is Flavor.PRO else "/dev/null"
    return "-j oe", f"-o {output}", "-r n"


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


def job_name(name: str, identity: str, flavor: Flavor) -> str:
    """Return the name of a job: `name` with characters that PBS accepts, and the identity of the job.

    Examples
    --------
    >>> job_name("1 long/name", "0123456789:job", Flavor.PRO)
    'w1_long_name-01234567'
    >>> job_name("training", "0123456789:world-1-2", Flavor.TORQUE)
    'tr-01234567-1-2'
    >>> job_name("training", "0123456789:world-12-10", Flavor.TORQUE)
    't-0123456-12-10'
    """
    longest = 15 if flavor is Flavor.TORQUE else 230
    cluster, _, stem = identity.partition(":")
    place = stem.removeprefix("job").removeprefix("world")
    # One letter of the name remains at least: the first character has to be one.
    mark = f"-{cluster[: min(8, longest - 2 - len(place))]}{place}" if identity else ""
    legal = _NAME.sub("_", name)
    legal = legal if legal[:1].isalpha() else f"w{legal}"
    return legal[: longest - len(mark)] + mark


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
    if flavor is Flavor.TORQUE:
        parts = [f"{nodes}:ppn={ranks * spec.threads}{_torque_ends(spec, ranks)}" for nodes, ranks in shares]
        total = spec.memory * spec.ranks if spec.memory else (node_memory or 0) * sum(nodes for nodes, _ in shares)
        return [f"nodes={'+'.join(parts)}", *([f"mem={_megabytes(total)}"] if total else [])]
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
    always = (f"-N {job_name(spec.name, spec.identity, flavor)}", "-S /bin/bash", *output_directives(flavor))
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


def _torque_ends(spec: JobSpec, ranks: int) -> str:
    gpus = f":gpus={spec.resources.gpus_per_rank * ranks}" if spec.resources.gpus_per_rank else ""
    return gpus + (f":{spec.resources.constraint}" if spec.resources.constraint else "")


def _megabytes(number: int) -> str:
    # A megabyte of PBS has 2**20 bytes.
    return f"{-(-number // 2**20)}mb"

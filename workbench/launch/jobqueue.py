"""The settings of a site or user in ``jobqueue.yaml``: dask-jobqueue's configuration, read once and checked.

Only this module imports dask-jobqueue, inside its functions.
"""

from __future__ import annotations

import math
import re
import signal
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from types import FrameType
from typing import Any

from workbench import config
from workbench.errors import InvalidRequest, closest
from workbench.launch.options import Resources
from workbench.launch.walltime import site_walltime, walltime
from workbench.text import count

# dask-jobqueue's own sections, one per scheduler; all others are presets.
_SCHEDULERS = ("htcondor", "local", "lsf", "moab", "oar", "pbs", "sge", "slurm")
# Keys of dask-jobqueue that have no meaning here, with the reason.
_UNUSED = {
    **dict.fromkeys(("cores", "processes", "job-cpu"), "nodes, ranks and threads are those of the cluster"),
    **dict.fromkeys(("worker-command", "worker-extra-args", "extra", "death-timeout", "scheduler-options"),
                    "the workers are ranks"),
    **dict.fromkeys(("log-directory", "shared-temp-directory"), "logs and certificates have their own folders"),
    "name": "a job has the name of the cluster",
    "python": "the ranks run the Python of this process",
}  # fmt: skip
# Prefix of the temporary section from which one thread makes a header.
_SCRATCH = "workbench-header-"


@dataclass(frozen=True)
class Site:
    """Settings of one scheduler's jobs; None: not set."""

    section: str
    """The section of ``jobqueue.yaml``: the scheduler's name, or that of a preset."""
    queue: str | None
    """Queue or partition."""
    account: str | None
    """Account or project."""
    walltime: str | None
    """Walltime as written in the section."""
    memory: int | None
    """Memory of a node in bytes."""
    interface: str | None
    """Network interface between nodes."""
    local_directory: str | None
    """Folder on each node for spilled data."""
    shebang: str
    """First line of scripts."""
    prologue: tuple[str, ...]
    """Lines of scripts before the command."""
    extra: tuple[str, ...]
    """Directives, without the prefix ``#SBATCH`` or ``#PBS``."""
    skip: tuple[str, ...]
    """Directives to omit, as written in the section."""
    resource_spec: str | None
    """PBS: value of ``-l``."""


def site(scheduler: str, preset: str | None = None) -> Site:
    """Return the settings for `scheduler`; those of `preset` have priority over the scheduler's own.

    Parameters
    ----------
    scheduler
        ``slurm`` or ``pbs``.
    preset
        Name of a section of ``jobqueue.yaml``; None: the scheduler's own. The scheduler's own section gives the keys
        that the preset does not have; ``null`` counts as set.

    Raises
    ------
    InvalidRequest
        If the preset does not exist or is another scheduler's section, or if a value has the wrong type.
    """
    return _site(scheduler, _reader(scheduler, preset))


def _reader(scheduler: str, preset: str | None) -> _Reader:
    sections = _sections()
    name = scheduler
    if preset is not None and preset != scheduler:
        known = _presets(sections)
        if preset not in known:
            raise InvalidRequest(
                option="preset",
                given=preset,
                allowed=known,
                hint="Presets are the sections of jobqueue in ~/.config/dask/jobqueue.yaml that are not named for a "
                "scheduler.",
            )
        name = preset
    layers = {key: dict(sections[key]) for key in (name, scheduler) if isinstance(sections.get(key), Mapping)}
    return _Reader(name, layers)


def _site(scheduler: str, read: _Reader) -> Site:
    return Site(
        section=read.name,
        queue=read.text("queue"),
        account=read.text("account", "project"),
        walltime=read.text("walltime"),
        # A bare number is MiB in Slurm, and bytes in PBS.
        memory=read.size("job-mem", "memory", unit=2**20 if scheduler == "slurm" else 1),
        interface=read.text("interface"),
        local_directory=read.text("local-directory"),
        shebang=read.text("shebang") or "#!/usr/bin/env bash",
        prologue=read.lines("job-script-prologue", "env-extra"),
        extra=read.lines("job-extra-directives", "job-extra", single=True),
        skip=read.lines("job-directives-skip", "header-skip", single=True),
        resource_spec=read.text("resource-spec") if scheduler == "pbs" else None,
    )


def unread(scheduler: str, preset: str | None = None) -> list[str]:
    """Return in sentences which settings for `scheduler` have no effect, and why; parameters and errors as `site`."""
    read, defaults = _reader(scheduler, preset), _defaults()
    _site(scheduler, read)
    sentences = [
        f"jobqueue.{key} is not read: settings belong to a section of jobqueue, for example jobqueue.{scheduler}"
        for key, value in _sections().items()
        if value is not None and not isinstance(value, Mapping)
    ]
    known = {*read.asked, *_UNUSED, *defaults[scheduler]}
    unused: dict[str, list[str]] = {}
    for section, keys in read.layers.items():
        for key in sorted(name.replace("_", "-") for name in keys):
            value = keys.get(key, keys.get(key.replace("-", "_")))
            if key in read.asked or _is_empty(value) or value == defaults[scheduler].get(key):
                continue
            if key in _UNUSED:
                unused.setdefault(f"of jobqueue.{section}, because {_UNUSED[key]}", []).append(key)
            else:
                close = closest(key, known)
                sentences.append(
                    f"jobqueue.{section}.{key} is not read" + (f": did you mean {close}?" if close else "")
                )
    sentences += [f"not used: {', '.join(keys)} {reason}" for reason, keys in unused.items()]
    # With presets the section of the scheduler is often not necessary.
    if all(keys == defaults[scheduler] for keys in read.layers.values()) and not presets():
        files = [
            str(path) for path, content in _files() if content and ("jobqueue" in content or path.stem == "jobqueue")
        ]
        if files:
            sentences.append(f"no settings for {scheduler} (jobqueue.{scheduler}) are in {', '.join(files)}")
    return sentences


def presets() -> list[str]:
    """Return the names of all presets, sorted."""
    return _presets(_sections())


def fill(resources: Resources, site: Site, *, ranks: int, minute: int) -> Resources:
    """Return the requested resources, completed by the site's settings and with a complete geometry.

    Parameters
    ----------
    resources
        The user's request. A walltime may be text for `walltime`, or seconds.
    site
        The source of queue, account and walltime.
    ranks
        Size of the world.
    minute
        Seconds per unit of a bare number in the site's walltime: 60 in Slurm, 1 in PBS.

    Raises
    ------
    InvalidRequest
        If the nodes cannot hold all ranks, or if there are more nodes than ranks.
    """
    nodes, per_node = resources.nodes, resources.ranks_per_node
    if nodes is None and per_node is not None:
        nodes = math.ceil(ranks / per_node)
    elif nodes is not None and per_node is None:
        per_node = math.ceil(ranks / nodes)
    if nodes is not None and per_node is not None and not (nodes <= ranks <= nodes * per_node):
        raise InvalidRequest(
            f"--nodes {nodes} with --ranks-per-node {per_node} is not valid for {count(ranks, 'rank')}: each node "
            f"needs at least one rank, and the nodes must hold all ranks. {count(ranks, 'rank')} with {per_node} per "
            f"node need {count(math.ceil(ranks / per_node), 'node')}.",
            option="nodes",
            given=nodes,
        )
    limit: Any = resources.walltime
    if limit is None and site.walltime is not None:
        try:
            limit = site_walltime(site.walltime, minute)
        except InvalidRequest as error:
            raise invalid(site.section, "walltime", site.walltime, error.allowed) from None
    return replace(
        resources,
        nodes=nodes,
        ranks_per_node=per_node,
        walltime=walltime(limit) if isinstance(limit, str) else limit,
        queue=resources.queue or site.queue,
        account=resources.account or site.account,
    )


def header(scheduler: str, site: Site) -> list[str]:
    """Return the directives that dask-jobqueue writes for `site`, without those for the geometry.

    Parameters
    ----------
    scheduler
        ``slurm`` or ``pbs``.
    site
        The source of queue, account, walltime (as the scheduler reads it) and extra directives.

    Returns
    -------
    lines : list of str
        Complete lines: queue, account and walltime if they are set, then the extra directives.
    """
    import dask

    job = {"slurm": _jobqueue().slurm.SLURMJob, "pbs": _jobqueue().pbs.PBSJob}[scheduler]
    # The constructor reads all of these keys; `_GEOMETRY` removes the lines that this module does not want.
    settings = {
        **dict.fromkeys(_defaults()[scheduler]),
        "cores": 1, "processes": 1, "memory": "1 GiB", "worker-command": "-", "worker-extra-args": [],
        "resource-spec": "-", "queue": site.queue, "account": site.account, "walltime": site.walltime,
        "job-script-prologue": [], "job-directives-skip": [], "job-extra-directives": list(site.extra),
    }  # fmt: skip
    # Named for this thread, since all threads share Dask's settings.
    section = f"{_SCRATCH}{threading.get_ident()}"
    with dask.config.set({f"jobqueue.{section}": settings}):
        text: str = job(config_name=section).job_header
    lines = text.splitlines()
    first_extra = len(lines) - len(site.extra)
    # Without an account dask-jobqueue takes that of PBS_ACCOUNT.
    unwanted = "#PBS -A " if site.account is None else "\n"
    kept = [line for line in lines[:first_extra] if line not in _GEOMETRY and not line.startswith(unwanted)]
    return kept + lines[first_extra:]


# dask-jobqueue's lines for one node with one core and 1 GiB, and for the resource specification "-".
_GEOMETRY = ("#SBATCH -n 1", "#SBATCH --cpus-per-task=1", "#SBATCH --mem=1G", "#PBS -l -")


class _Reader:
    """Reads a key, which may have several names, from the first section that has one of the names."""

    def __init__(self, name: str, layers: Mapping[str, dict[str, Any]]) -> None:
        self.name = name
        self.layers = layers
        self.asked: set[str] = set()

    def text(self, *keys: str) -> str | None:
        key, value = self._find(keys)
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, str | int | float) or "\n" in str(value):
            raise self._invalid(key, value, "one line of text")
        # YAML reads a walltime of 01:30:00 without quotes as a number of seconds, in base 60.
        if key == "walltime" and isinstance(value, int) and value:
            return f"{value // 3600:02d}:{value // 60 % 60:02d}:{value % 60:02d}"
        return str(value)

    def lines(self, *keys: str, single: bool = False) -> tuple[str, ...]:
        key, value = self._find(keys)
        if value is None:
            return ()
        # dask-jobqueue reads the keys of a mapping: {-C fast} in YAML.
        if isinstance(value, set) or (isinstance(value, Mapping) and set(value.values()) <= {None}):
            value = sorted(value, key=str) if isinstance(value, set) else list(value)
        if not isinstance(value, list | tuple) or not all(isinstance(line, str) for line in value):
            raise self._invalid(key, value, "a list of texts")
        if single and any("\n" in line.strip() for line in value):
            raise self._invalid(key, value, "a list of texts of one line each")
        return tuple(line.strip() if single else line for line in value if line.strip())

    def size(self, *keys: str, unit: int) -> int | None:
        from dask.utils import parse_bytes

        key, value = self._find(keys)
        if value is None:
            return None
        if key == "job-mem" and re.fullmatch(r"\s*\d{1,18}\s*", str(value)):
            return int(value) * unit
        # job-mem goes to the scheduler, memory is Dask's.
        size = scheduler_bytes(str(value)) if key == "job-mem" else None
        number = size or config.parse_positive(value, parse_bytes)
        if number is None:
            raise self._invalid(key, value, "a size, e.g. 24 GiB")
        return int(number)

    def _find(self, keys: Sequence[str]) -> tuple[str, Any]:
        import dask

        self.asked.update(keys)
        for layer in self.layers.values():
            # In Dask's settings a-b and a_b are the same key.
            values = {key: layer[name] for key in keys if (name := dask.config.canonical_name(key, layer)) in layer}
            if values:
                return next(((key, value) for key, value in values.items() if not _is_empty(value)), ("", None))
        return "", None

    def _invalid(self, key: str, value: Any, allowed: str) -> InvalidRequest:
        return invalid(self.name, key, value, allowed)


def scheduler_bytes(text: str) -> int | None:
    """Return the bytes of a size with a unit as schedulers read it, with G as 2**30 bytes; None: another form."""
    match = re.fullmatch(r"\s*(\d{1,18})\s*([KMGT])B?\s*", text, re.IGNORECASE)
    return int(match[1]) << 10 * ("KMGT".index(match[2].upper()) + 1) if match else None


def invalid(section: str, key: str, value: Any, allowed: str | Sequence[str]) -> InvalidRequest:
    """Return the error for a setting of a site, which names the file of the setting."""
    files = [path for path, content in _files() if _has(content, section, key)]
    where = f"The setting is in {files[-1]}." if files else ()
    return InvalidRequest(option=f"jobqueue.{section}.{key}", given=value, allowed=allowed, hint=where)


def breaking(section: str, line: str, why: str) -> InvalidRequest:
    """Return the error for a directive of a site that would change the kind of job."""
    option = f"jobqueue.{section}.job-extra-directives"
    return InvalidRequest(
        f"the setting {option} {line!r} is not valid: {why}.", option=option, given=line, hint="Remove this directive."
    )


def _has(content: Mapping[str, Any], *path: str) -> bool:
    """Return whether a file has a setting; in Dask's settings a-b and a_b are the same key."""
    import dask

    below: Any = content
    for key in ("jobqueue", *path):
        if not isinstance(below, Mapping) or (name := dask.config.canonical_name(key, dict(below))) not in below:
            return False
        below = below[name]
    return True


def _files() -> list[tuple[Path, Mapping[str, Any]]]:
    """Return the files of Dask's settings, in increasing priority, with their contents."""
    import dask

    return [(Path(path), content) for path, content in dask.config.collect_yaml(dask.config.paths, return_paths=True)]


def _is_empty(value: Any) -> bool:
    return value is None or (not value and isinstance(value, str | list | tuple | Mapping | set))


def _presets(sections: Mapping[str, Any]) -> list[str]:
    return sorted(
        name
        for name, section in sections.items()
        if isinstance(section, Mapping) and name not in _SCHEDULERS and not name.startswith(_SCRATCH)
    )


def _sections() -> dict[str, Any]:
    """Return a copy of the sections in the settings, completed by the defaults of dask-jobqueue."""
    import dask

    sections = dask.config.get("jobqueue", {})
    if not isinstance(sections, Mapping):
        raise InvalidRequest(option="jobqueue", given=sections, allowed="a section for each scheduler")
    # A copy, since another thread may add its scratch section.
    return dict(dask.config.merge(_defaults(), dict(sections)))


@cache
def _defaults() -> dict[str, Any]:
    # The import adds them to Dask's settings, but the end of an enclosing `with dask.config.set(...)` removes them.
    import yaml

    with open(Path(_jobqueue().__file__).with_name("jobqueue.yaml"), encoding="utf-8") as file:
        defaults: dict[str, Any] = yaml.safe_load(file)["jobqueue"]
    return defaults


def _jobqueue() -> Any:
    with _signals_kept():
        import dask_jobqueue
        import dask_jobqueue.pbs
        import dask_jobqueue.slurm
    return dask_jobqueue


_Handler = Callable[[int, FrameType | None], Any] | int | signal.Handlers | None


@contextmanager
def _signals_kept() -> Iterator[None]:
    """Ignore the signal handlers that this thread sets.

    The import of dask-jobqueue sets a handler with which Ctrl-C ends the process. Outside of the main thread, where
    no handler can be set, the import fails.
    """
    original, thread = signal.signal, threading.get_ident()

    def keep(signalnum: int, handler: _Handler) -> _Handler:
        return signal.getsignal(signalnum) if threading.get_ident() == thread else original(signalnum, handler)

    signal.signal = keep
    try:
        yield
    finally:
        signal.signal = original

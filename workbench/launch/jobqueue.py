"""What a centre's (or user's) ``jobqueue.yaml`` says of a scheduler: dask-jobqueue's configuration, read once, checked.

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
from workbench.errors import InvalidRequest
from workbench.launch.options import Resources
from workbench.launch.walltime import site_walltime, walltime
from workbench.text import count

# Sections of dask-jobqueue's own, each for one scheduler: all others are presets.
_SCHEDULERS = ("htcondor", "local", "lsf", "moab", "oar", "pbs", "sge", "slurm")
# Section that a header is made of, for a moment, in one thread.
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
    """Walltime, as it is written there."""
    memory: int | None
    """Memory of a node in bytes."""
    interface: str | None
    """Network interface that nodes talk by."""
    local_directory: str | None
    """Folder on each node for what is spilled."""
    shebang: str
    """First line of scripts."""
    prologue: tuple[str, ...]
    """Lines of scripts that run ahead of the command."""
    extra: tuple[str, ...]
    """Directives, without the prefix ``#SBATCH`` or ``#PBS``."""
    skip: tuple[str, ...]
    """Directives to leave out, as they are written there."""
    resource_spec: str | None
    """PBS: what ``-l`` asks for."""


def site(scheduler: str, preset: str | None = None) -> Site:
    """Return the settings for `scheduler`, those of `preset` ahead of the scheduler's own.

    Parameters
    ----------
    scheduler
        ``slurm`` or ``pbs``.
    preset
        Name of a section of ``jobqueue.yaml``; None: the scheduler's own. Keys that it lacks are taken from the
        scheduler's own section; ``null`` counts as set.

    Raises
    ------
    InvalidRequest
        If there is no such preset, it is another scheduler's section, or a value is of the wrong kind.
    """
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
    layers = [dict(sections[one]) for one in dict.fromkeys((name, scheduler)) if isinstance(sections.get(one), Mapping)]
    read = _Reader(name, layers)
    return Site(
        section=name,
        queue=read.text("queue"),
        account=read.text("account", "project"),
        walltime=read.text("walltime"),
        memory=read.size("job-mem", "memory"),
        interface=read.text("interface"),
        local_directory=read.text("local-directory"),
        shebang=read.text("shebang") or "#!/usr/bin/env bash",
        prologue=read.lines("job-script-prologue", "env-extra"),
        extra=read.lines("job-extra-directives", "job-extra", single=True),
        skip=read.lines("job-directives-skip", "header-skip", single=True),
        resource_spec=read.text("resource-spec"),
    )


def presets() -> list[str]:
    """Return the names that `site` takes for a preset, sorted."""
    return _presets(_sections())


def fill(resources: Resources, site: Site, *, ranks: int, minute: int) -> Resources:
    """Return what a job asks for, with the site's settings where nothing was given, and a geometry that is whole.

    Parameters
    ----------
    resources
        What was given. A walltime may still be text: `walltime` reads it, a number is seconds.
    site
        Gives queue, account and walltime.
    ranks
        Size of the world.
    minute
        Seconds that a bare number of the site's walltime counts: 60 in SLURM, 1 in PBS.

    Raises
    ------
    InvalidRequest
        If the nodes do not hold so many ranks, or there are more nodes than ranks.
    """
    nodes, each = resources.nodes, resources.ranks_per_node
    if nodes is None and each is not None:
        nodes = math.ceil(ranks / each)
    elif nodes is not None and each is None:
        each = math.ceil(ranks / nodes)
    if nodes is not None and each is not None and not (nodes <= ranks <= nodes * each):
        raise InvalidRequest(
            f"--nodes {nodes} with --ranks-per-node {each} for {count(ranks, 'rank')}: every node has to get a rank, "
            f"and they have to hold them all. {count(ranks, 'rank')} with {each} on a node take "
            f"{count(math.ceil(ranks / each), 'node')}.",
            option="nodes",
            given=nodes,
        )
    limit: Any = resources.walltime
    if limit is None and site.walltime is not None:
        limit = site_walltime(site.walltime, minute)
    return replace(
        resources,
        nodes=nodes,
        ranks_per_node=each,
        walltime=walltime(limit) if isinstance(limit, str) else limit,
        queue=resources.queue or site.queue,
        account=resources.account or site.account,
    )


def header(scheduler: str, site: Site) -> list[str]:
    """Return the directives that dask-jobqueue writes for `site`, without those of its geometry.

    Parameters
    ----------
    scheduler
        ``slurm`` or ``pbs``.
    site
        Queue, account, walltime (as the scheduler reads it) and extra directives are taken of it.

    Returns
    -------
    lines : list of str
        Complete lines: queue, account and walltime as far as they are set, then the extra ones.
    """
    import dask

    job = {"slurm": _jobqueue().slurm.SLURMJob, "pbs": _jobqueue().pbs.PBSJob}[scheduler]
    # Every key that its constructor reads; what a job of ours does not have there is taken out again by `_GEOMETRY`.
    own = {
        **dict.fromkeys(_defaults()[scheduler]),
        "cores": 1, "processes": 1, "memory": "1 GiB", "worker-command": "-", "worker-extra-args": [],
        "resource-spec": "-", "queue": site.queue, "account": site.account, "walltime": site.walltime,
        "job-script-prologue": [], "job-directives-skip": [], "job-extra-directives": list(site.extra),
    }  # fmt: skip
    # Of this thread alone: it is in the settings of all.
    section = f"{_SCRATCH}{threading.get_ident()}"
    with dask.config.set({f"jobqueue.{section}": own}):
        text: str = job(config_name=section).job_header
    lines = text.splitlines()
    ours = len(lines) - len(site.extra)
    return [line for line in lines[:ours] if line not in _GEOMETRY] + lines[ours:]


# What dask-jobqueue writes for one node with one core and 1 GiB, and for the resource specification "-".
_GEOMETRY = ("#SBATCH -n 1", "#SBATCH --cpus-per-task=1", "#SBATCH --mem=1G", "#PBS -l -")


class _Reader:
    """Reads keys of sections, the first section that has one wins, and of its names the first that is set."""

    def __init__(self, name: str, layers: Sequence[dict[str, Any]]) -> None:
        self._name = name
        self._layers = layers

    def text(self, *keys: str) -> str | None:
        key, value = self._find(keys)
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, str | int | float) or "\n" in str(value):
            raise self._wrong(key, value, "one line of text")
        # YAML reads a walltime of 01:30:00 without quotes as a number of seconds, in base 60.
        if key == "walltime" and isinstance(value, int):
            return f"{value // 3600:02d}:{value // 60 % 60:02d}:{value % 60:02d}"
        return str(value)

    def lines(self, *keys: str, single: bool = False) -> tuple[str, ...]:
        key, value = self._find(keys)
        if value is None:
            return ()
        if not isinstance(value, list | tuple) or not all(isinstance(line, str) for line in value):
            raise self._wrong(key, value, "a list of texts")
        if single and any("\n" in line.strip() for line in value):
            raise self._wrong(key, value, "a list of texts of one line each")
        return tuple(line.strip() if single else line for line in value if line.strip())

    def size(self, *keys: str) -> int | None:
        from dask.utils import parse_bytes

        key, value = self._find(keys)
        if value is None:
            return None
        # Schedulers mean 2**30 bytes by the G of job-mem, Dask 10**9 by that of memory.
        binary = key == "job-mem" and re.fullmatch(r"\s*\d+\s*[KMGT]B?\s*", str(value), re.IGNORECASE)
        number = config.parse_positive(
            re.sub(r"(?i)B?\s*$", "iB", str(value), count=1) if binary else value, parse_bytes
        )
        if number is None:
            raise self._wrong(key, value, "a size, e.g. 24 GiB")
        return int(number)

    def _find(self, keys: Sequence[str]) -> tuple[str, Any]:
        import dask

        for layer in self._layers:
            # Dask takes a-b and a_b for the same key.
            found = {key: layer[name] for key in keys if (name := dask.config.canonical_name(key, layer)) in layer}
            if found:
                return next(((key, value) for key, value in found.items() if value not in (None, "", [])), ("", None))
        return "", None

    def _wrong(self, key: str, value: Any, allowed: str) -> InvalidRequest:
        return InvalidRequest(option=f"jobqueue.{self._name}.{key}", given=value, allowed=allowed)


def _presets(sections: Mapping[str, Any]) -> list[str]:
    return sorted(
        name
        for name, section in sections.items()
        if isinstance(section, Mapping) and name not in _SCHEDULERS and not name.startswith(_SCRATCH)
    )


def _sections() -> dict[str, Any]:
    """Return the sections of the settings, a copy, above the defaults of dask-jobqueue."""
    import dask

    sections = dask.config.get("jobqueue", {})
    if not isinstance(sections, Mapping):
        raise InvalidRequest(f"the setting jobqueue {sections!r}: allowed is a section for each scheduler.")
    # Another thread may be making a header.
    return dict(dask.config.merge(_defaults(), dict(sections)))


@cache
def _defaults() -> dict[str, Any]:
    # Not those that its import adds to Dask's settings: the end of a `with dask.config.set(...)` around it takes them
    # away again.
    import yaml

    with open(Path(_jobqueue().__file__).with_name("jobqueue.yaml"), encoding="utf-8") as file:
        defaults: dict[str, Any] = yaml.safe_load(file)["jobqueue"]
    return defaults


def _jobqueue() -> Any:
    """Return dask-jobqueue."""
    with _signals_kept():
        import dask_jobqueue
        import dask_jobqueue.pbs
        import dask_jobqueue.slurm
    return dask_jobqueue


_Handler = Callable[[int, FrameType | None], Any] | int | signal.Handlers | None


@contextmanager
def _signals_kept() -> Iterator[None]:
    """Ignore what this thread sets for a signal's handler.

    The import of dask-jobqueue has Ctrl-C end the process, and fails in any thread but the main one, where no
    handler can be set.
    """
    original, thread = signal.signal, threading.get_ident()

    def keep(signalnum: int, handler: _Handler) -> _Handler:
        return signal.getsignal(signalnum) if threading.get_ident() == thread else original(signalnum, handler)

    signal.signal = keep
    try:
        yield
    finally:
        signal.signal = original

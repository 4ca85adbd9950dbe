"""What is known about one cluster, as a value that goes to disk and over the wire."""

from __future__ import annotations

import dataclasses
import functools
import os
import re
import time
import typing
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from workbench import config
from workbench.launch.options import SCHEDULERS, RecordOptions, Resources
from workbench.processes.process_id import ProcessId

SCHEMA = 5
RECORD = "record.json"
"""Name of its file."""
DAMAGED = (ValueError, TypeError, KeyError, RecursionError)
"""What a record that was damaged is read with."""
_ID = re.compile(r"[0-9a-f]{32}")
# Of times, in seconds: of the year 5138. And of other numbers.
_LATEST, _LARGEST = 1e11, 2**63
_TIMES = (float, float | None)
_T = TypeVar("_T")


@dataclass(frozen=True)
class World:
    """One MPI world of a cluster, as its head last saw it."""

    index: int
    """0 for the world that came with the cluster; later ones come by ``scale``."""
    ranks: int
    """Size of its MPI world."""
    state: str = "starting"
    """``queued`` (its own job waits), ``starting``, ``ready``, ``degraded`` (ranks died, the others go on) or
    ``restarting``."""
    up: int = 0
    """Ranks that are workers of the scheduler now."""
    starts: int = 1
    """Times it was started: more than one after a failure or a restart."""
    job: str | None = None
    """Its job, if it has one of its own."""


@dataclass(frozen=True)
class Record(RecordOptions):
    """What is known about one cluster; a value, written whole and replaced whole.

    Notes
    -----
    `mpi` is the MPI that was asked for; once the world runs, the one in use in words.
    """

    name: str
    """The cluster's name, unique for its user."""
    ranks: int
    """Ranks of world 0."""
    memory: int | None = field(default=None, kw_only=True)
    """Memory limit of a rank in bytes; None: an even share of its node."""
    scheduler: str = "local"
    """What started the job: ``local``, ``here``, ``slurm`` or ``pbs``."""
    system: str = ""
    """Which Slurm has the job, of several whose hosts share this folder; empty: the id of the job says it, or an
    earlier version has written the record."""
    resources: Resources = field(default_factory=Resources)
    """What the job of world 0 asks its scheduler for."""
    local_directory: str | None = None
    """Folder of the nodes for what ranks write to disk, where variables stand for their values there; None: Dask's."""
    spread: bool = False
    """Whether other hosts have to reach head and ranks."""
    template: bool = field(default=True, kw_only=True)
    """Whether the ranks of a node are forked from one process that has imported what they need."""
    preload: tuple[str, ...] = field(default=(), kw_only=True)
    """Modules that ranks have imported when they are ready."""
    directory: str = field(default_factory=os.getcwd)
    """Working directory of head and ranks."""
    idle_timeout: float = field(default=3600.0, kw_only=True)
    """Seconds without a client and without tasks after which the head ends the cluster."""
    id: str = field(default_factory=lambda: uuid.uuid4().hex)
    """Identity of this very cluster, whatever cluster had or will have its name."""
    state: str = "submitted"
    """``submitted``, ``starting``, ``ready``, ``degraded``, ``restarting``, ``closing`` or ``failed``."""
    message: str = ""
    """The state in words, for people."""
    failure: dict[str, Any] = field(default_factory=dict, hash=False)
    """Why the cluster has failed: the fields of an error, as of `workbench.errors.WorkbenchError.fields`."""
    address: str | None = None
    """Where the scheduler listens, e.g. ``tls://127.0.0.1:40001``."""
    http: str | None = None
    """Unix socket of the scheduler's HTTP server on the head's host."""
    job: str | None = None
    """The launcher's job id, once the head runs; until then it is in the receipt of the submission."""
    process: ProcessId = field(default_factory=ProcessId.here)
    """The head; before it runs, the process that submitted it."""
    worlds: tuple[World, ...] = ()
    """The MPI worlds, world 0 first."""
    created: float = field(default_factory=time.time)
    """When the cluster was asked for, in seconds since the epoch."""
    deadline: float = 0.0
    """Until when it has to be ready, in seconds since the epoch; while its job waits in a queue, the latest such."""
    ready_within: float = 120.0
    """Seconds that head and ranks have to be ready, from the start of their job."""
    ends: float | None = None
    """When the scheduler ends the job (its walltime), in seconds since the epoch; None: never, or not known yet."""
    schema: int = SCHEMA
    """Version of this format."""

    @property
    def folder(self) -> Path:
        """The cluster's own folder."""
        return clusters_folder() / self.name

    @property
    def logs(self) -> Path:
        """Folder of its log files, kept after its end."""
        return logs_folder() / f"{self.name}-{self.id[:8]}"

    @property
    def total(self) -> int:
        """Ranks of all worlds together."""
        return sum(world.ranks for world in self.worlds) or self.ranks

    @property
    def up(self) -> int:
        """Ranks that are workers of the scheduler now."""
        return sum(world.up for world in self.worlds)

    def alive(self) -> bool | None:
        """Tell whether the cluster still runs: True, False, or None where that cannot be seen from here.

        Notes
        -----
        While it is submitted the head has not spoken yet, so the starter's death proves nothing before
        the deadline.
        """
        alive = self.process.alive()
        if alive is False and self.state == "submitted" and time.time() < self.deadline:
            return None
        return alive

    def replace(self, **changes: Any) -> Record:
        """Return the record with some fields changed."""
        return dataclasses.replace(self, **changes)


def clusters_folder() -> Path:
    """Return the folder of all cluster records of this user."""
    return config.data_folder() / "workbench" / "clusters"


def logs_folder() -> Path:
    """Return the folder of all logs of this user's clusters."""
    return config.data_folder() / "workbench" / "logs"


def from_dict(values: dict[str, Any]) -> Record:
    """Return the record that ``dataclasses.asdict`` made `values` of.

    Raises
    ------
    TypeError, KeyError, ValueError
        If it made them of something else, or a number or a text in them cannot be shown.
    """
    process = typed(ProcessId, values["process"])
    resources = typed(Resources, {**values["resources"], "extra": tuple(values["resources"]["extra"])})
    worlds = tuple(typed(World, world) for world in values["worlds"])
    preload = tuple(values["preload"])
    for word in (*resources.extra, *preload):
        if not isinstance(word, str):
            raise TypeError(f"{word!r} is among the texts")
    made = {"process": process, "resources": resources, "worlds": worlds, "preload": preload}
    record = typed(Record, {**values, **made})
    if record.scheduler not in SCHEDULERS:
        raise TypeError(f"scheduler is {record.scheduler!r}")
    if not _ID.fullmatch(record.id):
        # Folders are named after it, and removed with all that is in them.
        raise TypeError(f"id is {record.id!r}")
    return record


# Evaluating them takes a millisecond, and there may be hundreds of records.
_hints: Callable[[Any], dict[str, Any]] = functools.cache(typing.get_type_hints)


def typed(kind: type[_T], values: dict[str, Any]) -> _T:
    """Return a value of a dataclass, from what was read.

    Raises
    ------
    TypeError, ValueError
        If a field is missing, unknown or of another type, or cannot be shown.
    """
    made = kind(**values)
    for name, hint in _hints(kind).items():
        allowed = typing.get_origin(hint) if typing.get_origin(hint) in (tuple, dict) else hint
        allowed = int | float if hint is float else allowed
        if not isinstance(value := getattr(made, name), allowed):
            raise TypeError(f"{name} is {value!r}")
        if isinstance(value, str):
            value.encode()  # raises ValueError for half a character
        elif isinstance(value, int | float) and not 0 <= value <= (_LATEST if hint in _TIMES else _LARGEST):
            raise ValueError(f"{name} is {value!r}")
    return made

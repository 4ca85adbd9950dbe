"""The record of a cluster, a value that is written to disk and sent to clients."""

from __future__ import annotations

import dataclasses
import functools
import json
import os
import re
import time
import typing
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from workbench.errors import from_fields
from workbench.host.processes import ProcessId
from workbench.launch.options import SCHEDULERS, RecordOptions, Resources

SCHEMA = 9
DAMAGED = (ValueError, TypeError, KeyError, RecursionError)
"""Errors of the parser for a damaged record."""
_ID = re.compile(r"[0-9a-f]{32}")
# The latest time, in seconds and in the year 5138, and the largest of the other numbers.
_LATEST, _LARGEST = 1e11, 2**63
_TIMES = (float, float | None)
_Value = TypeVar("_Value")


@dataclass(frozen=True)
class World:
    """The MPI world of a cluster, in its last state known to the head."""

    index: int
    """0 for the first world, and one more for each that has replaced it (``scale``)."""
    ranks: int
    """Number of ranks."""
    state: str = "starting"
    """``queued`` (its separate job waits), ``starting``, ``ready``, ``degraded`` (ranks were lost, the others
    continue) or ``restarting``."""
    up: int = 0
    """Ranks that are registered with the scheduler now."""
    starts: int = 1
    """Number of starts: more than one after a failure or a restart."""
    job: str | None = None
    """Id of the job, if the world has a separate one."""
    gpus: str = ""
    """Text about the GPUs of the ranks; empty if there are none."""


@dataclass(frozen=True)
class Record(RecordOptions):
    """The state of one cluster; a value that is always replaced completely.

    `mpi` is the requested MPI until the world runs, and then the description of the MPI in use.
    """

    name: str
    """Name of the cluster, unique for the user."""
    ranks: int
    """Ranks at the start; the first job has room for them."""
    memory: int | None = field(default=None, kw_only=True)
    """Memory limit of a rank in bytes; None: the node memory divided by its ranks."""
    scheduler: str = "local"
    """Launcher of the job: ``local``, ``here``, ``slurm`` or ``pbs``."""
    system: str = ""
    """The Slurm that has the job, if the hosts of several share this folder; empty if the id of the job is enough, or
    for a record of an earlier version."""
    resources: Resources = field(default_factory=Resources)
    """Requested resources of the first job."""
    local_directory: str | None = None
    """Folder on the nodes for spilled data, in which variables are expanded on the node; None: Dask's setting."""
    spread: bool = False
    """Whether head and ranks must be reachable from other hosts."""
    template: bool = True
    """Whether the ranks of a node are forked from one process that has imported their modules."""
    preload: tuple[str, ...] = field(default=(), kw_only=True)
    """Modules that ranks import before they are ready."""
    directory: str = field(default_factory=os.getcwd)
    """Working directory of head and ranks."""
    checkpoint: str | None = field(default=None, kw_only=True)
    """Folder for what is kept, as it was requested; see `kept_in`."""
    every: float = field(default=1800.0, kw_only=True)
    """Seconds between two saves of what is kept."""
    turn: int = field(default=0, kw_only=True)
    """Number of jobs that have held the cluster before this one, or the one that is queued."""
    idle_timeout: float = field(default=3600.0, kw_only=True)
    """Seconds without a client and without tasks after which the head ends the cluster."""
    id: str = field(default_factory=lambda: uuid.uuid4().hex)
    """Id of this cluster, different from other clusters with the same name."""
    state: str = "submitted"
    """``submitted``, ``starting``, ``ready``, ``degraded``, ``restarting``, ``closing`` or ``failed``."""
    message: str = ""
    """The last event, for users."""
    failure: dict[str, Any] = field(default_factory=dict, hash=False)
    """The error that ended the cluster, from `workbench.errors.WorkbenchError.fields`."""
    address: str | None = None
    """Address of the scheduler, e.g. ``tls://127.0.0.1:40001``."""
    http: str | None = None
    """Unix socket of the scheduler's HTTP server on the head's host."""
    job: str | None = None
    """Id of the job after the start of the head. Before, the id is in the receipt of the submission."""
    process: ProcessId = field(default_factory=ProcessId.here)
    """The head, or before its start the process that submitted the job."""
    world: World | None = None
    """The MPI world; None before the start."""
    next: World | None = None
    """The world that a move starts."""
    created: float = field(default_factory=time.time)
    """Time of the request, in seconds since the epoch."""
    deadline: float = 0.0
    """Latest time to be ready, in seconds since the epoch. While the job is queued, it includes the queue timeout."""
    ready_within: float = 120.0
    """Seconds from the start of the job until head and ranks must be ready."""
    ends: float | None = None
    """End of the job's walltime, in seconds since the epoch; None: no end, or not known yet."""
    schema: int = SCHEMA
    """Version of this format."""

    @property
    def total(self) -> int:
        """Number of ranks now."""
        return self.world.ranks if self.world else self.ranks

    @property
    def up(self) -> int:
        """Ranks that are registered with the scheduler now."""
        return self.world.up if self.world else 0

    @property
    def kept_in(self) -> str:
        """Folder for what the cluster keeps."""
        return self.checkpoint or str(Path(self.directory, "workbench-kept", f"{self.name}-{self.id[:8]}"))

    def alive(self) -> bool | None:
        """Return whether the cluster still runs, or None if that is not visible from here.

        In the state ``submitted`` the process is the starter, whose end has no meaning before the deadline.
        """
        alive = self.process.alive()
        if alive is False and self.state == "submitted" and time.time() < self.deadline:
            return None
        return alive

    def in_job(self, turn: int) -> Record | None:
        """Return the record for a start in the job of this number; None if that job must not continue the cluster.

        The next job may find that the job before has ended without a word, and a job may be put back into its queue.
        """
        left = self.resubmit + self.turn - turn
        if turn == self.turn and self.state == "submitted":
            return self
        if left < 0 or abs(turn - self.turn) > 1 or not (self.resubmit or left):
            return None
        if turn < self.turn and self.state != "submitted":
            return None  # put back by hand after its end: a later job has begun
        return self.replace(
            state="submitted", turn=turn, resubmit=left, job=None, address=None, http=None, world=None, next=None,
            ends=None, mpi="auto",
        )  # fmt: skip

    def replace(self, **changes: Any) -> Record:
        """Return the record with some fields changed."""
        return dataclasses.replace(self, **changes)


def parse(content: bytes, name: str) -> Record:
    """Return the record in the content of a file; raises one of the errors in `DAMAGED`."""
    values = json.loads(content)
    if not isinstance(values, dict):
        raise TypeError("the record is not a JSON object")
    if values.get("schema") != SCHEMA:
        raise ValueError(f"the record has schema {values.get('schema')!r}, and this version reads schema {SCHEMA}")
    if values["name"] != name:
        raise ValueError(f"the record names cluster {values['name']!r}")
    return from_dict(values)


def from_dict(values: dict[str, Any]) -> Record:
    """Return the record of values from ``dataclasses.asdict``.

    Raises
    ------
    TypeError, KeyError, ValueError
        If the values are not valid.
    """
    process = typed(ProcessId, values["process"])
    resources = typed(Resources, {**values["resources"], "extra": tuple(values["resources"]["extra"])})
    worlds = {name: values[name] and typed(World, values[name]) for name in ("world", "next")}
    preload = tuple(values["preload"])
    for item in (*resources.extra, *preload):
        if not isinstance(item, str):
            raise TypeError(f"{item!r} is not a text")
    objects = {"process": process, "resources": resources, **worlds, "preload": preload}
    record = typed(Record, {**values, **objects})
    if record.failure:
        from_fields(record.failure)  # raises one of these errors for fields that are damaged
    if record.scheduler not in SCHEDULERS:
        raise TypeError(f"scheduler is {record.scheduler!r}")
    if not _ID.fullmatch(record.id):
        # The names of folders contain the id, and these folders are removed with their content.
        raise TypeError(f"id is {record.id!r}")
    return record


# The evaluation takes a millisecond, and a user may have hundreds of records.
_hints: Callable[[Any], dict[str, Any]] = functools.cache(typing.get_type_hints)


def typed(kind: type[_Value], values: dict[str, Any]) -> _Value:
    """Return a dataclass from parsed values.

    Raises
    ------
    TypeError, ValueError
        If a field is missing, unknown or of another type, or its value is not valid.
    """
    result = kind(**values)
    for name, hint in _hints(kind).items():
        expected = typing.get_origin(hint) if typing.get_origin(hint) in (tuple, dict) else hint
        expected = int | float if hint is float else expected
        if not isinstance(value := getattr(result, name), expected):
            raise TypeError(f"{name} is {value!r}")
        if isinstance(value, str):
            value.encode()  # raises ValueError for a lone surrogate
        elif isinstance(value, int | float) and not 0 <= value <= (_LATEST if hint in _TIMES else _LARGEST):
            raise ValueError(f"{name} is {value!r}")
    return result

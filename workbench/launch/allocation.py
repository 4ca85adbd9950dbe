"""The allocation that this process is in: the job of a batch scheduler, with its nodes."""

from __future__ import annotations

import os
import re
import socket
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

from workbench.errors import LaunchError


@dataclass(frozen=True)
class Allocation:
    """A job of a batch scheduler."""

    scheduler: str
    """``slurm`` or ``pbs``."""
    job: str
    """Its id."""
    nodes: tuple[str, ...]
    """Names of its nodes, the first one first."""
    slots: tuple[int, ...]
    """Ranks that each node is meant for, in the same order; 0 where the scheduler does not say."""

    @property
    def leaves_this_host(self) -> bool:
        """Whether it has another node than the one that this process is on."""
        return any(_short(node) not in _names_of_this_host() for node in self.nodes)

    @property
    def describe(self) -> str:
        """What it is, in words."""
        title = {"slurm": "SLURM", "pbs": "PBS"}[self.scheduler]
        many = f"{len(self.nodes)} nodes" if len(self.nodes) > 1 else "1 node"
        return f"{title} job {self.job} ({many}: {', '.join(self.nodes[:4])}{', ...' if len(self.nodes) > 4 else ''})"


def current_allocation(environment: Mapping[str, str] | None = None) -> Allocation | None:
    """Return the allocation that the variables of a process tell, or None outside of any.

    Raises
    ------
    LaunchError
        If they tell of one whose nodes cannot be read.
    """
    given = os.environ if environment is None else environment
    if job := given.get("SLURM_JOB_ID"):
        nodes = tuple(expand(given.get("SLURM_JOB_NODELIST") or given.get("SLURM_NODELIST") or ""))
        slots = _slurm_slots(given.get("SLURM_TASKS_PER_NODE", ""))
        return Allocation("slurm", job, nodes, slots if len(slots) == len(nodes) else (0,) * len(nodes))
    if job := given.get("PBS_JOBID"):
        return Allocation("pbs", job, *_pbs_nodes(job, given.get("PBS_NODEFILE")))
    return None


def allocation_hint(asked: str | None, taken: str) -> str:
    """Return what to tell somebody inside an allocation whose cluster goes elsewhere unasked; else nothing.

    Parameters
    ----------
    asked
        The scheduler that was asked for; None: none.
    taken
        The one that was taken.
    """
    if asked not in (None, "auto") or taken == "here":
        return ""
    try:
        around = current_allocation()
    except LaunchError:
        around = None  # a hint is no reason to fail
    if around is None:
        return ""
    how = "in a job of its own" if taken != "local" else "on this host alone"
    return f"this process is inside {around.describe}; the cluster starts {how}. To use that job: --scheduler here"


def memory_of_rank(threads: int) -> int | None:
    """Return the memory in bytes that the enclosing job of SLURM has for each rank, or None if it does not say."""
    if per_core := os.environ.get("SLURM_MEM_PER_CPU", "").strip():
        return int(per_core) * threads * 2**20 if per_core.isdigit() else None
    return None


def memory_of_node() -> int | None:
    """Return the memory in bytes that the enclosing job of SLURM has on this node, or None if it does not say."""
    per_node = os.environ.get("SLURM_MEM_PER_NODE", "").strip()
    return int(per_node) * 2**20 if per_node.isdigit() and int(per_node) else None


def peers() -> list[str]:
    """Return the names of the other nodes of this process's allocation."""
    around = current_allocation()
    here = _names_of_this_host()
    return [] if around is None else [node for node in around.nodes if _short(node) not in here]


def _names_of_this_host() -> set[str]:
    # SLURM may call a node otherwise than the node calls itself; on a login node the variable is not set.
    name = socket.gethostname()
    return {_short(name), _short(os.environ.get("SLURMD_NODENAME", name))}


def _short(host: str) -> str:
    """Return a host's name without its domain, which one names it with and another without."""
    return host if host.replace(".", "").isdigit() else host.partition(".")[0]


def expand(nodes: str) -> Iterator[str]:
    """Yield the nodes of a list as SLURM writes it.

    Examples
    --------
    >>> list(expand("login1,n[01-03,7],r[1-2]c[0-1]"))
    ['login1', 'n01', 'n02', 'n03', 'n7', 'r1c0', 'r1c1', 'r2c0', 'r2c1']
    """
    for part in re.findall(r"(?:[^,\[]|\[[^\]]*\])+", nodes):
        yield from _expand_one(part)


def _expand_one(part: str) -> Iterator[str]:
    before, bracket, rest = part.partition("[")
    if not bracket:
        yield part
        return
    inside, _, after = rest.partition("]")
    for numbers in inside.split(","):
        first, _, last = numbers.partition("-")
        if not first.isdigit() or not (last or first).isdigit():
            raise LaunchError(
                f"the list of nodes {part!r} cannot be read, which SLURM has given to this job.",
                hint="Unset SLURM_JOB_ID to start outside of the job.",
            )
        for number in range(int(first), int(last or first) + 1):
            for end in _expand_one(after):
                yield f"{before}{number:0{len(first)}d}{end}"


def _slurm_slots(text: str) -> tuple[int, ...]:
    """Return 2, 2, 2, 1 for ``2(x3),1``."""
    found = re.findall(r"(\d+)(?:\(x(\d+)\))?", text)
    return tuple(int(tasks) for tasks, times in found for _ in range(int(times or 1)))


def _pbs_nodes(job: str, path: str | None) -> tuple[tuple[str, ...], tuple[int, ...]]:
    if not path:
        return (socket.gethostname(),), (0,)
    try:
        lines = Path(path).read_text(encoding="utf-8").split()
    except OSError as error:
        raise LaunchError(
            f"PBS job {job}: its list of nodes cannot be read ({error}). PBS keeps it on the job's first node.",
            hint="Start the cluster there, or unset PBS_JOBID and PBS_NODEFILE if this is not inside of that job.",
        ) from error
    # A node may come in several runs of lines, one for each of its chunks.
    order = list(dict.fromkeys(lines))
    counts = {node: sum(1 for _ in group) for node, group in groupby(sorted(lines))}
    return tuple(order), tuple(counts[node] for node in order)

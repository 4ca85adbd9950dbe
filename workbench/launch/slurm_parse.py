"""What SLURM answers, as text: squeue, sacct, sinfo and sbatch read into values and words. No action here."""

from __future__ import annotations

import re
import time
from dataclasses import dataclass
from datetime import UTC, datetime

from workbench.errors import InvalidRequest, did_you_mean
from workbench.launch.interface import JobSpec, JobState, JobStatus
from workbench.launch.walltime import clock, site_walltime
from workbench.text import count

SEPARATOR = "\x1f"
"""Between the fields of a line: reasons and names of nodes have spaces, commas and bars."""
QUEUE_FORMAT = SEPARATOR.join(("%i", "%T", "%r", "%S", "%e", "%N", "%j", "%k"))
"""What `parse_queue` reads: job, state, reason, start, end, nodes, name and comment."""
ACCOUNT_FORMAT = "JobIDRaw,State,Reason,Start,End,NodeList,JobName,Comment"
"""What `parse_accounting` reads."""
PARTITION_FORMAT = SEPARATOR.join(("%P", "%l", "%D", "%c", "%m", "%f"))
"""What `parse_partitions` reads: name, time limit, nodes, and processors, MiB and features of each."""
_SEPARATORS = QUEUE_FORMAT.count(SEPARATOR)

_STATES = {
    **dict.fromkeys(("PENDING", "CONFIGURING", "REQUEUED", "REQUEUE_HOLD", "REQUEUE_FED", "SPECIAL_EXIT",
                     "RESV_DEL_HOLD"), JobState.QUEUED),
    **dict.fromkeys(("RUNNING", "SUSPENDED", "STOPPED", "RESIZING", "SIGNALING"), JobState.RUNNING),
    **dict.fromkeys(("COMPLETING", "STAGE_OUT"), JobState.COMPLETING),
    "COMPLETED": JobState.DONE,
    "CANCELLED": JobState.CANCELLED,
    "TIMEOUT": JobState.TIMEOUT,
    **dict.fromkeys(("FAILED", "NODE_FAIL", "BOOT_FAIL", "OUT_OF_MEMORY", "DEADLINE", "PREEMPTED", "REVOKED"),
                    JobState.FAILED),
}  # fmt: skip
# What the state says beside what its `JobState` does.
_STATE_WORDS = {
    "CONFIGURING": "its nodes are being booted",
    "REQUEUED": "was put back into the queue",
    "REQUEUE_FED": "was put back into the queue",
    "REQUEUE_HOLD": "was put back into the queue and is held",
    "SPECIAL_EXIT": "was put back into the queue and is held",
    "RESV_DEL_HOLD": "its reservation was deleted, and it is held",
    "SUSPENDED": "suspended by the scheduler",
    "STOPPED": "stopped by a signal",
    "NODE_FAIL": "a node failed",
    "BOOT_FAIL": "a node could not be booted",
    "OUT_OF_MEMORY": "took more memory than it had asked for",
    "DEADLINE": "could not end before its deadline",
    "PREEMPTED": "ended for a job of higher priority",
    "REVOKED": "another cluster of the federation has started it",
}
_REASON_WORDS = {
    "None": "",
    "Resources": "waiting for resources",
    "Priority": "waiting behind jobs of higher priority",
    "Dependency": "waiting for another job",
    "DependencyNeverSatisfied": "the job that it depends on cannot end as it should: will never start",
    "BeginTime": "its time to begin has not come",
    "JobHeldUser": "held by the user: scontrol release lets it go",
    "JobHeldAdmin": "held by the administrator",
    "JobHoldMaxRequeue": "held: it was put back into the queue too often",
    "PartitionDown": "the partition is down",
    "PartitionInactive": "the partition takes no jobs",
    "PartitionNodeLimit": "asks for more nodes than the partition allows: will never start",
    "PartitionTimeLimit": "asks for more time than the partition allows: will never start",
    "Licenses": "waiting for licenses",
    "Reservation": "waiting for its reservation",
    "ReservationDeleted": "its reservation was deleted",
    "NodeDown": "a node that it needs is down",
    "ReqNodeNotAvail": "a node that it needs is not available",
    "BadConstraints": "no nodes can give what it asks for: will never start",
    "InvalidAccount": "the account is not valid: will never start",
    "InvalidQOS": "the quality of service is not valid: will never start",
    "AccountNotAllowed": "the partition does not allow the account: will never start",
    "QOSNotAllowed": "the partition does not allow the quality of service: will never start",
    "FrontEndDown": "no front end is up",
    "SystemFailure": "SLURM itself failed",
    "JobLaunchFailure": "it could not be launched: its first node may have no access to the folder of its output",
    "NonZeroExitCode": "its command ended with an error",
    "TimeLimit": "",
    "Prolog": "the site's prologue is running",
    "WaitingForScheduling": "the scheduler has not looked at it yet",
    "Cleaning": "an earlier run is being cleaned up",
}


def parse_queue(text: str) -> dict[str, JobStatus]:
    """Return what squeue says of jobs, asked with `QUEUE_FORMAT`; lines that cannot be read are left out."""
    return dict(_parse(line.split(SEPARATOR)) for line in text.splitlines() if line.count(SEPARATOR) == _SEPARATORS)


def parse_accounting(text: str) -> dict[str, JobStatus]:
    """Return what sacct says of jobs that have ended, asked with `ACCOUNT_FORMAT`."""
    found = parse_queue(text)
    # What it has running, and the scheduler does not know, is not running: nobody has told it of the end.
    return {job: status for job, status in found.items() if status.state.ended}


def _parse(fields: list[str]) -> tuple[str, JobStatus]:
    job, state, reason, start, end, nodes, name, comment = (field.strip() for field in fields)
    # sacct: CANCELLED by 1000
    code = (state.split() or [""])[0].rstrip("+")
    known = _STATES.get(code, JobState.UNKNOWN)
    words = _STATE_WORDS.get(code, "")
    # What a job waited for is no reason of its end.
    if not words and (known is JobState.FAILED or not known.ended):
        words = _reason(reason)
    return job, JobStatus(
        state=known,
        reason=words,
        # One that ended in the queue never started, whatever SLURM says.
        start=None if known.ended and not nodes else _time(start),
        end=_time(end),
        nodes="" if nodes in ("(null)", "None assigned") else nodes,
        # Sites may take comments away.
        label=name if comment in ("", "(null)") else comment,
    )


def _reason(code: str) -> str:
    """Return a reason in words; one that is not known as it is."""
    if code in _REASON_WORDS:
        words = _REASON_WORDS[code]
        return f"{words} ({code})" if words.endswith("never start") else words
    # ReqNodeNotAvail, UnavailableNodes:n[1-2]
    head, comma, rest = code.partition(",")
    if comma and head in _REASON_WORDS:
        return f"{_REASON_WORDS[head]} ({rest.strip()})"
    if re.fullmatch(r"(QOS|Assoc)\w*(Limit|Minutes|PerJob|PerUser)\w*", code):
        return f"waiting for a limit of the {'quality of service' if code.startswith('QOS') else 'account'} ({code})"
    return code


def _time(text: str) -> float | None:
    try:
        return datetime.fromisoformat(text).timestamp()
    except (ValueError, OverflowError, OSError):
        return None  # N/A, Unknown


@dataclass(frozen=True)
class Partition:
    """A partition, as sinfo tells of it."""

    name: str
    """Its name."""
    default: bool = False
    """Whether jobs that name none go there."""
    limit: str = "infinite"
    """Longest walltime, as SLURM writes it."""
    nodes: int = 0
    """Number of nodes."""
    processors: int = 0
    """Processors of the largest node."""
    memory: int = 0
    """Bytes of the largest node."""
    features: tuple[str, ...] = ()
    """Features that some of its nodes have."""

    @property
    def words(self) -> str:
        """What it has, in words."""
        from dask.utils import format_bytes

        most = f"{count(self.processors, 'processor')} and {format_bytes(self.memory)}"
        return f"partition {self.name} has {count(self.nodes, 'node')} of {most}"


def parse_partitions(text: str) -> dict[str, Partition]:
    """Return the partitions by name, of sinfo asked with `PARTITION_FORMAT`; lines that cannot be read are left out."""
    found: dict[str, Partition] = {}
    for line in text.splitlines():
        fields = [field.strip() for field in line.split(SEPARATOR)]
        if len(fields) != 6:
            continue
        name, default = fields[0].removesuffix("*"), fields[0].endswith("*")
        nodes, processors, mebibytes = (_number(field) for field in fields[2:5])
        features = () if fields[5] == "(null)" else tuple(fields[5].split(","))
        # One line for each kind of nodes.
        known = found.get(name, Partition(name))
        found[name] = Partition(
            name, default, _limit(fields[1]), known.nodes + nodes, max(known.processors, processors),
            max(known.memory, mebibytes * 2**20), tuple(dict.fromkeys((*known.features, *features))),
        )  # fmt: skip
    return found


def _number(text: str) -> int:
    # 2+: nodes differ, and these are the smallest.
    found = re.match(r"\d{1,18}", text)
    return int(found[0]) if found else 0


def _limit(text: str) -> str:
    """Return a time limit as people read it: SLURM writes 5:00 for five minutes."""
    try:
        return clock(site_walltime(text, 60))
    except InvalidRequest:
        return text


def said(text: str) -> str:
    """Return what a command of SLURM says, in one line and without its name in front of each."""
    lines = [re.sub(r"^\w+: (error: )?", "", line.strip()) for line in text.splitlines()]
    return "; ".join(line.removeprefix("Batch job submission failed: ") for line in lines if line)[:500]


def parse_system(text: str) -> str | None:
    """Return the identity of a SLURM in what ``scontrol show config`` prints: its name and its controller's host."""
    found = dict(re.findall(r"^(ClusterName|SlurmctldHost\[0\])\s*=\s*(\S+)", text, re.MULTILINE))
    return " on ".join(found.values()) if "ClusterName" in found else None


def unreachable(words: str) -> bool:
    """Tell whether a command says that SLURM does not answer."""
    return _mentions(words, "unable to contact slurm controller", "connection refused", "socket timed out",
                     "communication connection failure", "zero bytes were transmitted", "in standby mode",
                     "unable to establish", "protocol authentication error", "munge", "timed out")  # fmt: skip


def unknown_job(words: str) -> bool:
    """Tell whether a command says that SLURM does not know the job."""
    return _mentions(words, "invalid job id")


def rejection(words: str, spec: JobSpec, partitions: dict[str, Partition]) -> str:
    """Return in one sentence why SLURM does not take a job.

    Parameters
    ----------
    words
        What it says.
    spec
        The job.
    partitions
        Those that there are; empty if that cannot be told.
    """
    asked = spec.resources
    chosen = next(
        (one for one in partitions.values() if one.name == asked.queue or (one.default and not asked.queue)), None
    )
    where, has = (f"partition {chosen.name}", f": {chosen.words}") if chosen else ("the partition", "")
    features = sorted({feature for one in partitions.values() for feature in one.features})
    wrong = f"a directive of --extra or of jobqueue.yaml is wrong, among {list(asked.extra)}"
    if asked.account:
        account = f"--account {asked.account!r} may not use {where}, or there is no such account"
    else:
        account = f"{where} takes jobs of certain accounts only; name yours by --account"
    # The first that fits.
    sentences = {
        "invalid partition": f"--queue {asked.queue!r} is no partition; {did_you_mean(asked.queue, partitions)}",
        "time limit": f"--walltime {clock(asked.walltime or 0)} is not possible, {where} allows "
        f"{f'at most {chosen.limit}' if chosen else 'less'}",
        "node count": f"{count(asked.nodes or 1, 'node')} cannot be had{has}",
        "more processors": f"{_geometry(spec)} do not fit{has}",
        "memory specification": f"{_geometry(spec)} do not fit{has}",
        "feature": f"--constraint {asked.constraint!r}; {did_you_mean(asked.constraint, features)}",
        "reservation": f"--reservation {asked.reservation!r} is none of yours; see `scontrol show reservation`",
        "qos": "the account's limits, or those of its quality of service, forbid it",
        "account": account,
        "configuration is not available": f"no nodes can give {_geometry(spec)}{has}",
        "option": wrong,
        "directive": wrong,
    }
    return next((sentence for key, sentence in sentences.items() if key in words.lower()), "it gives its own reason")


def _geometry(spec: JobSpec) -> str:
    from dask.utils import format_bytes

    asked = spec.resources
    parts = [count(spec.threads, "thread")]
    parts += [format_bytes(spec.memory)] if spec.memory else []
    parts += [count(asked.gpus_per_rank, "GPU")] if asked.gpus_per_rank else []
    nodes = f" on {count(asked.nodes, 'node')}" if asked.nodes else ""
    feature = f" of --constraint {asked.constraint}" if asked.constraint else ""
    return f"{count(spec.ranks, 'rank')} ({', '.join(parts)} each){nodes}{feature}"


def expectation(words: str, now: float | None = None) -> str:
    """Return in words what ``sbatch --test-only`` expects of a job; what is not understood as it is."""
    found = re.search(r"to start at (\S+) using (\d{1,18}) processors on nodes (\S+)", words)
    start = _time(found[1]) if found else None
    if found is None or start is None:
        return said(words)
    now = time.time() if now is None else now
    if start - now > _YEAR:
        return f"would not start as things are: {said(words)}"
    moment, today = (datetime.fromtimestamp(when, tz=UTC).astimezone() for when in (start, now))
    wording = "%H:%M" if moment.date() == today.date() else "%Y-%m-%d %H:%M"
    return f"would start at {moment:{wording}} on {found[3]}, using {count(int(found[2]), 'processor')}"


# What SLURM says of a start that it cannot foresee.
_YEAR = 366 * 86400.0


def _mentions(words: str, *texts: str) -> bool:
    return any(text in words.lower() for text in texts)

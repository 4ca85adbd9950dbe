"""Parsers for the output of squeue, sacct, sinfo and sbatch, and texts for Slurm's reasons; pure functions."""

from __future__ import annotations

import re
import time
from dataclasses import dataclass
from datetime import UTC, datetime

from workbench.errors import InvalidRequest, did_you_mean
from workbench.launch.interface import JobSpec, JobState, JobStatus, limit_reached
from workbench.launch.slurm_script import comment
from workbench.launch.walltime import clock, site_walltime
from workbench.text import count

NEVER = ": will never start"
"""The end of the texts of jobs that can never start."""
MESSAGES = {
    "None": "",
    "Resources": "waiting for resources",
    "Priority": "waiting behind jobs of higher priority",
    "Dependency": "waiting for another job",
    "DependencyNeverSatisfied": f"a job on which this job depends cannot end as required{NEVER}",
    "BeginTime": "waiting for its begin time",
    "JobHeldUser": "held by the user: scontrol release ends the hold",
    "JobHeldAdmin": "held by the administrator",
    "JobHoldMaxRequeue": "held: the job was put back into the queue too often",
    "JobArrayTaskLimit": "waiting for other tasks of its job array",
    "PartitionDown": "the partition is down",
    "PartitionInactive": "the partition takes no jobs",
    "PartitionNodeLimit": f"requests more nodes than the partition allows{NEVER}",
    "PartitionTimeLimit": f"requests more time than the partition allows{NEVER}",
    "PartitionConfig": f"the partition does not allow the size or the walltime of the job{NEVER}",
    "MaxMemPerLimit": f"requests more memory than the partition allows{NEVER}",
    "MaxPoweredUpNodes": "waiting, because no more nodes may be powered up",
    "Licenses": "waiting for licenses",
    "MpiPortsBusy": "waiting for free ports of MPI",
    "NvidiaImexChannels": "waiting for a channel between GPUs of several nodes (IMEX)",
    "BurstBufferResources": "waiting for space in the burst buffer",
    "BurstBufferStageIn": "its files are being copied into the burst buffer",
    "BurstBufferOperation": "an operation of the burst buffer has failed",
    "Reservation": "waiting for its reservation",
    "ReservationDeleted": "its reservation was deleted",
    "ReservationInvalid": f"its reservation is not valid{NEVER}",
    "NodeDown": "a node that the job needs is down",
    "ReqNodeNotAvail": "a node that the job needs is not available",
    "BadConstraints": f"no nodes have what the job requests{NEVER}",
    "Constraints": "no nodes with what the job requests are available",
    "InvalidAccount": f"the account is not valid{NEVER}",
    "InvalidQOS": f"the quality of service is not valid{NEVER}",
    "AccountNotAllowed": f"the partition does not allow the account{NEVER}",
    "QOSNotAllowed": f"the partition does not allow the quality of service{NEVER}",
    "QOSUsageThreshold": "the use of the quality of service has reached its threshold",
    "AccountingPolicy": "a limit of the account or of its quality of service is reached",
    "DeadLine": "cannot end before its deadline",
    "FedJobLock": "waiting for the clusters of the federation to decide where the job starts",
    "SchedDefer": "the scheduler considers the job later",
    "FrontEndDown": "no front end is up",
    "SystemFailure": "Slurm itself failed",
    "JobLaunchFailure": "the job could not be launched: its first node may have no access to the folder of the output",
    "NonZeroExitCode": "its command ended with an error",
    "RaisedSignal": "its command was ended by a signal",
    "OutOfMemory": "used more memory than requested",
    "TimeLimit": "",
    "InactiveLimit": "was idle for longer than the site allows",
    "Prolog": "the site's prologue is running",
    "WaitingForScheduling": "the scheduler has not considered the job yet",
    "Cleaning": "an earlier run is being cleaned up",
}
"""Texts of the reasons that are no limits."""
# For example QOSGrpCPURunMinutesLimit, AssocMaxWallDurationPerJobLimit, MaxGRESPerAccount, QOSMinCpuNotSatisfied,
# and the former AssociationTimeLimit.
_LIMIT = re.compile(
    r"(?P<owner>QOS|Assoc(?:iation)?)?(?P<kind>Grp|Max|Min|)(?P<amount>[A-Z]\w*?)(?P<run>Run)?(?P<minutes>Min(?:ute)?s)?"
    r"(?:Per(?P<per>Job|Node|User|Account))?(?:Limit|NotSatisfied)?"
)
_AMOUNTS = {
    "cpu": "processors", "node": "nodes", "mem": "memory", "memory": "memory", "gres": "GPUs and other devices",
    "license": "licenses", "bb": "burst buffers", "billing": "billing units", "energy": "energy",
    "unknown": "other resources", "jobs": "running jobs", "job": "running jobs", "submitjob": "submitted jobs",
    "submitjobs": "submitted jobs", "wall": "walltime", "wallduration": "walltime", "time": "walltime",
    "resource": "resources",
}  # fmt: skip


def limit_text(code: str) -> str:
    """Return the text of a limit of an account or a quality of service; empty if the code does not name a limit.

    Examples
    --------
    >>> limit_text("QOSMaxNodePerUserLimit")
    'the limit of nodes per user of the quality of service is reached'
    >>> limit_text("AssocMaxWallDurationPerJobLimit")
    'requests more walltime than the account allows'
    """
    match = _LIMIT.fullmatch(code)
    amount = _AMOUNTS.get(match["amount"].lower()) if match else None
    if match is None or amount is None or not (match["owner"] or match["per"]):
        return ""
    owner, per = "account" if (match["owner"] or "QOS") != "QOS" else "quality of service", match["per"]
    if match["minutes"]:
        amount = f"minutes of {amount}{' in running jobs' if match['run'] else ''}"
    if match["kind"] == "Min":
        return f"requests less than the {owner} requires of {amount}"
    if match["kind"] == "Max" and (per in ("Job", "Node") or amount == "walltime"):
        return f"requests more {amount}{' per node' if per == 'Node' else ''} than the {owner} allows"
    return limit_reached(amount, per, f"the {owner}")


SEPARATOR = "\x1f"
"""Separator of fields in a line: reasons and names of nodes have spaces, commas and bars."""
QUEUE_FORMAT = SEPARATOR.join(("%A", "%T", "%r", "%S", "%e", "%N", "%j", "%k"))
"""Format for `parse_queue`: job (as in ``SLURM_JOB_ID``), state, reason, start, end, nodes, name and comment."""
ACCOUNT_FORMAT = "JobIDRaw,State,Reason,Start,End,NodeList,JobName,Comment"
"""Format for `parse_accounting`."""
PARTITION_FORMAT = SEPARATOR.join(("%P", "%l", "%D", "%c", "%m", "%f", "%s"))
"""Format for `parse_partitions`: name, time limit, number of nodes, processors, MiB and features per node, nodes of a
job."""
_SEPARATORS = QUEUE_FORMAT.count(SEPARATOR)

_STATES = {
    **dict.fromkeys(("PENDING", "REQUEUED", "REQUEUE_FED", "EXPEDITING"), JobState.QUEUED),
    **dict.fromkeys(("REQUEUE_HOLD", "SPECIAL_EXIT", "RESV_DEL_HOLD"), JobState.HELD),
    "CONFIGURING": JobState.STARTING,
    **dict.fromkeys(("RUNNING", "RESIZING", "SIGNALING"), JobState.RUNNING),
    **dict.fromkeys(("SUSPENDED", "STOPPED"), JobState.SUSPENDED),
    **dict.fromkeys(("COMPLETING", "STAGE_OUT"), JobState.COMPLETING),
    "COMPLETED": JobState.DONE,
    "CANCELLED": JobState.CANCELLED,
    "TIMEOUT": JobState.TIMEOUT,
    **dict.fromkeys(("FAILED", "NODE_FAIL", "BOOT_FAIL", "OUT_OF_MEMORY", "DEADLINE", "PREEMPTED", "REVOKED"),
                    JobState.FAILED),
}  # fmt: skip
_HOLDS = ("JobHeld", "JobHold")
# Details of states that their `JobState` does not show.
_STATE_MESSAGES = {
    "CONFIGURING": "its nodes are being booted",
    "REQUEUED": "was put back into the queue",
    "EXPEDITING": "was put back into the queue, and starts as soon as possible",
    "REQUEUE_FED": "was put back into the queue",
    "REQUEUE_HOLD": "was put back into the queue and is held",
    "SPECIAL_EXIT": "was put back into the queue and is held",
    "RESV_DEL_HOLD": "its reservation was deleted, and the job is held",
    "SUSPENDED": "suspended by the scheduler",
    "STOPPED": "stopped by a signal",
    "NODE_FAIL": "a node failed",
    "BOOT_FAIL": "a node could not be booted",
    "OUT_OF_MEMORY": "used more memory than requested",
    "DEADLINE": "could not end before its deadline",
    "PREEMPTED": "ended for a job of higher priority",
    "REVOKED": "another cluster of the federation has started the job",
}


# Causes in the messages of Slurm's daemon.
_CAUSES = {
    "PREEMPTION": _STATE_MESSAGES["PREEMPTED"],
    "NODE FAILURE": _STATE_MESSAGES["NODE_FAIL"],
    "TIME LIMIT": "its walltime has ended",
}
# Slurm gives the reason JobLaunchFailure also for a job that has run for some seconds.
_RAN = 3.0
_ENDED_BY_NODE = "its node has ended it, as after the use of more memory than requested"


def parse_queue(text: str) -> dict[str, JobStatus]:
    """Return the jobs in squeue's output in `QUEUE_FORMAT`, without lines that cannot be read."""
    return dict(_parse(line.split(SEPARATOR)) for line in text.splitlines() if line.count(SEPARATOR) == _SEPARATORS)


def parse_accounting(text: str) -> dict[str, JobStatus]:
    """Return the jobs that have ended in sacct's output in `ACCOUNT_FORMAT`."""
    # A job that runs here but is unknown to the scheduler does not run: the accounting missed its end.
    return {job: status for job, status in parse_queue(text).items() if status.state.ended}


def _parse(fields: list[str]) -> tuple[str, JobStatus]:
    job, state, reason, start, end, nodes, name, note = (field.strip() for field in fields)
    # sacct: CANCELLED by 1000
    code = (state.split() or [""])[0].rstrip("+")
    job_state = _STATES.get(code, JobState.UNKNOWN)
    if job_state is JobState.QUEUED and reason.startswith(_HOLDS):
        job_state = JobState.HELD
    message = _STATE_MESSAGES.get(code, "")
    # The reason of a job that ended well or was canceled is still that of its wait.
    if not message and (job_state is JobState.FAILED or not job_state.ended):
        message = _reason(reason)
    if reason == "JobLaunchFailure" and (_time(end) or 0) - (_time(start) or 0) > _RAN:
        message = _ENDED_BY_NODE
    return job, JobStatus(
        state=job_state,
        reason=message,
        # For a job that ended in the queue Slurm reports a start that never was.
        start=None if job_state.ended and not nodes else _time(start),
        end=_time(end),
        nodes="" if nodes in ("(null)", "None assigned") else nodes,
        # Sites may remove comments, or write another text.
        label=note if note.startswith(comment("")) else name,
    )


def _reason(code: str) -> str:
    """Return the text of a reason; an unknown reason is returned as Slurm writes it, with blanks."""
    # ReqNodeNotAvail, UnavailableNodes:n[1-2]; some commands write underscores for blanks.
    head, comma, rest = code.partition(",")
    if head in MESSAGES:
        message = MESSAGES[head]
        detail = rest.strip(" _") if comma else code if message.endswith(NEVER) else ""
        return f"{message} ({detail})" if detail else message
    return f"{limit} ({code})" if (limit := limit_text(code)) else re.sub(r"_+", " ", code)


def end_reason(log: str, job: str) -> str:
    """Return why Slurm has ended a job, from the message of its daemon in the job's output; empty if it has none.

    Examples
    --------
    >>> end_reason("slurmstepd: error: *** JOB 35 ON n1 CANCELLED AT 2026-11-27T15:24:21 DUE TO PREEMPTION ***", "35")
    'ended for a job of higher priority'
    """
    message = rf"^slurmstepd\S*: .*\*\*\* (?:JOB|STEP) {re.escape(job)}\b.* CANCELLED AT \S+ DUE TO ([A-Z ]+?) \*\*\*"
    causes = re.findall(message, log, re.MULTILINE)
    return _CAUSES.get(causes[-1], causes[-1].lower()) if causes else ""


def _time(text: str) -> float | None:
    try:
        return datetime.fromisoformat(text).timestamp()
    except (ValueError, OverflowError, OSError):
        return None  # N/A, Unknown


@dataclass(frozen=True)
class Partition:
    """A partition as sinfo reports it."""

    name: str
    """Name of the partition."""
    default: bool = False
    """Whether Slurm uses the partition for jobs that name none."""
    limit: str = "infinite"
    """Longest walltime, as Slurm writes it."""
    nodes: int = 0
    """Number of nodes."""
    processors: int = 0
    """Processors of the largest node."""
    memory: int = 0
    """Bytes of the largest node."""
    features: tuple[str, ...] = ()
    """Features that some of the nodes have."""
    job_nodes: str = "1-infinite"
    """Least and most nodes of a job, as Slurm writes them."""

    def takes(self, nodes: int) -> bool:
        """Return whether a job may have a number of nodes."""
        least, _, most = self.job_nodes.partition("-")
        return _number(least) <= nodes <= (_number(most or least) or nodes)

    @property
    def describe(self) -> str:
        """Number and size of the nodes as text."""
        from dask.utils import format_bytes

        node = f"{count(self.processors, 'processor')} and {format_bytes(self.memory)}"
        return f"partition {self.name} has {count(self.nodes, 'node')} of {node}"


def parse_partitions(text: str) -> dict[str, Partition]:
    """Return the partitions by name in sinfo's output in `PARTITION_FORMAT`, without lines that cannot be read."""
    partitions: dict[str, Partition] = {}
    for line in text.splitlines():
        fields = [field.strip() for field in line.split(SEPARATOR)]
        if len(fields) != 7:
            continue
        name, default = fields[0].removesuffix("*"), fields[0].endswith("*")
        nodes, processors, mebibytes = (_number(field) for field in fields[2:5])
        features = () if fields[5] == "(null)" else tuple(fields[5].split(","))
        # sinfo prints one line for each type of node.
        former = partitions.get(name, Partition(name))
        partitions[name] = Partition(
            name, default, _limit(fields[1]), former.nodes + nodes, max(former.processors, processors),
            max(former.memory, mebibytes * 2**20), tuple(dict.fromkeys((*former.features, *features))),
            fields[6],
        )  # fmt: skip
    return partitions


def _number(text: str) -> int:
    # 2+ is the smallest number if nodes differ.
    match = re.match(r"\d{1,18}", text)
    return int(match[0]) if match else 0


def _limit(text: str) -> str:
    """Return a time limit as HH:MM:SS: Slurm writes 5:00 for five minutes."""
    try:
        return clock(site_walltime(text, 60))
    except InvalidRequest:
        return text


_LONGEST = 500


def error_text(text: str) -> str:
    """Return the messages of a command in one line, without the prefix of each message; of a long text the end."""
    lines = [re.sub(r"^\w+:( error:)?( |$)", "", line.strip()) for line in text.splitlines()]
    lines = [line.removeprefix("Batch job submission failed: ") for line in lines]
    # Lines of a banner often have no letters.
    message = "; ".join(dict.fromkeys(line for line in lines if re.search(r"\w", line)))
    # A submit filter of the site prints its error after its banner.
    return message if len(message) <= _LONGEST else f"... {message[-_LONGEST:]}"


def parse_system(text: str) -> str | None:
    """Return the name of a Slurm and the host of its controller from the output of ``scontrol show config``."""
    settings = dict(re.findall(r"^(ClusterName|SlurmctldHost\[0\])\s*=\s*(\S+)", text, re.MULTILINE))
    return " on ".join(settings.values()) if "ClusterName" in settings else None


def unreachable(message: str) -> bool:
    """Return whether a command reports that Slurm does not answer."""
    return _mentions(message, "unable to contact slurm controller", "connection refused", "socket timed out",
                     "communication connection failure", "zero bytes were transmitted", "in standby mode",
                     "unable to establish", "protocol authentication error", "munge", "timed out")  # fmt: skip


def unknown_job(message: str) -> bool:
    """Return whether a command reports that Slurm does not know the job."""
    return _mentions(message, "invalid job id")


def rejection(message: str, spec: JobSpec, partitions: dict[str, Partition]) -> str:
    """Return in one sentence why Slurm rejects a job.

    Parameters
    ----------
    message
        Slurm's message.
    spec
        The job.
    partitions
        All partitions; empty if they are not known.
    """
    request = spec.resources
    chosen = next(
        (each for each in partitions.values() if each.name == request.queue or (each.default and not request.queue)),
        None,
    )
    partition, size = (f"partition {chosen.name}", f": {chosen.describe}") if chosen else ("the partition", "")
    features = sorted({feature for each in partitions.values() for feature in each.features})
    wrong = f"a directive of --extra or of jobqueue.yaml is wrong, among {list(request.extra)}"
    if request.account:
        account = f"--account {request.account!r} may not use {partition}, or there is no such account"
    else:
        account = f"{partition} accepts only jobs of certain accounts; pass your account with --account"
    too_long = f"{partition} allows {f'at most {chosen.limit}' if chosen else 'less'}"
    nodes = request.nodes or 1
    nodes_why = size
    if chosen and not chosen.takes(nodes):
        nodes_why = f": the nodes of a job in {partition} are limited to {chosen.job_nodes}"
    # The first key in the message counts.
    sentences = {
        # This message also names time limits and accounts.
        _POLICY: policy_text(message),
        "invalid qos": "there is no such quality of service, or you may not use it; check --qos in --extra and "
        "jobqueue.yaml",
        "invalid partition": f"--queue {request.queue!r} is not a partition; {did_you_mean(request.queue, partitions)}",
        "time limit": f"--walltime {clock(request.walltime)} is not possible, because {too_long}"
        if request.walltime
        else f"the job needs a walltime: pass --walltime; {too_long}",
        "node count": f"{count(nodes, 'node')} cannot be allocated{nodes_why}",
        "more processors": f"{_geometry(spec)} do not fit{size}",
        "memory specification": f"{_geometry(spec)} do not fit{size}",
        "feature": f"--constraint {request.constraint!r} is not valid; {did_you_mean(request.constraint, features)}",
        "reservation": f"you cannot use --reservation {request.reservation!r}; see `scontrol show reservation`",
        "account": account,
        "configuration is not available": f"no nodes have room for {_geometry(spec)}{size}",
        "option": wrong,
        "directive": wrong,
    }
    return next((sentence for key, sentence in sentences.items() if key in message.lower()), "Slurm gives this reason")


_POLICY = "accounting/qos policy"


def policy_text(message: str) -> str:
    """Return which limit of an account or a quality of service does not allow a job; empty for other messages."""
    if not _mentions(message, _POLICY):
        return ""
    limits = filter(None, map(limit_text, re.findall(r"\w+", message)))
    unnamed = "the limits of the account, or of its quality of service, do not allow the job"
    return next(limits, unnamed)


def _geometry(spec: JobSpec) -> str:
    from dask.utils import format_bytes

    request = spec.resources
    parts = [count(spec.threads, "thread")]
    parts += [format_bytes(spec.memory)] if spec.memory else []
    parts += [count(request.gpus_per_rank, "GPU")] if request.gpus_per_rank else []
    nodes = f" on {count(request.nodes, 'node')}" if request.nodes else ""
    feature = f" of --constraint {request.constraint}" if request.constraint else ""
    return f"{count(spec.ranks, 'rank')} ({', '.join(parts)} each){nodes}{feature}"


def expectation(output: str, now: float | None = None) -> str:
    """Return the start that ``sbatch --test-only`` predicts; an output that cannot be read is returned unchanged."""
    match = re.search(r"to start at (\S+) using (\d{1,18}) processors on nodes (\S+)", output)
    start = _time(match[1]) if match else None
    if match is None or start is None:
        return error_text(output)
    now = time.time() if now is None else now
    if start - now > _YEAR:
        return f"would not start in the present state: {error_text(output)}"
    moment, today = (datetime.fromtimestamp(seconds, tz=UTC).astimezone() for seconds in (start, now))
    form = "%H:%M" if moment.date() == today.date() else "%Y-%m-%d %H:%M"
    return f"would start at {moment:{form}} on {match[3]}, using {count(int(match[2]), 'processor')}"


# Slurm reports a start after a year if it cannot predict one.
_YEAR = 366 * 86400.0


def _mentions(message: str, *texts: str) -> bool:
    return any(text in message.lower() for text in texts)

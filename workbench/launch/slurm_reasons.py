"""The reasons that Slurm names for a job that waits, was rejected or has ended, in words."""

from __future__ import annotations

import re

from workbench.launch.interface import limit_reached

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

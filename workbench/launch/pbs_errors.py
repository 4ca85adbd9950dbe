"""The errors of ``qsub`` as sentences for the user."""

from __future__ import annotations

import re

from workbench.errors import JobRejected, LaunchError, SchedulerTimeout, did_you_mean
from workbench.launch import pbs_parse
from workbench.launch.command import Answer, ask
from workbench.launch.options import Resources
from workbench.launch.walltime import clock
from workbench.text import count

_NO_SERVER = (160, 162, 255)
_VALUE = "it does not understand a directive; check --extra and jobqueue.yaml."
_REASONS = {
    159: "you may not use {queue}. Choose another by --queue.",
    166: _VALUE,
    173: "{queue} is closed. Choose another by --queue.",
    197: "you are not a member of a group in --extra.",
}


def refusal(answer: Answer, request: Resources) -> LaunchError:
    """Return the error for a rejected job, with the scheduler's own message in parentheses."""
    message = _message(answer)
    if answer.code in _NO_SERVER or re.search("cannot connect|Unable to contact", f"{answer.err}{message}"):
        return SchedulerTimeout(f"the PBS server does not answer ({message}).", hint="Try again later.")
    return JobRejected(f"PBS does not take the job: {_reason(answer.code, message, request)} ({message})")


def _message(answer: Answer) -> str:
    """Return the line with the reason of a rejection."""
    text = f"{answer.err}\n{answer.out}"
    # Slurm's emulation quotes sbatch, whose last line is the summary.
    messages = re.findall(r"sbatch: error: (?:Batch job submission failed: )?(.*)", text)
    messages = messages or re.findall(r"qsub: (.*)", text) or [answer.describe]
    return " ".join(str(messages[-1]).split())


def _reason(code: int, message: str, request: Resources) -> str:
    queue = f"queue {request.queue}" if request.queue else "the default queue"
    if code == 170:
        return _unknown_queue(request)
    if code == 187:
        name = re.split(r"[ .]", message)[-1]
        return f"it has no {name!r}; check --constraint, --gpus-per-rank and --extra."
    if code == 188:
        return f"it asks for more than {queue} allows{_limits(request)}."
    if code in (1, 2) and re.search(r"directive error|invalid option|illegal -\w value", message):
        return _VALUE
    if code in _REASONS:
        return _REASONS[code].format(queue=queue)
    return _emulated(message, request)


def _emulated(message: str, request: Resources) -> str:
    if "account" in message:
        return f"account {request.account} may not be used here."
    if "partition" in message:
        return _unknown_queue(request)
    if "time limit" in message:
        length = f" of {clock(request.walltime)}" if request.walltime else ""
        return f"the walltime{length} is longer than its queue allows."
    if "node configuration" in message or "More processors" in message or "Node count" in message:
        return (
            f"it asks for {count(request.nodes or 1, 'node')}, but fewer nodes exist, or fewer have as many processors "
            "and as much memory. Give another --nodes."
        )
    if "feature" in message:
        return f"no node has {request.constraint!r}; check --constraint."
    return "see its message"


def _unknown_queue(request: Resources) -> str:
    if request.reservation:
        return f"there is no reservation {request.reservation}; pbs_rstat lists them."
    try:
        queues = pbs_parse.queues(ask(["qstat", "-Q"]).out)
    except LaunchError:
        queues = []
    return f"there is no queue {request.queue!r}; {did_you_mean(request.queue, queues)}."


def _limits(request: Resources) -> str:
    if request.queue is None:
        return ""
    try:
        limits = pbs_parse.limits(ask(["qstat", "-Q", "-f", request.queue]).out)
    except LaunchError:
        return ""
    return f" ({', '.join(f'{name} up to {value}' for name, value in limits.items())})" if limits else ""

"""What ``qsub`` says when it does not take a job, in one clear sentence."""

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
    197: "a group of --extra is not one of yours.",
}


def refusal(answer: Answer, asked: Resources) -> LaunchError:
    """Return the error for a job that was not taken, with the scheduler's own words in parentheses."""
    words = _words(answer)
    if answer.code in _NO_SERVER or re.search("cannot connect|Unable to contact", f"{answer.err}{words}"):
        return SchedulerTimeout(f"the PBS server does not answer ({words}).", hint="Try again later.")
    return JobRejected(f"PBS does not take the job: {_why(answer.code, words, asked)} ({words})")


def _words(answer: Answer) -> str:
    """Return the line that tells what is wrong."""
    text = f"{answer.err}\n{answer.out}"
    # SLURM's emulation quotes what sbatch says; the last line of it sums up.
    said = re.findall(r"sbatch: error: (?:Batch job submission failed: )?(.*)", text)
    said = said or re.findall(r"qsub: (.*)", text) or [answer.describe]
    return " ".join(str(said[-1]).split())


def _why(code: int, words: str, asked: Resources) -> str:
    queue = f"queue {asked.queue}" if asked.queue else "the default queue"
    if code == 170:
        return _unknown_queue(asked)
    if code == 187:
        name = re.split(r"[ .]", words)[-1]
        return f"it has no {name!r}; check --constraint, --gpus-per-rank and --extra."
    if code == 188:
        return f"it asks for more than {queue} allows{_limits(asked)}."
    if code in (1, 2) and re.search(r"directive error|invalid option|illegal -\w value", words):
        return _VALUE
    if code in _REASONS:
        return _REASONS[code].format(queue=queue)
    return _emulated(words, asked)


def _emulated(words: str, asked: Resources) -> str:
    if "account" in words:
        return f"account {asked.account} may not be used here."
    if "partition" in words:
        return _unknown_queue(asked)
    if "time limit" in words:
        length = f" of {clock(asked.walltime)}" if asked.walltime else ""
        return f"the walltime{length} is longer than its queue allows."
    if "node configuration" in words or "More processors" in words or "Node count" in words:
        return (
            f"it asks for {count(asked.nodes or 1, 'node')}, and there are fewer, or fewer with so many processors and "
            "so much memory. Give another --nodes."
        )
    if "feature" in words:
        return f"no node has {asked.constraint!r}; check --constraint."
    return "see its words"


def _unknown_queue(asked: Resources) -> str:
    if asked.reservation:
        return f"there is no reservation {asked.reservation}; pbs_rstat lists them."
    try:
        known = pbs_parse.queues(ask(["qstat", "-Q"]).out)
    except LaunchError:
        known = []
    return f"there is no queue {asked.queue!r}; {did_you_mean(asked.queue, known)}."


def _limits(asked: Resources) -> str:
    if asked.queue is None:
        return ""
    try:
        most = pbs_parse.limits(ask(["qstat", "-Q", "-f", asked.queue]).out)
    except LaunchError:
        return ""
    return f" ({', '.join(f'{name} up to {value}' for name, value in most.items())})" if most else ""

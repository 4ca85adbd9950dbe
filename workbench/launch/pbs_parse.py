"""Parsers for the output of the commands of OpenPBS and PBS Pro, and of Slurm's emulation of them.

No function raises: lines that cannot be read are omitted, and an unknown state is `JobState.UNKNOWN`.
"""

from __future__ import annotations

import json
import re
import signal
import time
from collections.abc import Iterator, Mapping
from dataclasses import replace

from workbench.launch.interface import UNKNOWN, JobState, JobStatus, limit_reached

_ID = re.compile(r"\d+(\[\d*\])?(\.[\w.-]+)?", re.ASCII)
# An attribute begins with four blanks, and the continuation of a line with a tabulator.
_HEADER = re.compile(r"Job Id:(\s)\s*(\S+)\s*")
_ATTRIBUTE = re.compile(r"    ([A-Za-z][\w.]*) = (.*)", re.ASCII)
# In Slurm's emulation an attribute begins with a tabulator.
_EMULATED = re.compile(r"\t([A-Za-z][\w.]*) = (.*)", re.ASCII)
_LOST = (re.compile(r"Unknown Job Id(?: Error)? (\S+)"), re.compile(r"(?<!\S)(\S+) Job has finished"))
# Exit codes of PBS itself for an exceeded walltime, and of a job that was terminated.
_WALLTIME, _TERMINATED = -29, 256 + 15
_QUEUED = ("Q", "T", "H", "W")
_STARTED = {
    "R": (JobState.RUNNING, ""),
    "B": (JobState.RUNNING, ""),
    "S": (JobState.SUSPENDED, "suspended by the scheduler"),
    "U": (JobState.SUSPENDED, "suspended by the scheduler"),
    "E": (JobState.COMPLETING, ""),
}
_OVER = ("F", "C", "X")


def job_id(text: str) -> str | None:
    """Return the job's id in the output of ``qsub``, or None.

    Examples
    --------
    >>> job_id("1.pbshead"), job_id("There was an error running the Slurm sbatch command.")
    ('1.pbshead', None)
    """
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1] if lines and _ID.fullmatch(lines[-1]) else None


def number(job: str) -> str:
    """Return the part of a job's id before the server's domain, which not every command prints.

    Examples
    --------
    >>> number("17.pbshead.example.org"), number("17")
    ('17.pbshead', '17')
    """
    return ".".join(job.split(".")[:2])


def lost(errors: str) -> set[str]:
    """Return the numbers of the jobs that ``qstat`` reports as unknown or finished."""
    return {number(job) for pattern in _LOST for job in pattern.findall(errors)}


def queues(text: str) -> list[str]:
    """Return the names of the queues that ``qstat -Q`` lists."""
    lines = [line.split() for line in text.splitlines()]
    ruler = next((index for index, line in enumerate(lines) if line and set(line[0]) == {"-"}), len(lines))
    return [line[0] for line in lines[ruler + 1 :] if line]


def statuses(text: str) -> dict[str, JobStatus]:
    """Return the statuses in the output of ``qstat -f``, in JSON or as text, by the numbers of jobs."""
    jobs = _from_json(text) if text.lstrip().startswith("{") else _from_text(text)
    return {number(job): replace(_status(values), label=values.get("Job_Name", "")) for job, values in jobs}


def limits(text: str) -> dict[str, str]:
    """Return a queue's limits for a job in the output of ``qstat -Q -f``: ``walltime``, ``ncpus``, ..."""
    return dict(re.findall(r"^\s*resources_max\.(\w+) = (\S+)", text, re.MULTILINE))


def _from_json(text: str) -> Iterator[tuple[str, dict[str, str]]]:
    try:
        jobs = json.loads(text, strict=False)["Jobs"]
    except (ValueError, RecursionError, KeyError, TypeError):
        return
    if isinstance(jobs, dict):
        for job, attributes in jobs.items():
            if isinstance(attributes, dict):
                yield job, dict(_flat(attributes))


def _flat(attributes: Mapping[str, object]) -> Iterator[tuple[str, str]]:
    for name, value in attributes.items():
        # PBS garbles the job's environment, which may also have secrets.
        if isinstance(value, dict) and name != "Variable_List":
            yield from _flat({f"{name}.{key}": item for key, item in value.items() if not isinstance(item, dict)})
        elif isinstance(value, str | int | float):
            yield name, str(value)


def _from_text(text: str) -> Iterator[tuple[str, dict[str, str]]]:
    job, attributes, pattern, last = "", dict[str, str](), _ATTRIBUTE, ""
    for line in text.splitlines():
        if header := _HEADER.fullmatch(line):
            if job:
                yield job, attributes
            job, attributes, last = header[2], {}, ""
            pattern = _EMULATED if header[1] == "\t" else _ATTRIBUTE
            if pattern is _EMULATED:
                attributes["emulated"] = "True"
        elif match := pattern.fullmatch(line):
            # Only the first counts: a variable of the job's environment may contain lines in the form of attributes.
            last = match[1] if match[1] not in attributes else ""
            if last:
                attributes[last] = match[2]
        elif last and line.startswith("\t"):
            attributes[last] += line[1:]
    if job:
        yield job, attributes


def _status(attributes: Mapping[str, str]) -> JobStatus:
    letter = attributes.get("job_state", "")
    if letter in _QUEUED:
        return _queued(letter, attributes)
    emulated = "emulated" in attributes
    start = _time(attributes.get("mtime" if emulated else "stime"))
    nodes = ",".join(dict.fromkeys(re.findall(r"(?:^|\+)([^/+]+)", attributes.get("exec_host", ""))))
    if letter in _OVER:
        state, reason = _end(attributes)
        times = ("ctime",) if emulated else ("obittime", "mtime")
        ended = next((attributes[name] for name in times if name in attributes), None)
        return JobStatus(state, reason, start, _time(ended), nodes, unknown_to_scheduler=state is JobState.UNKNOWN)
    if letter not in _STARTED:
        return UNKNOWN
    length = _seconds(attributes.get("Resource_List.walltime"))
    state, reason = _STARTED[letter]
    if "terminated by" in attributes.get("comment", ""):
        state, reason = JobState.COMPLETING, "is being canceled"
    # The time that a job was suspended does not count.
    counted = start is not None and length is not None and state is not JobState.SUSPENDED
    return JobStatus(state, reason, start, (start or 0) + (length or 0) if counted else None, nodes)


def _queued(letter: str, attributes: Mapping[str, str]) -> JobStatus:
    expected = attributes.get("mtime") if "emulated" in attributes else attributes.get("estimated.start_time")
    comment = attributes.get("comment", "")
    match letter:
        case "H":
            reason = held(attributes.get("Hold_Types", ""), attributes.get("substate", ""), comment)
            if reason.startswith("held"):
                return JobStatus(JobState.HELD, reason)
        case "W":
            reason, expected = "waiting for its start time", attributes.get("Execution_Time")
        case _:
            reason = waiting(" ".join(comment.split()))
    hopeless = letter == "Q" and comment.startswith("Can Never Run")
    return JobStatus(JobState.QUEUED, reason, _time(expected), hopeless=hopeless)


def _end(attributes: Mapping[str, str]) -> tuple[JobState, str]:
    """Return the final state and the reason of a job that has ended; UNKNOWN where PBS does not report it."""
    comment = attributes.get("comment", "")
    try:
        code = int(attributes["Exit_status"])
    except (KeyError, ValueError):
        code = None
    if code == _WALLTIME or "exceeded resource walltime" in comment:
        return JobState.TIMEOUT, "its walltime has ended"
    if code == _TERMINATED or attributes.get("substate") == "91" or re.search(r"\bterminated\b", comment):
        return JobState.CANCELLED, "canceled"
    if code is not None:
        return (JobState.FAILED, signal_or_code(code)) if code else (JobState.DONE, "")
    if attributes["job_state"] == "C":
        return JobState.UNKNOWN, "has ended, but its scheduler does not report how"
    if attributes.get("Hold_Types", "n") != "n":
        return JobState.FAILED, "never ran: a job for which this job waited has failed"
    return JobState.FAILED, "ended without an exit code"


def _time(text: str | None) -> float | None:
    try:
        if text is None or re.fullmatch(r"\d{1,12}", text, re.ASCII):
            return None if text is None else float(text)
        return time.mktime(time.strptime(text.strip(), "%a %b %d %H:%M:%S %Y"))
    except (ValueError, OverflowError, OSError):
        return None


def _seconds(text: str | None) -> int | None:
    """Return the seconds of ``HH:MM:SS``, ``MM:SS`` or ``SS``."""
    if text is None or not re.fullmatch(r"\d{1,9}(:\d{1,2}){0,2}", text, re.ASCII):
        return None
    total = 0
    for part in text.split(":"):
        total = 60 * total + int(part)
    return total


# Exit codes of the script before it runs its command; see `pbs_script`.
CODE_NO_COMMAND = 72
CODE_NO_OUTPUT = 74

_HOLDS = {"u": "by the user", "o": "by an operator", "s": "by the system", "p": "for a bad password"}
_RESOURCES = {"ncpus": "processors", "mem": "memory", "ngpus": "GPUs", "host": "host"}
# Messages for comments by their beginning.
_WAITING = {
    "Not enough free nodes available": "waiting for free nodes",
    "Not enough total nodes available": "fewer nodes exist",
    "Queue not started": "its queue is stopped",
    **dict.fromkeys(("Job would conflict with", "Job would interfere with", "Job would break", "Provisioning for job",
                     "Provision conflict"), "waiting behind jobs of higher priority or reservations"),
    **dict.fromkeys(("Job would cross", "Job will cross", "Dedicated time"),
                    "its walltime reaches into a time that the site reserves"),
    "Not enough of the right type": "waiting for free nodes of the requested type",
    "No available resources": "waiting for free nodes",
    "Too few free resources": "waiting for free nodes",
    "Can't preempt": "waiting behind running jobs that cannot be preempted",
}  # fmt: skip
_LIMIT = re.compile(r"\blimit\b.*reached|reached.*\blimit\b|would exceed .* limit", re.IGNORECASE)
_SHORTAGE = re.compile(r"Insufficient amount of (?:queue |server )?resource: (\S+)\s*(?:\((.*)\))?")
_AMOUNTS = re.compile(r"R: (\S+) A: (\S+) T: (\S+)")
_CODES = {
    CODE_NO_COMMAND: "its Python or its folder does not exist on the node",
    CODE_NO_OUTPUT: "its node cannot write the log: check that the nodes share home folders with free space",
    127: "exit code 127: a command was not found",
    -1: "the node could not start the job",
    -2: "the node could not start the job",
    -3: "the node could not start the job",
    **dict.fromkeys((-4, -5, -6), "PBS was started again on its node while it ran"),
    -7: "the node could not restart it from its checkpoint",
    -8: "the node could not run its script",
    -9: "the node could not create its output",
    -10: "the node does not know its user or group",
    -11: "was stopped, to run again",
    -12: "was stopped, with a checkpoint",
    -13: "the node does not accept the password of its user",
    -14: "one of its nodes was lost",
    -15: "was stopped, to restart from its checkpoint",
    -16: "a hook of the site refused the job",
    -17: "a hook of the site refused the job",
    -18: "a hook of the site ended the job",
    -19: "a hook of the site ended the job",
    -20: "its first node was lost",
    -21: "the node refused the job for security reasons",
    -22: "a hook of the site failed",
    -23: "the node could not use the Kerberos ticket of its user",
    -24: "used more processors than requested",
    -25: "used more processors than requested",
    -26: "used more memory than requested",
    -27: "used more memory than requested",
    -28: "used more processor time than requested",
    -30: "the node could not join its output files",
}


def waiting(comment: str) -> str:
    """Return why a queued job waits, from its comment.

    Examples
    --------
    >>> waiting("Can Never Run: Insufficient amount of resource: ncpus (R: 100 A: 16 T: 16)")
    'will never start: processors: 100 requested, 16 exist'
    >>> waiting("Not Running: Not enough free nodes available")
    'waiting for free nodes'
    """
    kind, colon, rest = comment.partition(": ")
    if not colon or kind not in ("Can Never Run", "Not Running"):
        return comment or "waiting for the scheduler"
    never = kind == "Can Never Run"
    reason = next((text for start, text in _WAITING.items() if rest.startswith(start)), None) or _shortage(rest, never)
    return f"will never start: {reason}" if never else reason


def held(kinds: str, substate: str, comment: str = "") -> str:
    """Return why a job is held, from its ``Hold_Types``, its substate and its comment.

    Examples
    --------
    >>> held("s", "20", "job held, too many failed attempts to run")
    'held by the system: too many failed attempts to run'
    """
    # The system holds a job that depends on another.
    if substate == "22":
        return "waiting for another job"
    holders = [text for kind, text in _HOLDS.items() if kind in kinds]
    message = f"held {' and '.join(holders)}" if holders else "held"
    # Other comments are older than the hold, or repeat who holds the job.
    reason = comment.removeprefix("job held, ")
    return f"{message}: {reason}" if "failed" in reason else message


def signal_or_code(code: int) -> str:
    """Return the reason for an exit code other than 0.

    Examples
    --------
    >>> signal_or_code(137), signal_or_code(3)
    ('killed by SIGKILL', 'exit code 3')
    """
    if code in _CODES:
        return _CODES[code]
    for base in (256, 128):
        try:
            return f"killed by {signal.Signals(code - base).name}"
        except ValueError:
            pass
    return f"exit code {code}"


def _limit(rest: str) -> str:
    """Return the message for a limit: Queue short per-user limit reached on resource ncpus."""
    resource, queue = re.search(r"on resource (\S+)", rest), re.search(r"queue ([^\s']+)", rest, re.IGNORECASE)
    person = re.search(r"\b(user|group|project)\b", rest, re.IGNORECASE)
    amount = _RESOURCES.get(resource[1], resource[1]) if resource else "running jobs"
    place = f"queue {queue[1]}" if queue else "the node" if rest.startswith("Node") else "the server"
    return limit_reached(amount, person and person[1], place)


def _shortage(rest: str, never: bool) -> str:
    """Return the message for a resource of which there is not enough."""
    if _LIMIT.search(rest):
        return _limit(rest)
    match = _SHORTAGE.match(rest)
    if match is None:
        # These are sentences, to which others are added.
        return rest[:1].lower() + rest[1:].rstrip(".") if rest[1:2].islower() else rest
    resource = _RESOURCES.get(match[1], match[1])
    amounts = _AMOUNTS.fullmatch(match[2] or "")
    if amounts and never:
        return f"{resource}: {amounts[1]} requested, {amounts[3]} exist"
    if amounts:
        return f"waiting for {resource}: {amounts[1]} requested, {amounts[2]} free of {amounts[3]}"
    detail = f" ({match[2]})" if match[2] else ""
    return f"no node has the requested {resource}{detail}" if never else f"waiting for {resource}{detail}"

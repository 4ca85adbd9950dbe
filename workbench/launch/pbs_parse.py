"""What the commands of PBS print, read: OpenPBS and PBS Pro, Torque, and SLURM's emulation of them.

Nothing here raises: what cannot be read is left out, and a state that is not known is `JobState.UNKNOWN`.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator, Mapping
from dataclasses import replace

from workbench.launch.interface import UNKNOWN, JobState, JobStatus
from workbench.launch.pbs_words import held, signal_or_code, waiting

_ID = re.compile(r"\d+(\[\d*\])?(\.[\w.-]+)?", re.ASCII)
# Four blanks in front of an attribute, and a tabulator in front of what continues the line above.
_HEADER = re.compile(r"Job Id:(\s)\s*(\S+)\s*")
_ATTRIBUTE = re.compile(r"    ([A-Za-z][\w.]*) = (.*)", re.ASCII)
# SLURM's emulation has the tabulator in front of attributes.
_EMULATED = re.compile(r"\t([A-Za-z][\w.]*) = (.*)", re.ASCII)
_LOST = (re.compile(r"Unknown Job Id(?: Error)? (\S+)"), re.compile(r"(?<!\S)(\S+) Job has finished"))
# Exit codes that PBS itself gives, beside those of the job; Torque has others for the same.
_WALLTIME = {"Exit_status": -29, "exit_status": -11}
_TERMINATED = 256 + 15
_SUSPENDED = "suspended by the scheduler"
_QUEUED = ("Q", "T", "H", "W")
_STARTED = {
    "R": (JobState.RUNNING, ""),
    "B": (JobState.RUNNING, ""),
    "S": (JobState.RUNNING, _SUSPENDED),
    "U": (JobState.RUNNING, _SUSPENDED),
    "E": (JobState.COMPLETING, ""),
}
_OVER = ("F", "C", "X")


def job_id(text: str) -> str | None:
    """Return the job's id in what ``qsub`` prints, or None.

    Examples
    --------
    >>> job_id("1.pbshead"), job_id("There was an error running the Slurm sbatch command.")
    ('1.pbshead', None)
    """
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1] if lines and _ID.fullmatch(lines[-1]) else None


def number(job: str) -> str:
    """Return what of a job's id is the same in every form of it: servers are named with and without their domain.

    Examples
    --------
    >>> number("17.pbshead.example.org"), number("17")
    ('17.pbshead', '17')
    """
    return ".".join(job.split(".")[:2])


def lost(errors: str) -> set[str]:
    """Return the numbers of the jobs that ``qstat`` says it does not know (any more)."""
    return {number(job) for pattern in _LOST for job in pattern.findall(errors)}


def queues(text: str) -> list[str]:
    """Return the names of the queues that ``qstat -Q`` lists."""
    lines = [line.split() for line in text.splitlines()]
    ruler = next((at for at, words in enumerate(lines) if words and set(words[0]) == {"-"}), len(lines))
    return [words[0] for words in lines[ruler + 1 :] if words]


def statuses(text: str) -> dict[str, JobStatus]:
    """Return the statuses that ``qstat -f`` prints, in JSON or as text, by the numbers of jobs."""
    jobs = _from_json(text) if text.lstrip().startswith("{") else _from_text(text)
    return {number(job): replace(_status(given), label=given.get("Job_Name", "")) for job, given in jobs}


def limits(text: str) -> dict[str, str]:
    """Return the most that a queue gives a job, as ``qstat -Q -f`` prints it: ``walltime``, ``ncpus``, ..."""
    found = re.findall(r"^\s*resources_max\.(\w+) = (\S+)", text, re.MULTILINE)
    return dict(found)


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
        # What the job's environment has is garbled, and nobody's business.
        if isinstance(value, dict) and name != "Variable_List":
            yield from _flat({f"{name}.{inner}": one for inner, one in value.items() if not isinstance(one, dict)})
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
        elif found := pattern.fullmatch(line):
            # The first one counts: a variable of the job's environment may hold lines that look like attributes.
            last = found[1] if found[1] not in attributes else ""
            if last:
                attributes[last] = found[2]
        elif last and line.startswith("\t"):
            attributes[last] += line[1:]
    if job:
        yield job, attributes


def _status(given: Mapping[str, str]) -> JobStatus:
    """Return the status that attributes of a job tell."""
    letter = given.get("job_state", "")
    if letter in _QUEUED:
        return _queued(letter, given)
    emulated = "emulated" in given
    start = _time(given.get("mtime") if emulated else given.get("stime") or given.get("start_time"))
    nodes = ",".join(dict.fromkeys(re.findall(r"(?:^|\+)([^/+]+)", given.get("exec_host", ""))))
    if letter in _OVER:
        state, reason = _end(given)
        times = ("ctime",) if emulated else ("obittime", "comp_time", "mtime")
        ended = next((given[name] for name in times if name in given), None)
        return JobStatus(state, reason, start, _time(ended), nodes, forgotten=state is JobState.UNKNOWN)
    if letter not in _STARTED:
        return UNKNOWN
    length = _seconds(given.get("Resource_List.walltime"))
    state, reason = _STARTED[letter]
    if "terminated by" in given.get("comment", ""):
        state, reason = JobState.COMPLETING, "is being cancelled"
    # The time that a job was suspended does not count.
    counted = start is not None and length is not None and reason != _SUSPENDED
    return JobStatus(state, reason, start, (start or 0) + (length or 0) if counted else None, nodes)


def _queued(letter: str, given: Mapping[str, str]) -> JobStatus:
    expected = given.get("mtime") if "emulated" in given else given.get("estimated.start_time")
    match letter:
        case "H":
            reason = held(given.get("Hold_Types", ""), given.get("substate", ""), given.get("comment", ""))
        case "W":
            reason, expected = "waiting for its start time", given.get("Execution_Time")
        case _:
            reason = waiting(" ".join(given.get("comment", "").split()))
    hopeless = letter == "Q" and given.get("comment", "").startswith("Can Never Run")
    return JobStatus(JobState.QUEUED, reason, _time(expected), hopeless=hopeless)


def _end(given: Mapping[str, str]) -> tuple[JobState, str]:
    """Return how a job that has ended did so; UNKNOWN where that is not told."""
    comment = given.get("comment", "")
    name = "Exit_status" if "Exit_status" in given else "exit_status"
    try:
        code = int(given[name])
    except (KeyError, ValueError):
        code = None
    if code == _WALLTIME[name] or "exceeded resource walltime" in comment:
        return JobState.TIMEOUT, "its walltime was up"
    if code == _TERMINATED or given.get("substate") == "91" or re.search(r"\bterminated\b", comment):
        return JobState.CANCELLED, "cancelled"
    if code is not None:
        # Torque's codes from -10 on mean other things.
        words = f"exit code {code}" if name == "exit_status" and code <= -10 else signal_or_code(code)
        return (JobState.FAILED, words) if code else (JobState.DONE, "")
    if given["job_state"] == "C":
        return JobState.UNKNOWN, "has ended, and its scheduler does not tell how"
    if given.get("Hold_Types", "n") != "n":
        return JobState.FAILED, "never ran: a job that it had to wait for has failed"
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

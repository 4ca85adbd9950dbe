"""The words of PBS in ours: why a job waits, and how it has ended."""

from __future__ import annotations

import re
import signal

# Of the script, beside those of the command that it becomes; see `pbs_script`.
CODE_NO_COMMAND = 72
CODE_NO_OUTPUT = 74

_HOLDS = {"u": "by the user", "o": "by an operator", "s": "by the system", "p": "for a bad password"}
_RESOURCES = {"ncpus": "processors", "mem": "memory", "ngpus": "GPUs", "host": "host"}
# Comments that have one meaning; the first part of a comment decides.
_WAITING = {
    "Not enough free nodes available": "waiting for free nodes",
    "Not enough total nodes available": "there are fewer nodes",
    "Queue not started": "its queue is stopped",
    "Job would conflict with reservation or top job": "waiting behind jobs of higher priority or reservations",
}
_SHORT = re.compile(r"Insufficient amount of (?:queue |server )?resource: (\S+)\s*(?:\((.*)\))?")
_AMOUNTS = re.compile(r"R: (\S+) A: (\S+) T: (\S+)")
_CODES = {
    CODE_NO_COMMAND: "its Python or its folder does not exist on the node",
    CODE_NO_OUTPUT: "its node cannot write the log: are home folders shared with the nodes, and is there space left?",
    127: "exit code 127: a command was not found",
    -1: "the node could not start it",
    -2: "the node could not start it",
    -3: "the node could not start it",
    -4: "PBS was started again on its node while it ran",
    -8: "the node could not run its script",
    -9: "the node could not create its output",
    -10: "the node does not know its user or group",
    -16: "a hook of the site refused it",
    -17: "a hook of the site refused it",
    -18: "a hook of the site ended it",
    -19: "a hook of the site ended it",
    -20: "its first node was lost",
    -21: "the node refused it for security reasons",
    -22: "a hook of the site failed",
    -24: "used more processors than it had asked for",
    -25: "used more processors than it had asked for",
    -26: "used more memory than it had asked for",
    -27: "used more memory than it had asked for",
    -28: "used more processor time than it had asked for",
    -30: "the node could not join its output files",
}


def waiting(comment: str) -> str:
    """Return why a queued job waits, from its comment.

    Examples
    --------
    >>> waiting("Can Never Run: Insufficient amount of resource: ncpus (R: 100 A: 16 T: 16)")
    'will never start: processors: 100 asked for, there are 16'
    >>> waiting("Not Running: Not enough free nodes available")
    'waiting for free nodes'
    """
    kind, colon, rest = comment.partition(": ")
    if not colon or kind not in ("Can Never Run", "Not Running"):
        return comment or "waiting for the scheduler"
    never = kind == "Can Never Run"
    why = next((words for start, words in _WAITING.items() if rest.startswith(start)), None) or _short(rest, never)
    return f"will never start: {why}" if never else why


def held(kinds: str, substate: str, comment: str = "") -> str:
    """Return why a job is held, from its ``Hold_Types``, its substate and its comment.

    Examples
    --------
    >>> held("s", "20", "job held, too many failed attempts to run")
    'held by the system: too many failed attempts to run'
    """
    # A job that depends on another is held by the system.
    if substate == "22":
        return "waiting for another job"
    by = [words for kind, words in _HOLDS.items() if kind in kinds]
    words = f"held {' and '.join(by)}" if by else "held"
    # Comments of other kinds are older than the hold, or name who holds it.
    why = comment.removeprefix("job held, ")
    return f"{words}: {why}" if "failed" in why else words


def signal_or_code(code: int) -> str:
    """Return how a job ended that had this exit code, other than 0.

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


def _short(rest: str, never: bool) -> str:
    """Return what there is too little of."""
    found = _SHORT.match(rest)
    if found is None:
        return rest
    what = _RESOURCES.get(found[1], found[1])
    amounts = _AMOUNTS.fullmatch(found[2] or "")
    if amounts and never:
        return f"{what}: {amounts[1]} asked for, there are {amounts[3]}"
    if amounts:
        return f"waiting for {what}: {amounts[1]} asked for, {amounts[2]} free of {amounts[3]}"
    detail = f" ({found[2]})" if found[2] else ""
    return f"no node has the {what} asked for{detail}" if never else f"waiting for {what}{detail}"

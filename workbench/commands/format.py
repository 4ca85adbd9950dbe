"""Format results of subcommands as text for a terminal and as HTML for a notebook."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from typing import TYPE_CHECKING, Any

from workbench import hints, positions
from workbench.commands.actions import Gone, Listing, Status, Stopped
from workbench.deploy.display import table
from workbench.errors import from_fields
from workbench.hints import NOTEBOOK
from workbench.text import clock, count, countdown, duration, table_lines

if TYPE_CHECKING:
    from workbench.commands.doctor import CheckResult

_COLUMNS = ("name", "state", "ranks", "MPI", "job", "age", "last event")
_ENDED = ("name", "state", "ended", "after", "ranks", "logs", "reason")


def status_line(status: Status) -> str:
    """Return a cluster's size in one line."""
    return f"cluster {status.name!r} is {status.state}: {status.up} of {status.ranks} ranks"


def status_text(status: Status) -> str:
    """Return a cluster's status with one line per value."""
    return "\n".join(f"{key:<11} {value}" for key, value in _facts(status).items())


def status_html(status: Status) -> str:
    """Return a cluster's status as a table."""
    return table((), _facts(status).items())


def _facts(status: Status) -> dict[str, str]:
    following = status.next and f"{status.next['up']} of {status.next['ranks']} {status.next['state']}"
    return {
        "cluster": status.name,
        "state": status.state,
        "ranks": f"{status.up} of {status.ranks}, {count(status.threads, 'thread')} each",
        **({"next ranks": following} if following else {}),
        "MPI": status.mpi,
        **({"GPUs": status.world["gpus"]} if status.world and status.world["gpus"] else {}),
        "last event": status.message,
        "age": duration(status.age),
        "idle end": f"after {duration(status.idle_timeout)} without clients and tasks",
        **({"walltime": countdown(status.ends)} if status.ends else {}),
        "job": _job(status),
        "address": status.address or "none yet",
        "logs": status.logs,
    }


def _job(status: Status) -> str:
    return f"{_job_and_host(status)}, head is process {status.pid}" if status.headed else _job_and_host(status)


def _job_and_host(status: Status) -> str:
    parts = [status.scheduler, *([f"job {', '.join(status.jobs)}"] if status.jobs else [])]
    if not status.headed:
        return " ".join(parts)
    if status.nodes is None and status.scheduler != "local":  # the number of nodes is the scheduler's
        return f"{' '.join(parts)}, first node {status.host}"
    others = f" and {count(status.nodes - 1, 'other node')}" if status.nodes and status.nodes > 1 else ""
    return f"{' '.join(parts)} on {status.host}{others}"


def listing_text(listing: Listing, place: str = NOTEBOOK) -> str:
    """Return all clusters as a text table, with the notes of a place."""
    running = (
        table_lines([_COLUMNS, *map(_row, listing.clusters)], str.ljust) if listing.clusters else ["no cluster runs"]
    )
    rows = [_ENDED, *(_gone(gone, place) for gone in listing.ended)]
    ended = ["", *table_lines(rows, str.ljust)] if listing.ended else []
    return "\n".join([*running, *_notes(listing, place), *ended])


def listing_html(listing: Listing) -> str:
    """Return all clusters as a table."""
    running = table(_COLUMNS, map(_row, listing.clusters)) if listing.clusters else "<div>no cluster runs</div>"
    notes = "".join(f"<div>{escape(note)}</div>" for note in _notes(listing, NOTEBOOK))
    ended = (_gone(gone, NOTEBOOK) for gone in listing.ended)
    return running + notes + (table(_ENDED, ended) if listing.ended else "")


def _gone(gone: Gone, place: str) -> tuple[str, ...]:
    ran = duration(max(0.0, gone.when - gone.created))
    return gone.name, gone.state, clock(gone.when), ran, str(gone.ranks), gone.logs or "removed", gone.words(place)


def _row(status: Status) -> tuple[str, ...]:
    ranks = f"{status.up} of {status.ranks}"
    return status.name, status.state, ranks, status.mpi, _job_and_host(status), duration(status.age), status.message


def _notes(listing: Listing, place: str) -> list[str]:
    cleaned = [f"{name}: the cluster has ended, and its record was removed" for name in listing.cleaned]
    return [*cleaned, *(f"{broken.name}: {from_fields(broken.error).words(place)}" for broken in listing.broken)]


def where_text(places: Mapping[int, Any], *, stacks: bool) -> str:
    """Return where the ranks are in an SPMD call or in tasks, on request with their stacks."""
    name = next((place["name"] for place in places.values() if place and "name" in place), None)
    runs_tasks = any(place and "task" in place for place in places.values())
    text = (
        f"{name or 'no SPMD call'}: {positions.describe(places)}" if name or runs_tasks else "no SPMD call is running"
    )
    lines = [f"\nrank {rank}:\n{at['stack'].rstrip()}" for rank, at in places.items() if at and at.get("stack")]
    return "\n".join([text, *(lines if stacks else ())])


def stopped_text(stopped: Stopped) -> str:
    """Return which clusters have ended."""
    return "\n".join(f"cluster {name!r} has ended" for name in stopped.stopped) or (
        "no cluster has ended" if stopped.failed else "no cluster runs"
    )


def failed_text(stopped: Stopped, place: str) -> str:
    """Return which clusters could not be stopped, with the errors for a place."""
    return "\n".join(
        f"cluster {failed.name!r} was not stopped: {from_fields(failed.error).text(place)}" for failed in stopped.failed
    )


def finding_text(finding: CheckResult, place: str) -> str:
    """Return a result of the doctor in one line, with the remedy for a place."""
    remedy = f" -> {hints.words(finding.remedy, place)}" if finding.remedy else ""
    return f"{finding.verdict:<8} {finding.check}: {finding.detail}{remedy}"


def findings_summary(findings: Sequence[CheckResult]) -> str:
    """Return the number of results of each verdict."""
    verdicts = [finding.verdict for finding in findings]
    return ", ".join(f"{verdicts.count(verdict)} {verdict}" for verdict in ("ok", "warning", "failed"))

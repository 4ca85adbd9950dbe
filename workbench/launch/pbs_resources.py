"""What a job of PBS asks for, of what the user gave and the site's settings."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

from workbench.errors import InvalidRequest
from workbench.hints import Option
from workbench.launch.jobqueue import Site, fill
from workbench.launch.options import Resources
from workbench.launch.pbs_script import GEOMETRY, OURS, Flavour, directives, skipped

# Directives that have options of their own, by the field of `Resources`; the options are called as the fields.
_FIELDS = {"queue": "-q", "account": "-A", "walltime": "-l walltime"}
# With them the job would not be one job that runs by itself, or qsub would not return its id.
_BREAKING = frozenset({"-J", "-t", "-I", "-X", "-z", "-C", "-G", "-W block"})
_RESERVATION = re.compile(r"[RSM]\d+(\.\S+)?", re.ASCII)
_CHUNK_RESOURCES = re.compile(r"[A-Za-z]\w*=[^\s:=+,]+(:[A-Za-z]\w*=[^\s:=+,]+)*", re.ASCII)
_WORD = re.compile(r"[A-Za-z][\w.-]*", re.ASCII)


def resolve(resources: Resources, site: Site, flavour: Flavour, *, ranks: int) -> Resources:
    """Return resources that are complete.

    Parameters
    ----------
    resources
        What was given; if it was settled before it stays as it is.
    site
        The site's settings, for what `resources` does not have.
    flavour
        The PBS that answers.
    ranks
        Size of the world.

    Raises
    ------
    InvalidRequest
        If PBS cannot express something of it.

    Notes
    -----
    A directive of the site gives way to whatever sets the same: name, output and geometry of the job always do,
    queue, account and walltime where they were given. Of its ``resource-spec`` the resources of chunks that we do
    not set (``model=...``) are kept, as the constraint; the rest is our geometry.
    """
    given = [line for line in resources.extra if line not in site.extra]
    for line in given:
        _check_extra(line)
    left_out = skipped(site)
    for field, option in _FIELDS.items():
        if getattr(resources, field) is not None and option in left_out:
            raise InvalidRequest(
                f"--{field}: the site's settings leave {option} out of every job (jobqueue.{site.section}."
                "job-directives-skip).",
                option=field,
                hint="Leave it out as well, or change these settings.",
            )
    _check_reservation(resources, flavour)
    whole = fill(_on_one_node(resources, flavour), _without_queue(site, resources), ranks=ranks, minute=1)
    unset: dict[str, Any] = {field: None for field, option in _FIELDS.items() if option in left_out}
    whole = replace(whole, **unset)
    if whole.constraint is None and flavour is Flavour.PRO:
        whole = replace(whole, constraint=_site_constraint(site))
    _check_constraint(whole.constraint, flavour)
    if whole.gpus_per_rank and flavour is Flavour.EMULATION:
        raise InvalidRequest(
            "--gpus-per-rank: SLURM's emulation of PBS drops GPUs silently.",
            option="gpus_per_rank",
            given=whole.gpus_per_rank,
            hint=("Use ", Option("scheduler"), " slurm."),
        )
    for field in ("queue", "account", "constraint", "reservation"):
        value = getattr(whole, field)
        if value is not None and (not value or re.search(r"[\s\"'\\]", value)):
            raise InvalidRequest(option=field, given=value, allowed="a name without blanks and quotes")
    return replace(whole, extra=tuple(dict.fromkeys((*_site_extra(site, whole, left_out), *given))))


def _on_one_node(resources: Resources, flavour: Flavour) -> Resources:
    # Where a chunk is a whole node, a job of which nothing is said is meant for one.
    said = flavour is Flavour.PRO or resources.nodes is not None or resources.ranks_per_node is not None
    return resources if said else replace(resources, nodes=1)


def _without_queue(site: Site, resources: Resources) -> Site:
    # A reservation is a queue of its own.
    return site if resources.reservation is None else replace(site, queue=None)


def _check_extra(line: str) -> None:
    if not line.startswith("-") or "\n" in line:
        allowed = "what would stand behind #PBS on one line, e.g. --extra '-m n'"
        raise InvalidRequest(option="extra", given=line, allowed=allowed)
    found = directives(line)
    for field, option in _FIELDS.items():
        if option in found:
            raise InvalidRequest(f"--extra {line!r}: use --{field} instead of {option}.", option="extra", given=line)
    if taken := sorted(found & (OURS | _BREAKING)):
        raise InvalidRequest(
            f"--extra {line!r}: {taken[0]} is not free, for nodes, ranks, threads, memory, name and output of a "
            "cluster's job follow from its other options.",
            option="extra",
            given=line,
            hint="Leave it out.",
        )


def _site_extra(site: Site, whole: Resources, left_out: set[str]) -> list[str]:
    """Return the directives of a site that go into the script."""
    taken = OURS | left_out | {option for field, option in _FIELDS.items() if getattr(whole, field) is not None}
    if whole.reservation is not None:
        taken |= {"-q"}
    for line in site.extra:
        if bad := directives(line) & _BREAKING:
            raise InvalidRequest(
                f"the setting jobqueue.{site.section}.job-extra-directives {line!r}: a cluster is one job that runs by "
                f"itself, and {min(bad)} makes another thing of it.",
                option=f"jobqueue.{site.section}.job-extra-directives",
                given=line,
                hint="Take it out.",
            )
    return [line for line in site.extra if not directives(line) & taken]


def _check_reservation(resources: Resources, flavour: Flavour) -> None:
    if resources.reservation is None:
        return
    if flavour is not Flavour.PRO:
        raise InvalidRequest(
            f"--reservation {resources.reservation!r}: {flavour.value} cannot express it.",
            option="reservation",
            given=resources.reservation,
            hint="Leave it out.",
        )
    if not _RESERVATION.fullmatch(resources.reservation):
        raise InvalidRequest(
            f"--reservation {resources.reservation!r}: reservations of PBS are named like R123; pbs_rstat lists them.",
            option="reservation",
            given=resources.reservation,
        )
    if resources.queue is not None:
        raise InvalidRequest(
            f"--reservation {resources.reservation} with --queue {resources.queue}: a reservation of PBS is a queue "
            "of its own.",
            option="reservation",
            given=resources.reservation,
            hint="Give one of them.",
        )


def _check_constraint(constraint: str | None, flavour: Flavour) -> None:
    if constraint is None:
        return
    pattern, example = (_CHUNK_RESOURCES, "model=milan") if flavour is Flavour.PRO else (_WORD, "bigmem")
    names = {f"-l {part.partition('=')[0]}" for part in constraint.split(":")}
    if not pattern.fullmatch(constraint) or names & GEOMETRY:
        raise InvalidRequest(
            f"--constraint {constraint!r}: {flavour.value} takes what a node has to have, as {example}, and nodes, "
            "ranks, threads, memory and GPUs by their own options.",
            option="constraint",
            given=constraint,
        )


def _site_constraint(site: Site) -> str | None:
    found = re.search(r"select=([^\s,+]*)", site.resource_spec or "")
    parts = [part for part in found[1].split(":") if "=" in part] if found else []
    return ":".join(part for part in parts if f"-l {part.partition('=')[0]}" not in GEOMETRY) or None

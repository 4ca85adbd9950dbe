"""The resources of a PBS job, from the user's request and the site's settings."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from workbench.errors import InvalidRequest
from workbench.hints import Option
from workbench.launch.jobqueue import Site, breaking, fill, invalid, scheduler_bytes
from workbench.launch.options import Resources
from workbench.launch.pbs_script import GEOMETRY, OURS, Flavor, directives, parts, skipped

# Directives for which the workbench has an option, by the field of `Resources`, which has the name of the option.
_FIELDS = {"queue": "-q", "account": "-A", "walltime": "-l walltime"}
# With these directives the job would not be one job in the background, or qsub would not return its id.
_BREAKING = frozenset({"-J", "-t", "-I", "-X", "-z", "-C", "-G", "-W block"})
# The specification of chunks, of which `_site_constraint` keeps a part.
_CHUNKS = frozenset({"-l select", "-l nodes"})
_RESERVATION = re.compile(r"[RSM]\d+(\.\S+)?", re.ASCII)
_CHUNK_RESOURCES = re.compile(r"[A-Za-z]\w*=[^\s:=+,]+(:[A-Za-z]\w*=[^\s:=+,]+)*", re.ASCII)
_WORD = re.compile(r"[A-Za-z][\w.-]*", re.ASCII)


def resolve(resources: Resources, site: Site, flavor: Flavor, *, ranks: int) -> Resources:
    """Return the complete resources of a job.

    Parameters
    ----------
    resources
        The user's request; complete resources stay unchanged.
    site
        The site's settings as of `by_directives`, for options that `resources` does not have.
    flavor
        Flavor of the PBS.
    ranks
        Size of the world.

    Raises
    ------
    InvalidRequest
        If PBS cannot express an option.

    Notes
    -----
    A directive of the site is omitted if another source sets the same option: always for name, output and geometry of
    the job, and for queue, account and walltime if the user has set them. The constraint defaults to the resources of
    the chunk in ``resource-spec`` that are not part of the geometry (``model=...``).
    """
    user_extra = [line for line in resources.extra if line not in site.extra]
    for line in user_extra:
        _check_extra(line)
    removed = skipped(site.skip)
    for field, option in _FIELDS.items():
        if getattr(resources, field) is not None and option in removed:
            raise InvalidRequest(
                f"--{field} has no effect: the settings of the site remove {option} from every job "
                f"(jobqueue.{site.section}.job-directives-skip).",
                option=field,
                hint="Omit the option, or change these settings.",
            )
    _check_reservation(resources, flavor)
    complete = fill(_on_one_node(resources, flavor), _without_queue(site, resources), ranks=ranks, minute=1)
    unset: dict[str, Any] = {field: None for field, option in _FIELDS.items() if option in removed}
    complete = replace(complete, **unset)
    if complete.constraint is None and flavor is Flavor.PRO:
        complete = replace(complete, constraint=_site_constraint(site))
    _check_constraint(complete.constraint, flavor)
    if complete.gpus_per_rank and flavor is Flavor.EMULATION:
        raise InvalidRequest(
            "--gpus-per-rank is not possible: Slurm's emulation of PBS ignores requests of GPUs without an error.",
            option="gpus_per_rank",
            given=complete.gpus_per_rank,
            hint=("Use ", Option("scheduler"), " slurm."),
        )
    for field in ("queue", "account", "constraint", "reservation"):
        value = getattr(complete, field)
        if value is not None and (not value or re.search(r"[\s\"'\\]", value)):
            raise InvalidRequest(option=field, given=value, allowed="a name without blanks and quotes")
    site_extra = (line for line in site.extra if not _why_left_out(line))
    return replace(complete, extra=tuple(dict.fromkeys((*site_extra, *user_extra))))


def by_directives(site: Site, environment: Mapping[str, str]) -> Site:
    """Return the settings of a site, after directives and the specification of resources have replaced other settings.

    Parameters
    ----------
    site
        The settings as read.
    environment
        The user's variables: ``PBS_ACCOUNT`` is the account if the site has none, as in dask-jobqueue.

    Raises
    ------
    InvalidRequest
        If a directive would change the kind of job, or the specification of resources cannot be read.
    """
    for line in site.extra:
        if kinds := directives(line) & _BREAKING:
            why = f"{min(kinds)} changes the kind of job, and a cluster is one job that runs in the background"
            raise breaking(site.section, line, why)
    known = OURS | set(_FIELDS.values())
    try:
        specified = parts(f"-l {site.resource_spec}") if site.resource_spec else []
    except ValueError as error:
        allowed = f"resources in the syntax of qsub -l; this text cannot be read: {error}"
        raise invalid(site.section, "resource-spec", site.resource_spec, allowed) from None
    lines = [part for part in specified if not directives(part) & _CHUNKS]
    for line in site.extra:
        # Other directives stay as they are written.
        lines += parts(line) if directives(line) & known else [line]
    memory = re.search(r"select=(?:1:)?(?:[^\d\s,+][^\s,+:]*:)*mem=(\w+)", site.resource_spec or "")
    account = site.account or environment.get("PBS_ACCOUNT")
    site = replace(site, memory=(scheduler_bytes(memory[1]) if memory else None) or site.memory, account=account)
    for field, option in _FIELDS.items():
        if found := [line for line in lines if option in directives(line)]:
            value: Any = " ".join(shlex.split(found[-1])[1:]).removeprefix("walltime=")
            lines = [line for line in lines if line not in found]
            # What the site skips are the lines of the other settings.
            skip = tuple(entry for entry in site.skip if option not in skipped([entry]))
            site = replace(site, **{field: value}, skip=skip)
    return replace(site, extra=tuple(lines))


def left_out(site: Site) -> list[str]:
    """Return in sentences which directives of the site, as of `by_directives`, a job does not have, and why."""
    where = f"of jobqueue.{site.section}"
    reasons = {line: _why_left_out(line) for line in site.extra}
    chunk, plus, others = _chunk(site).partition("+")
    odd = [part for part in chunk.split(":")[1:] if "=" not in part] + ([f"+{others}"] if plus else [])
    return [
        *(f"not used: {line} {where}.job-extra-directives, because {why}" for line, why in reasons.items() if why),
        *(f"not used: {part} {where}.resource-spec, because all chunks of a job are alike, with NAME=VALUE"
          for part in odd),
    ]  # fmt: skip


def _why_left_out(line: str) -> str:
    """Return why a job does not have a directive of the site; empty if the job has the directive."""
    found = directives(line) & OURS
    return f"the {'options of the start set' if found & GEOMETRY else 'workbench sets'} {min(found)}" if found else ""


def _on_one_node(resources: Resources, flavor: Flavor) -> Resources:
    # In Torque and the emulation a chunk is a complete node, so the default has to be one node.
    has_geometry = flavor is Flavor.PRO or resources.nodes is not None or resources.ranks_per_node is not None
    return resources if has_geometry else replace(resources, nodes=1)


def _without_queue(site: Site, resources: Resources) -> Site:
    # A reservation of PBS is a queue.
    return site if resources.reservation is None else replace(site, queue=None)


def _check_extra(line: str) -> None:
    if not line.startswith("-") or "\n" in line:
        allowed = "the text after #PBS on one line, e.g. --extra '-m n'"
        raise InvalidRequest(option="extra", given=line, allowed=allowed)
    options = directives(line)
    for field, option in _FIELDS.items():
        if option in options:
            raise InvalidRequest(
                f"--extra {line!r} is not valid: use --{field} instead of {option}.", option="extra", given=line
            )
    if reserved := sorted(options & (OURS | _BREAKING)):
        raise InvalidRequest(
            f"--extra {line!r}: {reserved[0]} is not valid here, because the workbench sets nodes, ranks, threads, "
            "memory, name and output of the job from its other options.",
            option="extra",
            given=line,
            hint="Omit this directive.",
        )


def _check_reservation(resources: Resources, flavor: Flavor) -> None:
    if resources.reservation is None:
        return
    if flavor is not Flavor.PRO:
        raise InvalidRequest(
            f"--reservation {resources.reservation!r} is not possible: {flavor.value} has no reservations.",
            option="reservation",
            given=resources.reservation,
            hint="Omit the option.",
        )
    if not _RESERVATION.fullmatch(resources.reservation):
        raise InvalidRequest(
            f"--reservation {resources.reservation!r} is not valid: reservations of PBS have names in the form R123. "
            "pbs_rstat lists the reservations.",
            option="reservation",
            given=resources.reservation,
        )
    if resources.queue is not None:
        raise InvalidRequest(
            f"--reservation {resources.reservation} with --queue {resources.queue} is not valid: a reservation of PBS "
            "is a queue.",
            option="reservation",
            given=resources.reservation,
            hint="Pass only one of these options.",
        )


def _check_constraint(constraint: str | None, flavor: Flavor) -> None:
    if constraint is None:
        return
    pattern, example = (_CHUNK_RESOURCES, "model=milan") if flavor is Flavor.PRO else (_WORD, "bigmem")
    names = {f"-l {part.partition('=')[0]}" for part in constraint.split(":")}
    if not pattern.fullmatch(constraint) or names & GEOMETRY:
        raise InvalidRequest(
            f"--constraint {constraint!r} is not valid: {flavor.value} needs a property of nodes, for example "
            f"{example}. Nodes, ranks, threads, memory and GPUs have separate options.",
            option="constraint",
            given=constraint,
        )


def _site_constraint(site: Site) -> str | None:
    found = [part for part in _chunk(site).partition("+")[0].split(":") if "=" in part]
    return ":".join(part for part in found if f"-l {part.partition('=')[0]}" not in GEOMETRY) or None


def _chunk(site: Site) -> str:
    match = re.search(r"select=([^\s,]*)", site.resource_spec or "")
    return match[1] if match else ""

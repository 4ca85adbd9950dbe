"""The resources of a Slurm job, from the user's request, the user's environment and the site's settings."""

from __future__ import annotations

import itertools
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from workbench.errors import InvalidRequest, named
from workbench.launch.jobqueue import Site, breaking, fill, invalid
from workbench.launch.options import Resources
from workbench.launch.slurm_script import MEMORY, OPTIONS, OURS, option, quoted, same
from workbench.launch.walltime import UNLIMITED

# One argument of sbatch, with its quotes.
_WORD = re.compile(r"""(?:[^\s"'\\]|\\.|"(?:\\.|[^"\\])*"|'[^']*')+""")
# With these directives the job would be several jobs, or the job of a cluster that the workbench does not query.
_BREAKING = ("--array", "--clusters")
# Variables of sbatch, which have priority over the directives of a script.
_VARIABLES = {
    "queue": "SBATCH_PARTITION",
    "account": "SBATCH_ACCOUNT",
    "constraint": "SBATCH_CONSTRAINT",
    "reservation": "SBATCH_RESERVATION",
}


def resolve(
    resources: Resources, site: Site, environment: Mapping[str, str], *, ranks: int, memory: int | None
) -> Resources:
    """Return the complete resources of a job.

    Parameters
    ----------
    resources
        The user's request; complete resources stay unchanged.
    site
        The site's settings as of `by_directives`, for options that neither `resources` nor `environment` has.
    environment
        The user's variables, for example ``SBATCH_PARTITION``.
    ranks
        Size of the world.
    memory
        Bytes per rank; None: no request.

    Raises
    ------
    InvalidRequest
        If an option is not valid.

    Notes
    -----
    A directive of the site is omitted if another source sets the same option: always for name, output, signal and
    geometry of the job, and for queue, account, memory and similar options if the user has set them. A directive has
    priority over the other settings of the site.
    """
    user_extra = [line for line in resources.extra if line not in site.extra]
    for line in user_extra:
        _check_extra(line)
    _check_skipped(resources, memory, site)
    from_environment: dict[str, Any] = {
        field: environment[variable]
        for field, variable in _VARIABLES.items()
        if getattr(resources, field) is None and environment.get(variable)
    }
    complete = fill(replace(resources, **from_environment), site, ranks=ranks, minute=60)
    skipped: dict[str, Any] = {field: None for name, field in OPTIONS.items() if _is_skipped(name, site)}
    complete = replace(complete, **skipped)
    for field in OPTIONS.values():
        _check_value(field, getattr(complete, field))
    site_extra = (line for line in site.extra if not _why_left_out(line, complete, memory))
    return replace(complete, extra=tuple(dict.fromkeys((*site_extra, *user_extra))))


def by_directives(site: Site) -> Site:
    """Return the settings of a site with one option per directive, after directives have replaced other settings.

    Raises
    ------
    InvalidRequest
        If a directive cannot be read, or would change the kind of job.
    """
    lines = [part for line in site.extra for part in _parts(line, site.section)]
    for line in lines:
        if option(line) in _BREAKING:
            why = "a cluster is one job of the system on which the job is submitted"
            raise breaking(site.section, line, why)
    site = replace(site, extra=tuple(lines))
    fields = {name: field for name, field in OPTIONS.items() if field in ("walltime", "queue", "account")}
    for name, field in (*fields.items(), (MEMORY, "memory")):
        found = [line for line in lines if same(option(line), name)]
        if found:
            # What the site skips are the lines of the other settings.
            skip = tuple(line for line in site.skip if not same(name, option(line)))
            value: Any = None if field == "memory" else _value(found[-1])
            left = tuple(line for line in site.extra if field == "memory" or line not in found)
            site = replace(site, **{field: value}, skip=skip, extra=left)
    if site.walltime is not None and site.walltime.strip().lower() in UNLIMITED:
        unlimited = () if _is_skipped("--time", site) else ("--time=UNLIMITED",)
        site = replace(site, walltime=None, extra=(*site.extra, *unlimited))
    return site


def left_out(site: Site, complete: Resources, memory: int | None) -> list[str]:
    """Return in sentences which directives of the site, as of `by_directives`, a job does not have, and why."""
    reasons = {line: _why_left_out(line, complete, memory) for line in site.extra}
    return [
        f"not used: {line} of jobqueue.{site.section}.job-extra-directives, because {reason}"
        for line, reason in reasons.items()
        if reason
    ]


def _why_left_out(line: str, complete: Resources, memory: int | None) -> str:
    """Return why a job does not have a directive of the site; empty if the job has the directive."""
    name = option(line)
    if instead := OURS.get(name):
        return f"{instead} of the start sets {name}"
    if name in OURS:
        return f"the workbench sets {name}"
    if same(name, MEMORY) and memory is not None:
        return "--memory is given"
    field = OPTIONS.get(name)
    return f"--{named(field)} is given" if field and getattr(complete, field) is not None else ""


def _parts(line: str, section: str) -> list[str]:
    """Return the options in a directive, each with its value."""
    words = _WORD.findall(line)
    if "#" in (first := [word[0] for word in words]):
        words = words[: first.index("#")]
    starts = [index for index, word in enumerate(words) if re.match(r"--?[A-Za-z]", word)]
    if not line.isprintable() or starts[:1] != [0] or "".join(_WORD.sub("", line).split()):
        raise invalid(section, "job-extra-directives", line, "options of sbatch in each item of the list")
    return [" ".join(words[start:end]) for start, end in itertools.pairwise([*starts, len(words)])]


def _value(line: str) -> str:
    """Return the value of an option."""
    words = shlex.split(line)
    value = words[0].partition("=")[2] if words[0].startswith("--") else words[0][2:]
    return value or " ".join(words[1:])


def _check_extra(line: str) -> None:
    if _options(line) != 1:
        raise InvalidRequest(
            option="extra", given=line, allowed="one option of sbatch on one line, e.g. --extra '--qos=high'"
        )
    name = _unabbreviated(option(line))
    instead = "--memory" if same(name, MEMORY) else OURS.get(name)
    if field := OPTIONS.get(name):
        instead = f"--{named(field)}"
    if instead == "":
        raise InvalidRequest(
            f"--extra {line!r} is not valid: the workbench sets {name}.",
            option="extra",
            given=line,
            hint="Omit this directive.",
        )
    if instead is not None:
        raise InvalidRequest(
            f"--extra {line!r} is not valid: the workbench sets {name}.",
            option="extra",
            given=line,
            hint=f"Use {instead} of the workbench, outside of --extra.",
        )


def _unabbreviated(name: str) -> str:
    """Return the workbench's option that sbatch reads for an abbreviated name, or the name itself."""
    ours = (*OURS, *OPTIONS, MEMORY)
    full_name = next((known for known in ours if name.startswith("--") and known.startswith(name)), name)
    return name if name in ours else full_name


def _check_skipped(resources: Resources, memory: int | None, site: Site) -> None:
    for name, field in (*OPTIONS.items(), (MEMORY, "memory")):
        if (memory if field == "memory" else getattr(resources, field)) is not None and _is_skipped(name, site):
            raise InvalidRequest(
                f"--{named(field)} has no effect: the settings of the site remove {name} from every job "
                f"(jobqueue.{site.section}.job-directives-skip).",
                option=field,
                hint="Omit the option, or change these settings.",
            )


def _is_skipped(name: str, site: Site) -> bool:
    return any(same(name, option(line)) for line in site.skip)


def _check_value(field: str, value: Any) -> None:
    try:
        quoted("" if value is None else str(value))
    except InvalidRequest as error:
        raise error.converted(InvalidRequest, f"--{named(field)} {error.message}", option=field, given=value) from None


def _options(line: str) -> int:
    """Return the number of options in a directive; 0 if the directive cannot be read."""
    try:
        words: Sequence[str] = shlex.split(line) if line.isprintable() else ()
    except ValueError:
        return 0
    return sum(word.startswith("-") for word in words) if words and words[0].startswith("-") else 0

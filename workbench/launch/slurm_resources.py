"""The resources of a Slurm job, from the user's request, the user's environment and the site's settings."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from workbench.errors import InvalidRequest, named
from workbench.launch.jobqueue import Site, fill
from workbench.launch.options import Resources
from workbench.launch.slurm_script import MEMORY, OPTIONS, OURS, option, quoted, same

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
        The site's settings, for options that neither `resources` nor `environment` has.
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
    geometry of the job, and for queue, account and similar options if the user has set them.
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
    return replace(complete, extra=tuple(dict.fromkeys((*_site_extra(site, complete, memory), *user_extra))))


def _site_extra(site: Site, complete: Resources, memory: int | None) -> list[str]:
    taken = {*OURS, *(name for name, field in OPTIONS.items() if getattr(complete, field) is not None)}
    if memory is not None or site.memory is not None:
        taken.add(MEMORY)
    for line in site.extra:
        if _options(line) != 1:
            raise InvalidRequest(
                option=f"jobqueue.{site.section}.job-extra-directives",
                given=line,
                allowed="one option of sbatch in each item of the list",
            )
    return [line for line in site.extra if not any(same(option(line), name) for name in taken)]


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
            f"--extra {line!r} is not valid: the workbench has an option for {name}.",
            option="extra",
            given=line,
            hint=f"Use the option {instead} of the workbench instead, outside of --extra.",
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

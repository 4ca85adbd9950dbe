"""What a job of SLURM asks for, of what the user gave, the user's environment and the site's settings."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from workbench.errors import InvalidRequest, named
from workbench.launch.jobqueue import Site, fill
from workbench.launch.options import Resources
from workbench.launch.slurm_script import MEMORY, OPTIONS, OURS, option, quoted, same

# What a user may have set for sbatch, which takes it ahead of what a script says.
_PREFERRED = {
    "queue": "SBATCH_PARTITION",
    "account": "SBATCH_ACCOUNT",
    "constraint": "SBATCH_CONSTRAINT",
    "reservation": "SBATCH_RESERVATION",
}


def resolve(
    resources: Resources, site: Site, environment: Mapping[str, str], *, ranks: int, memory: int | None
) -> Resources:
    """Return resources that are complete.

    Parameters
    ----------
    resources
        What was given; if it was settled before it stays as it is.
    site
        The site's settings, for what neither `resources` nor `environment` has.
    environment
        The user's variables, ``SBATCH_PARTITION`` and its like.
    ranks
        Size of the world.
    memory
        Bytes of a rank; None: not asked for.

    Raises
    ------
    InvalidRequest
        If something of it cannot be.

    Notes
    -----
    A directive of the site gives way to whatever sets the same: name, output, signal and geometry of the job always
    do, queue, account and the like where they were given.
    """
    given = [line for line in resources.extra if line not in site.extra]
    for line in given:
        _check_extra(line)
    _check_skipped(resources, memory, site)
    preferred: dict[str, Any] = {
        field: environment[variable]
        for field, variable in _PREFERRED.items()
        if getattr(resources, field) is None and environment.get(variable)
    }
    whole = fill(replace(resources, **preferred), site, ranks=ranks, minute=60)
    skipped: dict[str, Any] = {field: None for name, field in OPTIONS.items() if _is_skipped(name, site)}
    whole = replace(whole, **skipped)
    for field in OPTIONS.values():
        _check_value(field, getattr(whole, field))
    return replace(whole, extra=tuple(dict.fromkeys((*_extra_of(site, whole, memory), *given))))


def _extra_of(site: Site, whole: Resources, memory: int | None) -> list[str]:
    taken = {*OURS, *(name for name, field in OPTIONS.items() if getattr(whole, field) is not None)}
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
            f"--extra {line!r}: the workbench decides on {name} itself.",
            option="extra",
            given=line,
            hint="Leave it out.",
        )
    if instead is not None:
        raise InvalidRequest(
            f"--extra {line!r}: {name} is an option of the workbench.",
            option="extra",
            given=line,
            hint=f"Use {instead} of the workbench for that, outside of --extra.",
        )


def _unabbreviated(name: str) -> str:
    """Return the option of ours that sbatch takes a shortened one for, or the name as it is."""
    ours = (*OURS, *OPTIONS, MEMORY)
    longer = next((known for known in ours if name.startswith("--") and known.startswith(name)), name)
    return name if name in ours else longer


def _check_skipped(resources: Resources, memory: int | None, site: Site) -> None:
    for name, field in (*OPTIONS.items(), (MEMORY, "memory")):
        if (memory if field == "memory" else getattr(resources, field)) is not None and _is_skipped(name, site):
            raise InvalidRequest(
                f"--{named(field)}: the site's settings leave {name} out of every job "
                f"(jobqueue.{site.section}.job-directives-skip).",
                option=field,
                hint="Leave it out as well, or change these settings.",
            )


def _is_skipped(name: str, site: Site) -> bool:
    return any(same(name, option(line)) for line in site.skip)


def _check_value(asked: str, value: Any) -> None:
    try:
        quoted("" if value is None else str(value))
    except InvalidRequest as error:
        raise error.retold(InvalidRequest, f"--{named(asked)} {error.message}", option=asked, given=value) from None


def _options(line: str) -> int:
    """Return how many options a directive has; none where it cannot be read."""
    try:
        words: Sequence[str] = shlex.split(line) if line.isprintable() else ()
    except ValueError:
        return 0
    return sum(word.startswith("-") for word in words) if words and words[0].startswith("-") else 0

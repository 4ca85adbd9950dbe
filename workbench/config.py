"""Settings of the workbench, in Dask's configuration under ``workbench``.

The defaults are in ``workbench.yaml`` beside this file; settings are read when they are used, never at import.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

from workbench.errors import InvalidRequest, WorkbenchError, closest

__version__ = "0.1.0"
"""Version of the workbench."""

CHOICES = {
    "scheduler": ("auto", "local", "here", "slurm", "pbs"),
    "mpi.launcher": ("auto", "srun", "mpiexec"),
    "ml.engine": ("auto", "mpi", "dask", "local"),
}
"""Valid values of the settings that have a list of them."""
# The longest time that a lock accepts is not much longer.
_MAX_SECONDS = 1e9


@cache
def _register_defaults() -> dict[str, Any]:
    import dask
    import yaml

    with open(Path(__file__).with_name("workbench.yaml"), encoding="utf-8") as file:
        defaults: dict[str, Any] = yaml.safe_load(file)
    dask.config.update_defaults(defaults)
    return defaults


@contextmanager
def unreadable_file_in_words() -> Iterator[None]:
    """Raise `InvalidRequest` in place of Dask's error for a file of settings that is not YAML.

    The first import of Dask, which reads the files, must be inside.
    """
    try:
        yield
    except ValueError as error:
        text = " ".join(str(error).split())
        if isinstance(error, WorkbenchError) or not text.startswith("A dask config file"):
            raise
        raise InvalidRequest(f"{text}.", hint="Repair this file, or move the file away.") from None


def get(key: str) -> Any:
    """Return the setting ``workbench.<key>``.

    Parameters
    ----------
    key
        Dotted name below ``workbench``, for instance ``"world.restarts"``.

    Raises
    ------
    KeyError
        If the setting does not exist.
    """
    import dask

    # The end of a `with dask.config.set(...)` around the first use removes the defaults that were set within it.
    default = dask.config.get(f"workbench.{key}", config=_register_defaults())
    return dask.config.get(f"workbench.{key}", default)


def check() -> None:
    """Check the names and values of all settings below ``workbench``.

    Raises
    ------
    InvalidRequest
        If a setting does not exist, or has a value of another kind than its default.
    """
    import dask

    _check_sections()
    known = _flat(_register_defaults())
    for name, given in _flat(dask.config.config).items():
        if name not in known and given is not None:  # None is an empty section
            close = closest(name, known)
            raise InvalidRequest(
                f"the setting workbench.{name}, from {_origin(name)}, does not exist.",
                hint=f"Did you mean workbench.{close}?" if close else "Remove this setting.",
            )
    for name, default in known.items():
        try:
            _reader(default)(name)
        except InvalidRequest as error:
            where = f" The value is from {_origin(name)}."
            raise error.converted(InvalidRequest, error.message, hint=(*error.hint, where)) from None


def _check_sections() -> None:
    """Check that no section is set to a value: the merge with the defaults removes this value without an error."""
    import dask

    with unreadable_file_in_words():
        files = dask.config.collect_yaml(dask.config.paths, return_paths=True)
        sources = [(f"the file {path}", settings) for path, settings in files]
    sources += [("", dask.config.collect_env()), ("dask.config.set", dask.config.config)]
    defaults = _register_defaults()
    below = {f"workbench.{name}": value for name, value in defaults["workbench"].items() if isinstance(value, Mapping)}
    for section, names in {"workbench": defaults["workbench"], **below}.items():
        for origin, settings in sources:
            given = dask.config.get(section, None, config=dict(settings))
            if not isinstance(given, Mapping | None):
                variable = f"the variable DASK_{section.replace('.', '__').upper()}"
                raise InvalidRequest(
                    f"{section} {given!r}, from {origin or variable}, is not valid: it is a section of settings.",
                    option=section,
                    given=given,
                    hint=f"Remove this value, or set a setting of the section, e.g. {section}.{min(names)}.",
                )


def _reader(default: Any) -> Callable[[str], Any]:
    """Return the function that checks the values of a setting with this default."""
    kinds: dict[type, Callable[[str], Any]] = {bool: switch, int: whole, list: arguments}
    if isinstance(default, str) and any(map(str.isdigit, default)):
        return size if default.endswith("B") else seconds
    return kinds.get(type(default), text)


def _flat(settings: Mapping[str, Any], above: str = "workbench") -> dict[str, Any]:
    """Return the settings below a section, by their dotted names."""
    flat: dict[str, Any] = {}
    for key, value in (settings.get(above) or {}).items():
        name = key.replace("_", "-")
        below = _flat({name: value}, name) if isinstance(value, Mapping) else {"": value}
        flat |= {f"{name}.{last}".rstrip("."): item for last, item in below.items()}
    return flat


def _origin(name: str) -> str:
    """Return the place where a setting is set."""
    import dask

    variable = f"DASK_WORKBENCH__{name.replace('.', '__').replace('-', '_').upper()}"
    files = dask.config.collect_yaml(dask.config.paths, return_paths=True)
    paths = [f"the file {path}" for path, settings in files if name in _flat(settings)]
    return f"the variable {variable}" if variable in os.environ else next(reversed(paths), "dask.config.set")


def seconds(key: str) -> float:
    """Return the setting ``workbench.<key>``, a time span such as ``"1 hour"``, in seconds.

    Raises
    ------
    InvalidRequest
        If the user has set it to something else.
    """
    return time_span(f"workbench.{key}", get(key))


def size(key: str) -> int:
    """Return the setting ``workbench.<key>``, a size such as ``"256 KiB"``, in bytes.

    Raises
    ------
    InvalidRequest
        If the user has set it to something else.
    """
    from dask.utils import parse_bytes

    number = parse_positive(get(key), parse_bytes)
    if number is None:
        raise InvalidRequest(option=f"workbench.{key}", given=get(key), allowed="a size above zero, e.g. 256 KiB")
    return int(number)


def whole(key: str) -> int:
    """Return the setting ``workbench.<key>``, a whole number.

    Raises
    ------
    InvalidRequest
        If the user has set it to something else than a whole number from 0 on.
    """
    given = get(key)
    if not str(given).isdecimal():
        raise InvalidRequest(option=f"workbench.{key}", given=given, allowed="a whole number from 0 on, e.g. 3")
    return int(given)


def arguments(key: str) -> list[str]:
    """Return the setting ``workbench.<key>``, arguments of a command.

    Raises
    ------
    InvalidRequest
        If the user has set it to something else than a list of texts.
    """
    given = get(key)
    if not isinstance(given, list | tuple) or not all(isinstance(item, str) for item in given):
        allowed = "a list of texts with one argument per item, e.g. ['--verbose', '--report-bindings']"
        raise InvalidRequest(option=f"workbench.{key}", given=given, allowed=allowed)
    return list(given)


def switch(key: str) -> bool:
    """Return the setting ``workbench.<key>``, true or false, or 1 or 0 as in variables.

    Raises
    ------
    InvalidRequest
        If the user has set it to something else.
    """
    given = get(key)
    if given not in (True, False):  # equal to 1 and 0
        raise InvalidRequest(option=f"workbench.{key}", given=given, allowed="true or false")
    return bool(given)


def text(key: str) -> str | None:
    """Return the setting ``workbench.<key>``, a text, which is one of `CHOICES` if these are listed.

    Raises
    ------
    InvalidRequest
        If the user has set it to something else.
    """
    given = get(key)
    if given not in CHOICES[key] if key in CHOICES else not isinstance(given, str | None):
        raise InvalidRequest(option=f"workbench.{key}", given=given, allowed=CHOICES.get(key, "a text"))
    return None if given is None else str(given)


def time_span(option: str, given: Any) -> float:
    """Return the time span that was given for an option, in seconds.

    Raises
    ------
    InvalidRequest
        If `given` is not a time above zero, or is too long for clocks and locks.
    """
    from dask.utils import parse_timedelta

    number = parse_positive(given, parse_timedelta)
    if number is None:
        allowed = "a time above zero, in seconds or as '5 minutes'"
        raise InvalidRequest(option=option, given=given, allowed=allowed)
    if number > _MAX_SECONDS:
        allowed = f"a time up to {_MAX_SECONDS:.0e} seconds, which are 31 years"
        raise InvalidRequest(option=option, given=given, allowed=allowed)
    return number


def parse_positive(given: Any, parse: Callable[[Any], Any]) -> float | None:
    """Return the number that Dask's `parse` reads in a time or a size, or None if it is not above zero."""
    # Dask reads a unit alone as one unit, and an empty text as one byte.
    if isinstance(given, bool) or (isinstance(given, str) and not any(map(str.isdigit, given))):
        return None
    try:
        number = float(parse(given))
    except (TypeError, ValueError, KeyError, AttributeError, OverflowError):
        return None
    return number if 0 < number < float("inf") else None


def data_folder() -> Path:
    """Return Jupyter's data directory."""
    # Every rank has this variable, which saves it the import of Jupyter.
    if path := os.environ.get("JUPYTER_DATA_DIR"):
        return Path(path)
    from jupyter_core.paths import jupyter_data_dir

    return Path(jupyter_data_dir())


# Dask's defaults, and the values of ranks and head instead. The profiler alone takes 3 % of a core of a rank, and ranks
# that wait for each other are as fast as the slowest.
_INTERVALS = {
    "distributed.worker.profile.interval": ("10ms", "100ms"),
    "distributed.admin.tick.interval": ("20ms", "200ms"),
}


def quiet_dask() -> dict[str, str]:
    """Return longer intervals for Dask's periodic work, for the settings that have their defaults.

    Dask's configuration has the defaults once `distributed` is imported.
    """
    import dask

    return {key: longer for key, (default, longer) in _INTERVALS.items() if dask.config.get(key) == default}

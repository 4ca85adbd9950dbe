"""Settings of the workbench, in Dask's configuration under ``workbench``.

The defaults are in ``workbench.yaml`` beside this file; everything is read when it is used, never at
import.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

from workbench.errors import InvalidRequest

__version__ = "0.1.0"
"""Of the workbench."""

# Seconds: not much longer can one wait for a lock.
_LONGEST = 1e9


@cache
def _register_defaults() -> dict[str, Any]:
    import dask
    import yaml

    with open(Path(__file__).with_name("workbench.yaml"), encoding="utf-8") as file:
        defaults: dict[str, Any] = yaml.safe_load(file)
    dask.config.update_defaults(defaults)
    return defaults


def get(key: str) -> Any:
    """Return the setting ``workbench.<key>``.

    Parameters
    ----------
    key
        Dotted name below ``workbench``, for instance ``"world.restarts"``.

    Raises
    ------
    KeyError
        If there is no such setting.
    """
    import dask

    # `with dask.config.set(...)` around the first use takes the defaults, which came within it, away at its end.
    default = dask.config.get(f"workbench.{key}", config=_register_defaults())
    return dask.config.get(f"workbench.{key}", default)


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


def fraction(key: str) -> float:
    """Return the setting ``workbench.<key>``, a part of a whole.

    Raises
    ------
    InvalidRequest
        If the user has set it to something else than a number from 0 to 1.
    """
    given = get(key)
    if isinstance(given, bool) or not isinstance(given, int | float) or not 0 <= given <= 1:
        raise InvalidRequest(option=f"workbench.{key}", given=given, allowed="a number from 0 to 1, e.g. 0.15")
    return float(given)


def time_span(option: str, given: Any) -> float:
    """Return a time span that was given for an option, in seconds.

    Raises
    ------
    InvalidRequest
        If it is no time above zero, or longer than any that clocks and waits can count.
    """
    from dask.utils import parse_timedelta

    number = parse_positive(given, parse_timedelta)
    if number is None:
        allowed = "a time above zero, in seconds or as '5 minutes'"
        raise InvalidRequest(option=option, given=given, allowed=allowed)
    if number > _LONGEST:
        allowed = f"a time up to {_LONGEST:.0e} seconds, which are 31 years"
        raise InvalidRequest(option=option, given=given, allowed=allowed)
    return number


def parse_positive(given: Any, parse: Callable[[Any], Any]) -> float | None:
    """Return what Dask's `parse` makes of a time or a size, or None if that is not a number above zero."""
    # Dask takes a unit alone for one of it, and nothing at all for one byte.
    if isinstance(given, bool) or (isinstance(given, str) and not any(map(str.isdigit, given))):
        return None
    try:
        number = float(parse(given))
    except (TypeError, ValueError, KeyError, AttributeError, OverflowError):
        return None
    return number if 0 < number < float("inf") else None


def data_folder() -> Path:
    """Return Jupyter's data directory."""
    # Every rank is told by this variable: asking Jupyter would cost each of them an import.
    if given := os.environ.get("JUPYTER_DATA_DIR"):
        return Path(given)
    from jupyter_core.paths import jupyter_data_dir

    return Path(jupyter_data_dir())


# What Dask has where nobody has set it, and what a rank and the head have then. The profiler alone takes 3 % of a core
# from a rank, computing or not, and of ranks that wait for each other the slowest tells how fast they are.
_LESS_OFTEN = {
    "distributed.worker.profile.interval": ("10ms", "100ms"),
    "distributed.admin.tick.interval": ("20ms", "200ms"),
}


def quiet_dask() -> dict[str, str]:
    """Return what to set in Dask's configuration, which `distributed` has filled: what is there by default only.

    Dask does these many times a second for its own sake, and ranks need their cores.
    """
    import dask

    return {key: less for key, (usual, less) in _LESS_OFTEN.items() if dask.config.get(key) == usual}

"""Settings of the workbench, in Dask's configuration under ``workbench``.

The defaults are in ``workbench.yaml`` beside this file; everything is read when it is used, never at
import.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any


@cache
def _register_defaults() -> None:
    import dask
    import yaml

    with open(Path(__file__).with_name("workbench.yaml"), encoding="utf-8") as file:
        dask.config.update_defaults(yaml.safe_load(file))


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

    _register_defaults()
    return dask.config.get(f"workbench.{key}")


def seconds(key: str) -> float:
    """Return the setting ``workbench.<key>``, a time span such as ``"1 hour"``, in seconds."""
    from dask.utils import parse_timedelta

    return float(parse_timedelta(get(key), default="s"))

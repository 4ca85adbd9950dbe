"""The Dask settings of the process that starts a cluster, which its head and ranks use too."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from workbench.deploy.record import Record
from workbench.files.private import opener


def dask_settings(record: Record) -> Path:
    """Return the file with the Dask settings of a cluster."""
    return record.folder / "dask.yaml"


def write_dask_settings(record: Record) -> None:
    """Write those Dask settings of this process that a new process would not have to the cluster's folder."""
    import dask
    import yaml

    # Every rank reads this file. With all settings it would be the largest file that a rank reads.
    defaults: dict[str, Any] = {}
    dask.config.refresh(defaults, paths=[], env={})
    with_files: dict[str, Any] = {}
    dask.config.refresh(with_files, env={})
    changes = [_changes(dask.config.config, base) for base in (defaults, with_files)]
    if record.local_directory and dask.config.get("temporary-directory", None) is None:
        changes.append({"temporary-directory": record.local_directory})
    with open(dask_settings(record), "w", encoding="utf-8", opener=opener) as file:
        yaml.safe_dump(dask.config.merge(*changes), file)


def _changes(settings: Mapping[str, Any], defaults: Mapping[str, Any]) -> dict[str, Any]:
    changes: dict[str, Any] = {}
    for key, value in settings.items():
        if isinstance(value, Mapping):
            below = defaults.get(key)
            if inner := _changes(value, below if isinstance(below, Mapping) else {}):
                changes[key] = inner
        elif (key not in defaults or value != defaults[key]) and _is_plain(value):
            changes[key] = value
    return changes


def _is_plain(value: Any) -> bool:
    import yaml

    try:
        yaml.safe_dump(value)
    except yaml.YAMLError:
        return False
    return True

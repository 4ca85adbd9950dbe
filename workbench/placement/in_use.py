"""Values of the worker that user code may write to in place, without losing these writes when values are spilled."""

from __future__ import annotations

from collections.abc import Mapping, MutableMapping
from typing import TYPE_CHECKING, Any

from workbench.placement.alignment import ready

if TYPE_CHECKING:
    from dask.typing import Key


def take(data: MutableMapping[Key, Any], key: Key) -> Any:
    """Return a value of the worker for user code; an array that is not aligned is replaced by an aligned copy."""
    value = data[key]
    aligned = ready(value)
    if aligned is not value:  # read from disk, or received in a message
        data[key] = aligned
    return aligned


def put_back(data: MutableMapping[Key, Any], taken: Mapping[Key, Any]) -> None:
    """Replace values that the worker has spilled since `take` returned them by the current values.

    Notes
    -----
    While user code refers to a spilled value, Dask's `SpillBuffer` returns that object for the key. Afterwards only the
    file is left, which lacks later writes.
    """
    # Without a memory limit the worker spills nothing.
    in_memory: Mapping[Key, Any] = getattr(data, "fast", data)
    for key, value in taken.items():
        # A key that is missing was released.
        if key not in in_memory and key in data:
            data[key] = value

"""Values of the worker that code of the user has in its hands: what it writes to them in place is kept."""

from __future__ import annotations

from collections.abc import Mapping, MutableMapping
from typing import TYPE_CHECKING, Any

from workbench.placement.alignment import ready

if TYPE_CHECKING:
    from dask.typing import Key


def take(data: MutableMapping[Key, Any], key: Key) -> Any:
    """Return a value that the worker holds, for code of the user; an array is aligned, and held as it is returned."""
    value = data[key]
    fit = ready(value)
    if fit is not value:  # it came back from disk, or in a message
        data[key] = fit
    return fit


def put_back(data: MutableMapping[Key, Any], taken: Mapping[Key, Any]) -> None:
    """Have the worker hold values that were taken, in place of what it has written to disk since then.

    Parameters
    ----------
    data
        What the worker holds.
    taken
        By key, as `take` returned them.

    Notes
    -----
    A reference to a value that was spilled keeps it in the cache of Dask's `SpillBuffer`: until it goes, all who ask
    for the value get that object. After it there is only the file, as old as it is.
    """
    # Without a memory limit nothing is spilled.
    in_memory: Mapping[Key, Any] = getattr(data, "fast", data)
    for key, value in taken.items():
        # A key that is not there any more was released.
        if key not in in_memory and key in data:
            data[key] = value

"""Placed collections and futures inside of other objects, where a rank gets no block and no value in their place."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import cloudpickle
import numpy as np

from workbench.errors import PlacementError
from workbench.placement import sources
from workbench.placement.globals import variables

CONTAINERS = (list, tuple, dict, set, frozenset)
"""Types that are searched for collections and futures."""
# Types of items of long lists, which have no collection inside.
_PLAIN = {bool, int, float, complex, str, bytes, type(None)}


class ValueOnRanks(TypeError):
    """An object for the ranks contains a placed collection or a future.

    A rank would get the whole collection in place of its block, and wrong numbers without an error.
    """

    def __init__(self, value: Any) -> None:
        self.value = value
        super().__init__(
            f"{sources.type_name(value)} is inside this object. Pass placed collections and futures as separate "
            "arguments: each rank then gets the block of a placed collection, or the value of a future"
        )


def has_only_plain(value: Any) -> bool:
    """Return whether a value is a container of numbers and texts alone."""
    if type(value) is dict:
        return has_only_plain([*value]) and has_only_plain([*value.values()])
    return type(value) in CONTAINERS and all(map(_is_plain, set(map(type, value))))


def _is_plain(kind: type) -> bool:
    # A scalar of NumPy with fields can have objects.
    return kind in _PLAIN or (issubclass(kind, np.generic) and not issubclass(kind, np.void))


def refuse_on_ranks(value: Any) -> None:
    """Raise `ValueOnRanks` for a future or a placed collection, not for a lazy one."""
    if not hasattr(type(value), "__dask_graph__") or sources.placed_by(value) is not None:
        raise ValueOnRanks(value)


def check(name: str, function: Callable[..., Any], arguments: Sequence[Any]) -> None:
    """Raise PlacementError if the function or an argument of a task contains a placed collection or a future."""
    items = [item for value in arguments for item in _kept(value)]
    with Path(os.devnull).open("wb") as nowhere:
        try:
            # The data of arrays is not read.
            _Checker(nowhere, protocol=5, buffer_callback=lambda _: None).dump((function, items))
        except ValueOnRanks as error:
            raise PlacementError(unreplaced(error.value, name, function, items)) from None
        except Exception:  # noqa: BLE001, S110
            # Dask sends an object in other ways, and raises another error.
            pass


def _kept(value: Any) -> list[Any]:
    """Return the objects in an argument that `pinning.submit` keeps, unlike futures."""
    from distributed import Future

    if isinstance(value, list):
        with_futures = any(isinstance(item, Future) for item in value)
        return [kept for item in value for kept in (_kept(item) if with_futures else [item])]
    return [] if isinstance(value, Future) else [value]


class _Checker(cloudpickle.Pickler):  # type: ignore[misc]
    # Called for attributes, and variables of functions, at any depth.
    def reducer_override(self, obj: Any) -> Any:
        from distributed import Future

        if hasattr(type(obj), "__dask_graph__") or isinstance(obj, Future):
            refuse_on_ranks(obj)
            return str, ()
        return super().reducer_override(obj)


def unreplaced(found: Any, name: str, function: Callable[..., Any], arguments: Sequence[Any]) -> str:
    """Return the message about a placed collection or a future where no rank gets its block or its value."""
    holders = [held for each in (function, *arguments) for held in variables(each)]
    holders += [(type(argument).__name__, argument) for argument in arguments]
    attributes = [
        (f"{holder}.{attribute}", value)
        for holder, owner in holders
        for attribute, value in getattr(owner, "__dict__", {}).items()
    ]
    path = next((f", {path}," for path, value in (*holders, *attributes) if first(value) is found), "")
    return (
        f"{name} uses {sources.type_name(found)}{path} inside of another object or as a variable. Pass placed "
        "collections and futures as separate arguments: each rank then gets the block of a placed collection, or the "
        "value of a future."
    )


def first(value: Any) -> Any:
    """Return the first collection or future in a value, also in lists, tuples, dicts and sets; None without one."""
    from dask.base import is_dask_collection
    from distributed import Future

    pending, seen = [value], set()
    while pending:
        item = pending.pop()
        if isinstance(item, CONTAINERS):
            if id(item) not in seen:
                seen.add(id(item))
                items = item.values() if isinstance(item, dict) else item
                types = {kind for kind in set(map(type, items)) if not _is_plain(kind)}
                pending += [each for each in items if type(each) in types][::-1] if types else []
        elif is_dask_collection(item) or isinstance(item, Future):
            return item
    return None

"""What is inside of other objects: variables of functions with their sizes, and placed collections and futures.

A rank gets no block and no value in the place of a collection or a future inside of an object.
"""

from __future__ import annotations

import contextlib
import dis
import functools
import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import CodeType, FunctionType, MethodType
from typing import Any

import cloudpickle
import numpy as np

from workbench.errors import PlacementError
from workbench.placement import sources

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


def taken_along(function: Any) -> dict[str, int]:
    """Return the variables that a function uses, with an estimate of the bytes of each.

    Variables of called functions of the same module are included, and ``self`` of a method.
    """
    return {name: estimated_bytes(value) for name, value in variables(function)}


def estimated_bytes(thing: Any) -> int:
    """Return Dask's estimate of the bytes of an object; 0 without one, as for a list that contains itself."""
    from dask.sizeof import sizeof

    try:
        return int(sizeof(thing))
    except Exception:  # noqa: BLE001  (whatever the class of the user raises; the pickler decides)
        return 0


def variables(function: Any) -> Iterator[tuple[str, Any]]:
    """Yield the name and the value of each variable of `taken_along`; of anything else than a function none."""
    pending, seen = [function], set()
    while pending:
        user = pending.pop()
        if id(user) in seen:
            continue
        seen.add(id(user))
        if wrapped := getattr(user, "__dict__", {}).get("__wrapped__"):
            pending.append(wrapped)
        if isinstance(user, functools.partial):
            pending.append(user.func)
        elif isinstance(user, MethodType):
            yield "self", user.__self__
            pending.append(user.__func__)
        elif isinstance(user, FunctionType):
            for name, value in _used(user):
                if isinstance(value, FunctionType):
                    pending += [value] * (value.__module__ == user.__module__)
                else:
                    yield name, value


def _used(function: FunctionType) -> Iterator[tuple[str, Any]]:
    code, known = function.__code__, function.__globals__
    yield from ((name, known[name]) for name in _global_names(code) if name in known)
    for name, cell in zip(code.co_freevars, function.__closure__ or (), strict=True):
        with contextlib.suppress(ValueError):  # the variable has no value yet
            yield name, cell.cell_contents
    defaults = function.__defaults__ or ()
    arguments = code.co_varnames[: code.co_argcount]
    yield from zip(arguments[len(arguments) - len(defaults) :], defaults, strict=True)
    yield from (function.__kwdefaults__ or {}).items()


@functools.lru_cache(maxsize=256)
def _global_names(code: CodeType) -> tuple[str, ...]:
    """Return the globals that code reads, also in functions and comprehensions within."""
    # `inspect.getclosurevars` takes the attributes that a function uses for variables.
    names = [each.argval for each in dis.get_instructions(code) if each.opname == "LOAD_GLOBAL"]
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            names += _global_names(constant)
    return tuple(dict.fromkeys(names))

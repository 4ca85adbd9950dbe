"""Variables that are pickled with a function of a notebook, also those of enclosing functions, and their sizes."""

from __future__ import annotations

import contextlib
import dis
import functools
from collections.abc import Iterator
from types import CodeType, FunctionType, MethodType
from typing import Any


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

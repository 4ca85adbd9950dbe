"""What a function of a notebook takes along when it travels by value: its globals, and what it closes over."""

from __future__ import annotations

import functools
import inspect
from types import FunctionType, MethodType
from typing import Any


def taken_along(function: Any) -> dict[str, int]:
    """Return the variables that a function uses, and about how many bytes each has.

    Variables of functions of the same module that it calls are among them; for a method ``self`` is one.
    """
    from dask.sizeof import sizeof

    sizes: dict[str, int] = {}
    pending, seen = [function], set()
    while pending:
        user = pending.pop()
        if isinstance(user, functools.partial):
            pending.append(user.func)
        elif isinstance(user, MethodType):
            sizes["self"] = sizeof(user.__self__)
            pending.append(user.__func__)
        elif isinstance(user, FunctionType) and user not in seen:
            seen.add(user)
            used = inspect.getclosurevars(user)
            for name, value in {**used.globals, **used.nonlocals}.items():
                if isinstance(value, FunctionType):
                    pending += [value] * (value.__module__ == user.__module__)
                else:
                    sizes[name] = sizeof(value)
    return sizes

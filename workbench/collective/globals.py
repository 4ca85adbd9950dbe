"""Variables that are pickled with a function of a notebook: globals, and variables of enclosing functions."""

from __future__ import annotations

import functools
import inspect
from types import FunctionType, MethodType
from typing import Any


def taken_along(function: Any) -> dict[str, int]:
    """Return the variables that a function uses, with an estimate of the bytes of each.

    Variables of called functions of the same module are included, and ``self`` of a method.
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

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

    found: dict[str, int] = {}
    left, seen = [function], set()
    while left:
        its = left.pop()
        if isinstance(its, functools.partial):
            left.append(its.func)
        elif isinstance(its, MethodType):
            found["self"] = sizeof(its.__self__)
            left.append(its.__func__)
        elif isinstance(its, FunctionType) and its not in seen:
            seen.add(its)
            used = inspect.getclosurevars(its)
            for name, value in {**used.globals, **used.nonlocals}.items():
                if isinstance(value, FunctionType):
                    left += [value] * (value.__module__ == its.__module__)
                else:
                    found[name] = sizeof(value)
    return found

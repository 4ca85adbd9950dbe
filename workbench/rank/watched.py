"""Operations of a communicator that are watched: here each of them begins, is waited for, and ends."""

from __future__ import annotations

import functools
from collections.abc import Callable
from types import FunctionType
from typing import Any, TypeVar, cast

from mpi4py import MPI

from workbench.rank.waiting import complete, until
from workbench.rank.watch import Watch

F = TypeVar("F", bound=Callable[..., Any])
T = TypeVar("T")


class Watched(MPI.Intracomm):
    """A communicator whose operations can be ended from outside."""

    watch: Watch

    def _wait(self, request: MPI.Request, status: MPI.Status | None = None) -> None:
        complete(request, self.watch.check, status)

    def _until(self, attempt: Callable[[], T | None]) -> T:
        return cast("T", until(attempt, self.watch.check))


def operation(method: F) -> F:
    """Make a method an operation that is watched, under its own name. They do not nest."""
    name = method.__name__

    @functools.wraps(method)
    def watched(self: Watched, *args: Any, **options: Any) -> Any:
        watch = self.watch
        watch.enter(name)
        try:
            return method(self, *args, **options)
        finally:
            watch.leave()

    return cast("F", named(watched, name))


def waiting(blocking: F, twin: Callable[..., MPI.Request]) -> F:
    """Return the blocking operation as one that posts its non-blocking twin and waits for it."""
    name = blocking.__name__

    @functools.wraps(blocking)
    def watched(self: Watched, *args: Any, **options: Any) -> None:
        # as `operation`, in one function: small messages take a few microseconds
        watch = self.watch
        watch.enter(name)
        try:
            complete(twin(self, *args, **options), watch.check)
        finally:
            watch.leave()

    return cast("F", named(watched, name))


def named(function: Any, name: str) -> Any:
    """Give a function the name that tracebacks and stacks show."""
    if isinstance(function, FunctionType):
        function.__code__ = function.__code__.replace(co_name=name)
    return function

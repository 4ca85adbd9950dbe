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

_SENDING, _RECEIVING = ("send", "bsend", "ssend", "rsend"), ("recv", "mprobe")


class Watched(MPI.Intracomm):
    """A communicator whose operations can be ended from outside."""

    watch: Watch

    def _wait(self, request: MPI.Request, status: MPI.Status | None = None) -> None:
        complete(request, self.watch.check, status)

    def _run(self, twin: Callable[..., MPI.Request], *args: Any, status: MPI.Status | None = None) -> None:
        """Post the non-blocking twin of an operation, and wait for it."""
        complete(twin(self, *args), self.watch.check, status, held=args)

    def _until(self, attempt: Callable[[], T | None]) -> T:
        return cast("T", until(attempt, self.watch.check))


def messages_of(name: str) -> int:
    """Return what an operation adds to `Watch.messages`: 1 if it sends one, -1 if it receives one."""
    name = name.lower().removeprefix("i")
    return (name in _SENDING) - (name in _RECEIVING)


def operation(method: F) -> F:
    """Make a method an operation that is watched, under its own name. They do not nest."""
    name, messages = method.__name__, messages_of(method.__name__)

    @functools.wraps(method)
    def watched(self: Watched, *args: Any, **options: Any) -> Any:
        watch = self.watch
        watch.enter(name)
        watch.messages += messages
        try:
            return method(self, *args, **options)
        finally:
            watch.leave()

    return cast("F", named(watched, name))


def waiting(blocking: F, twin: Callable[..., MPI.Request]) -> F:
    """Return the blocking operation as one that posts its non-blocking twin and waits for it."""
    name, messages = blocking.__name__, messages_of(blocking.__name__)

    @functools.wraps(blocking)
    def watched(self: Watched, *args: Any, **options: Any) -> None:
        # as `operation`, in one function: small messages take a few microseconds
        watch = self.watch
        watch.enter(name)
        watch.messages += messages
        try:
            complete(twin(self, *args, **options), watch.check, held=(args, options))
        finally:
            watch.leave()

    return cast("F", named(watched, name))


def named(function: Any, name: str) -> Any:
    """Give a function the name that tracebacks and stacks show."""
    if isinstance(function, FunctionType):
        function.__code__ = function.__code__.replace(co_name=name)
    return function

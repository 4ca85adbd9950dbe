"""`MPI.COMM_WORLD` on a rank: in a call or a cell a stand-in for its communicator, elsewhere for that of all ranks.

Also `MPI.COMM_SELF`, whose `Spawn` is refused where MPI cannot start processes.

Programs for ``mpiexec`` use this name in place of an argument. The import of this module replaces the name in
``mpi4py.MPI``. A module that is imported one time may keep the returned object for many calls, so the object is not the
communicator of one call: each use of an attribute finds the communicator of the call or cell that runs on this thread.

C code gets the object's own handle instead of an attribute. While a call or a cell runs, the object that the name
returns on its thread has the handle of its communicator. An object that another thread has looked up, for example in a
task, has the handle of all ranks.
"""

from __future__ import annotations

import copy
import ctypes
import functools
import sys
import threading
from collections.abc import Callable
from types import FrameType, ModuleType
from typing import Any, Self

from mpi4py import MPI

from workbench.mpi.context import everyone
from workbench.mpi.derived import DerivedCommunicators
from workbench.mpi.spawning import SpawningComm

# Attributes of the object itself, with which pickle stores the name.
_OWN = frozenset({"__module__", "__reduce__", "__reduce_ex__"})
_DERIVING = frozenset(
    {"Clone", "Create", "Create_cart", "Create_dist_graph", "Create_dist_graph_adjacent", "Create_graph",
     "Create_group", "Dup", "Dup_with_info", "Shrink", "Split", "Split_type"}
)  # fmt: skip

# By thread: the communicator of the running call or cell, and what `MPI.COMM_WORLD` is there.
_running: dict[int, MPI.Intracomm] = {}
_worlds: dict[int, World] = {}


class Alone(SpawningComm):
    """What `MPI.COMM_SELF` is."""

    __module__ = MPI.__name__
    __slots__ = ()

    def __reduce__(self) -> str:
        """Pickle the name."""
        return "COMM_SELF"


class World(MPI.Intracomm):
    """What `MPI.COMM_WORLD` is on a thread; `thread` is None for the object of all threads without calls and cells."""

    __module__ = MPI.__name__
    __slots__ = ("thread",)
    thread: int | None

    def __new__(cls, thread: int | None) -> Self:
        """Begin with the handle of all ranks."""
        # A template does this, in which MPI is not initialized, and mpi4py asks MPI about an argument.
        self = super().__new__(cls)
        object.__setattr__(self, "thread", thread)
        _set_handle(self, everyone())
        return self

    def __getattribute__(self, name: str) -> Any:
        """Return an attribute of the communicator of the call or the cell."""
        if name in _OWN:
            return object.__getattribute__(self, name)
        comm = _current(self)
        value = getattr(comm, name)
        if name in _DERIVING and isinstance(comm, DerivedCommunicators) and _is_importing():
            return _lasting(value)
        return value

    def __setattr__(self, name: str, value: Any) -> None:
        """Set an attribute of the communicator of the call or the cell."""
        setattr(_current(self), name, value)

    def __reduce__(self) -> Any:
        """Pickle the name, which another thread has for another object."""
        world = MPI.COMM_WORLD
        return "COMM_WORLD" if world is self else (copy.copy, (world,))


def enter(comm: MPI.Intracomm) -> None:
    """Let `MPI.COMM_WORLD` be a communicator in the code of this thread, until `leave`."""
    thread = threading.get_ident()
    if thread not in _worlds:
        _worlds[thread] = World(thread)
    _running[thread] = comm
    _set_handle(_worlds[thread], comm)


def leave() -> None:
    """Undo `enter`, if this thread has entered."""
    if _running.pop(threading.get_ident(), None) is not None:
        _set_handle(_worlds[threading.get_ident()], everyone())


def _set_handle(standing: MPI.Intracomm, comm: MPI.Intracomm) -> None:
    ctypes.memmove(MPI._addressof(standing), MPI._addressof(comm), MPI._sizeof(comm))  # noqa: SLF001  (for this use)


def _current(world: World) -> MPI.Intracomm:
    comm = _running.get(threading.get_ident())
    if comm is None:
        # A thread that the call has started uses an object of the call.
        comm = _running.get(object.__getattribute__(world, "thread"))
    return everyone() if comm is None else comm


def _is_importing() -> bool:
    frame: FrameType | None = sys._getframe()  # noqa: SLF001  (documented)
    while frame is not None and frame.f_globals.get("__name__") != "importlib._bootstrap":
        frame = frame.f_back
    return frame is not None


def _lasting(method: Callable[..., DerivedCommunicators]) -> Callable[..., MPI.Comm]:
    """Return an operation whose communicator the call does not free, for a module, which outlives the call."""

    @functools.wraps(method)
    def derive(*args: Any, **options: Any) -> MPI.Comm:
        return method(*args, **options).outliving()

    return derive


class _Module(ModuleType):
    @property
    def COMM_WORLD(self) -> World:  # noqa: N802  (the name of MPI)
        """What is `MPI.COMM_WORLD` on this thread."""
        return _worlds.get(threading.get_ident(), _elsewhere)


_elsewhere = World(None)
_alone = Alone()
_set_handle(_alone, MPI.COMM_SELF)
vars(MPI)["COMM_SELF"] = _alone
MPI.__class__ = _Module

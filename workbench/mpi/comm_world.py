"""`MPI.COMM_WORLD` on a rank: in a call or a cell a stand-in for its communicator, elsewhere for that of all ranks.

Also `MPI.COMM_SELF`, whose `Spawn` is refused where MPI cannot start processes.

Programs for ``mpiexec`` use this name in place of an argument. The import of this module replaces the name in
``mpi4py.MPI``. A module that is imported one time may keep the returned object for many calls, so the object is not the
communicator of one call: each use of an attribute finds the communicator of the call or cell that runs on this thread,
or has started this thread. A thread that outlives its call stays with the communicator of that call, where all
operations raise an error: the thread would otherwise take messages of the next calls.

C code gets the object's own handle instead of an attribute. While a call or a cell runs, the object that the name
returns on its threads has the handle of its communicator. An object that another thread has looked up, for example in a
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
from typing import Any, Self, cast

from mpi4py import MPI

from workbench.mpi.context import everyone
from workbench.mpi.derived import DerivedCommunicators, SpawningComm

# Attributes of the object itself, with which pickle stores the name.
_OWN = frozenset({"__module__", "__reduce__", "__reduce_ex__"})
# Unlike `ctypes.memmove`, this does not release the interpreter, for which the thread may then wait.
_copy = ctypes.pythonapi["memmove"]
_copy.argtypes = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t)
# Attribute of a thread: what `MPI.COMM_WORLD` is there.
_WORLD = "_mpi_world"
_DERIVING = frozenset(
    {"Clone", "Create", "Create_cart", "Create_dist_graph", "Create_dist_graph_adjacent", "Create_graph",
     "Create_group", "Dup", "Dup_with_info", "Shrink", "Split", "Split_type"}
)  # fmt: skip


class Alone(SpawningComm):
    """What `MPI.COMM_SELF` is."""

    __module__ = MPI.__name__
    __slots__ = ()

    def __reduce__(self) -> Any:
        """Pickle the name; not a duplicate, which has the same class."""
        return "COMM_SELF" if self is _alone else super().__reduce__()


class World(MPI.Intracomm):
    """What `MPI.COMM_WORLD` is on a thread; one object is shared by all threads without calls and cells."""

    __module__ = MPI.__name__
    __slots__ = ("comm", "replaced")
    comm: MPI.Intracomm
    replaced: Any

    def __new__(cls, comm: MPI.Intracomm) -> Self:
        """Begin with the handle of a communicator."""
        # A template does this, in which MPI is not initialized, and mpi4py asks MPI about an argument.
        self = super().__new__(cls)
        _stand_for(self, comm)
        return self

    def __getattribute__(self, name: str) -> Any:
        """Return an attribute of the communicator of the call or the cell."""
        if name in _OWN:
            return object.__getattribute__(self, name)
        comm = _current()
        value = getattr(comm, name)
        if name in _DERIVING and isinstance(comm, DerivedCommunicators) and _is_importing():
            return _lasting(value)
        return value

    def __setattr__(self, name: str, value: Any) -> None:
        """Set an attribute of the communicator of the call or the cell."""
        setattr(_current(), name, value)

    def __reduce__(self) -> Any:
        """Pickle the name, which another thread has for another object."""
        world = MPI.COMM_WORLD
        return "COMM_WORLD" if world is self else (copy.copy, (world,))


def enter(comm: MPI.Intracomm) -> None:
    """Let `MPI.COMM_WORLD` be a communicator in the code of this thread, until `leave`."""
    if (world := _here()) is _elsewhere:
        world = World(comm)
        setattr(threading.current_thread(), _WORLD, world)
    _stand_for(world, comm)


def leave() -> None:
    """Undo `enter`, if this thread has entered."""
    _stand_for(_here(), everyone())


def _set_handle(standing: MPI.Intracomm, comm: MPI.Intracomm) -> None:
    _copy(MPI._addressof(standing), MPI._addressof(comm), MPI._sizeof(comm))  # noqa: SLF001  (for this use)


def _stand_for(world: World, comm: MPI.Intracomm) -> None:
    object.__setattr__(world, "comm", comm)
    object.__setattr__(world, "replaced", None)
    _set_handle(world, comm)


def _here() -> World:
    return cast("World", getattr(threading.current_thread(), _WORLD, _elsewhere))


def _current() -> MPI.Intracomm:
    return cast("MPI.Intracomm", object.__getattribute__(_here(), "comm"))


@functools.wraps(threading.Thread.start)
def _start(thread: threading.Thread) -> None:
    """Start a thread, which belongs to the call or the cell that starts the thread."""
    if (comm := _current()) is not everyone():
        setattr(thread, _WORLD, World(comm))
    _start.__wrapped__(thread)


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
    def COMM_WORLD(self) -> Any:  # noqa: N802  (the name of MPI)
        """What is `MPI.COMM_WORLD` on this thread; what a program sets stays until the end of the call or the cell."""
        world = _here()
        replaced = object.__getattribute__(world, "replaced")
        return world if replaced is None else replaced

    @COMM_WORLD.setter
    def COMM_WORLD(self, value: Any) -> None:  # noqa: N802
        # `unittest.mock.patch` restores what is in the namespace of the module.
        original = isinstance(value, World) or value is everyone()
        object.__setattr__(_here(), "replaced", None if original else value)


_elsewhere = World(everyone())
_alone = Alone()
_set_handle(_alone, MPI.COMM_SELF)
vars(MPI)["COMM_SELF"] = _alone
MPI.__class__ = _Module
threading.Thread.start = _start  # type: ignore[method-assign, assignment]

"""Parcels between a client and the ranks of an SPMD call: function and arguments, results, errors.

The head forwards parcels unopened, so the head does not need the modules of the user.
"""

from __future__ import annotations

import contextlib
import importlib
import io
import pickle
import sys
import threading
import traceback
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import CodeType, SimpleNamespace, TracebackType
from typing import TYPE_CHECKING, Any

import cloudpickle

from workbench.collective.protocol import Answer, Call, Error
from workbench.errors import CollectiveFailed
from workbench.mpi.call_state import CallCancelled
from workbench.text import brief

if TYPE_CHECKING:
    from dask.typing import Key
    from distributed.protocol.serialize import Serialized

# Bytes of a pickled error, and characters of its traceback. Every rank may send one.
_LARGEST_ERROR, _LONGEST_STACK = 1 << 20, 40_000
_MPI = "mpi4py.MPI"
_PACKAGE = str(Path(__file__).parents[1]) + "/"


@dataclass(frozen=True)
class Placeholder:
    """Takes the place of an argument whose value is on the ranks: the value with this number."""

    number: int


def dumps(thing: Any) -> bytes:
    """Return a parcel, or raise any error of the pickler."""
    parcel = io.BytesIO()
    _Writer(parcel).dump(thing)
    return parcel.getvalue()


def dumps_within(thing: Any, limit: float) -> tuple[bytes | None, int]:
    """Return a parcel and its bytes; in place of a parcel above the limit None, which takes no memory for its data."""
    return _dump_within(_Writer, thing, limit)


def dumps_for_ranks(thing: Any, limit: float) -> tuple[bytes | None, int]:
    """Do as `dumps_within` for a parcel that ranks open, and raise `ValueOnRanks` where the object contains one."""
    return _dump_within(_WriterForRanks, thing, limit)


def check_for_ranks(thing: Any) -> None:
    """Raise any error of `dumps_for_ranks`. The data of arrays, and numbers and texts in a container, are not read."""
    from workbench.placement import inside

    if inside.has_only_plain(thing):  # the pickler calls Python code for each number of NumPy
        return
    _WriterForRanks(_Limited(0), protocol=5, buffer_callback=lambda _: None).dump(thing)


def _dump_within(writer: type[_Writer], thing: Any, limit: float) -> tuple[bytes | None, int]:
    parcel = _Limited(limit)
    writer(parcel).dump(thing)
    return (parcel.getvalue() if parcel.nbytes <= limit else None), parcel.nbytes


class _Limited(io.BytesIO):
    """A file that counts its bytes, and keeps none once they exceed a limit."""

    def __init__(self, limit: float) -> None:
        super().__init__()
        self.nbytes, self._limit = 0, limit

    def write(self, contents: Any) -> int:
        self.nbytes += (size := memoryview(contents).nbytes)
        if self.nbytes <= self._limit:
            return super().write(contents)
        self.truncate(0)
        return size


def own_call(
    client: str,
    name: str,
    function: Callable[..., Any],
    *args: Any,
    ranks: list[int] | None = None,
    keys: Sequence[Sequence[Key]] = ((),),
    to_blocks: Callable[..., Any] | None = None,
    timeout: float | None = None,
    turn_timeout: float | None = None,
) -> Call:
    """Return the request for a call of a function of the workbench, which needs no check and is not measured.

    Parameters
    ----------
    client
        Identity of the client, or of the part of the head that makes the call.
    name
        Name of the call in messages.
    function, *args
        The function, and its arguments after the communicator.
    ranks, keys, timeout, turn_timeout
        As in `Call`.
    to_blocks
        Makes blocks of the results; None: the result of the first rank is the result of the call.
    """
    return {
        "call": uuid.uuid4().hex,
        "client": client,
        "origin": None,
        "work": {
            "name": name,
            "contents": dumps((function, list(args), {}, to_blocks)),
            "compares": False,
            "counted": False,
            "listener": None,
        },
        "wanted": {"root": to_blocks is None, "limit": None},
        "keys": [list(each) for each in keys],
        "addresses": None,
        "writes": False,
        "ranks": ranks,
        "timeout": timeout,
        "turn_timeout": turn_timeout,
    }


def loads(parcel: bytes) -> Any:
    """Return the object in a parcel, or raise any error of the unpickler, as `exceptions_only`."""
    with exceptions_only():
        return _Reader(io.BytesIO(parcel)).load()


@contextlib.contextmanager
def exceptions_only() -> Iterator[None]:
    """Raise UnpicklingError in place of an error that would end an event loop, for example SystemExit of an import."""
    try:
        yield
    except (Exception, CallCancelled):  # also the end of the call that reads its arguments
        raise
    except BaseException as error:
        if isinstance(error, KeyboardInterrupt) and threading.current_thread() is threading.main_thread():
            raise  # Ctrl-C
        raise pickle.UnpicklingError(in_words(error)) from error


def dask_raises_exceptions_only() -> None:
    """Let Dask in this process raise `exceptions_only` for objects of users, so that no object ends head or ranks."""
    loads = exceptions_only()(pickle.loads)
    for module in ("distributed.protocol.pickle", "dask.tokenize"):
        vars(importlib.import_module(module))["pickle"] = SimpleNamespace(**vars(pickle) | {"loads": loads})


def _reduced_code(code: CodeType) -> tuple[Callable[..., CodeType], tuple[Any, ...]]:
    make, arguments = cloudpickle.Pickler.dispatch_table[CodeType](code)[:2]
    return _made_code, (make, arguments, code.co_filename)


def _made_code(make: Callable[..., CodeType], arguments: tuple[Any, ...], file: str) -> CodeType:
    return make(*arguments).replace(co_filename=file)


class _Writer(cloudpickle.Pickler):  # type: ignore[misc]
    # Functions of a notebook are sent by value. Cloudpickle 3.1.3 leaves out the file, which appears in tracebacks,
    # profiles and reports of calls that hang.
    dispatch_table = cloudpickle.Pickler.dispatch_table.new_child({CodeType: _reduced_code})


class _WriterForRanks(_Writer):
    # Called for each object that is no plain number, text or container: also for attributes, and for variables of
    # functions at any depth.
    def reducer_override(self, obj: Any) -> Any:
        if hasattr(type(obj), "__dask_graph__") or _is_future(obj):
            from workbench.placement import inside

            inside.refuse_on_ranks(obj)
            # A lazy collection is computed on the rank, also one whose graph has the futures of placed blocks.
            return loads, (dumps(obj),)
        return super().reducer_override(obj)


def _is_future(obj: Any) -> bool:
    client = sys.modules.get("distributed.client")
    return client is not None and isinstance(obj, client.Future)


class _Reader(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if module == _MPI and module not in sys.modules:
            # The import would initialize MPI, which may end the process of a notebook.
            raise pickle.UnpicklingError(
                f"the object is of {_MPI}, which this process has not loaded. Import {_MPI} before the call."
            )
        return super().find_class(module, name)


def serialized(value: Any) -> Serialized:
    """Return a value as a part of a message of Dask: arrays and tensors from their memory, other objects pickled.

    Dask's ``to_serialize`` would make a frame of each item of a list or a dict, which takes 500 times as long for a
    table of numbers or words. It would also drop subclasses of arrays, for example with units, and copy the weights
    that two layers of a module share.
    """
    from distributed.protocol.serialize import Serialized, serialize

    # Dask's serializer of tensors raises for some types, for example bfloat16.
    with contextlib.suppress(TypeError, RecursionError):
        if _has_memory(value):
            return Serialized(*serialize(value, on_error="raise"))
    return Serialized(*serialize(value, ("pickle",), on_error="raise", iterate_collection=False))


def _has_memory(value: Any) -> bool:
    """Return whether a value is an array or a tensor, not of a subclass, or a collection of these."""
    import numpy as np

    if type(value) in {list, tuple, dict}:
        return all(map(_has_memory, value.values() if type(value) is dict else value))
    # A tensor exists only where its module is loaded.
    tensor = getattr(sys.modules.get("torch"), "Tensor", bytes)
    return type(value) in {bytes, np.ndarray, np.ma.MaskedArray, np.memmap, tensor}


def fill(args: Sequence[Any], kwargs: Mapping[str, Any], values: Sequence[Any]) -> tuple[list[Any], dict[str, Any]]:
    """Replace the placeholders among the arguments by values."""

    def filled(argument: Any) -> Any:
        return values[argument.number] if isinstance(argument, Placeholder) else argument

    return [filled(argument) for argument in args], {name: filled(value) for name, value in kwargs.items()}


def strip_internal_frames(error: BaseException) -> BaseException:
    """Return an error without the first frames of the traceback, if these are in this package."""
    stack = error.__traceback__
    while stack and stack.tb_next and stack.tb_frame.f_code.co_filename.startswith(_PACKAGE):
        stack = stack.tb_next
    return error.with_traceback(stack)


def pack_error(error: BaseException) -> Error:
    """Return the message of an error: the pickled error, and text for a process that cannot unpickle the error."""
    import tblib.pickling_support

    stack = strip_internal_frames(error).__traceback__
    message: Error = {
        "words": in_words(error),
        "stack": brief("".join(traceback.format_exception(error)), _LONGEST_STACK),
        "parcel": None,
        "process_failed": any(map(_is_process_failure, _chain(error))),
    }
    try:
        tblib.pickling_support.install(*_chain(error))
        first_lines = [_first_lines(each) for each in _chain(error)]
        parcel, _ = dumps_within((error, stack, first_lines), _LARGEST_ERROR)
        if parcel is not None:
            loads(parcel)
    except Exception:  # noqa: BLE001  (whatever the class of the user raises: the text is enough)
        return message
    return {**message, "parcel": parcel}


def unpack_error(message: Mapping[str, Any], note: str) -> Exception:
    """Return the error of a rank, with a note; `CollectiveFailed` if the error cannot be raised here."""
    try:
        error, stack, first_lines = loads(message["parcel"])
        error.__traceback__ = stack
        for each, lines in zip(_chain(error), first_lines, strict=False):
            each.__traceback__ = _from_first_lines(each.__traceback__, lines)
    except Exception:  # noqa: BLE001  (no parcel, or a class that cannot be imported)
        error = None
    # An event loop ends with SystemExit, and does not accept StopIteration.
    if not isinstance(error, Exception) or isinstance(error, StopIteration):
        error = CollectiveFailed(f"{message['words']}, {note}")
        error.add_note(f"The traceback of that rank:\n{message['stack']}")
        return error
    error.add_note(note)
    return error


def raise_failure(answer: Answer, name: str) -> None:
    """Raise the error of the rank that failed, if one has, in a call of this name."""
    if "error" in answer:
        error = unpack_error(answer["error"], f"raised on rank {answer['rank']}, in {name}")
        if answer["others"]:
            error.add_note(answer["others"])
        raise error


def _first_lines(error: BaseException) -> list[int]:
    """Return the first line of the code of each frame of the traceback."""
    return [frame.f_code.co_firstlineno for frame, _ in traceback.walk_tb(error.__traceback__)]


def _from_first_lines(stack: TracebackType | None, first_lines: Sequence[int]) -> TracebackType | None:
    """Return a traceback with the first line of the code of each frame, which tblib drops.

    IPython 9.18 counts the lines of a cell from there, and would point to a wrong one.
    """
    frames = list(traceback.walk_tb(stack))
    if len(frames) != len(first_lines):  # the class of the error is pickled without its traceback
        return stack
    rebuilt = None
    for (frame, line), first in zip(reversed(frames), reversed(first_lines), strict=True):
        stub = compile("\n" * max(0, line - first) + "raise _error", frame.f_code.co_filename, "exec")
        code = stub.replace(co_name=frame.f_code.co_name, co_qualname=frame.f_code.co_name, co_firstlineno=first)
        try:
            exec(code, frame.f_globals | {"_error": ZeroDivisionError()})  # noqa: S102
        except ZeroDivisionError as error:
            raised: Any = error.__traceback__
            rebuilt = TracebackType(rebuilt, raised.tb_next.tb_frame, raised.tb_next.tb_lasti, line)
    return rebuilt


def _is_process_failure(error: BaseException) -> bool:
    MPI = sys.modules.get(_MPI)  # noqa: N806  (the name of the module)
    if MPI is None or not isinstance(error, MPI.Exception):
        return False
    # Without support in the MPI library both have the number of the error that is not known.
    return error.Get_error_class() in {MPI.ERR_PROC_FAILED, MPI.ERR_PROC_FAILED_PENDING} - {MPI.ERR_UNKNOWN}


def in_words(error: BaseException) -> str:
    """Return the class and the text of an error for a message, also if the class of the user raises an error there."""
    name = type(error).__name__
    try:
        return brief(f"{name}: {error}".removesuffix(": "))
    except Exception:  # noqa: BLE001  (of the user's class)
        return f"{name}, whose text cannot be formatted"


def _chain(error: BaseException | None) -> list[BaseException]:
    # By identity: the user's class may define equality, for example as a dataclass with arrays.
    errors: dict[int, BaseException] = {}
    while error is not None and id(error) not in errors:
        errors[id(error)] = error
        error = error.__cause__ or error.__context__
    return [*errors.values()]

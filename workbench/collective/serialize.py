"""What travels between a client and the ranks of an SPMD call: function and arguments, results, errors.

The head passes parcels on and does not open them: it need not have what they are made of.
"""

from __future__ import annotations

import io
import pickle
import sys
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import CodeType, TracebackType
from typing import Any

import cloudpickle

from workbench.collective.protocol import Error
from workbench.errors import CollectiveFailed

# Bytes of an error that travels as itself, and characters of one that does so in words: all ranks may have one.
_LARGEST_ERROR, _LONGEST_WORDS, _LONGEST_STACK = 1 << 20, 4000, 40_000
_MPI = "mpi4py.MPI"
_PACKAGE = str(Path(__file__).parents[1]) + "/"


@dataclass(frozen=True)
class Placeholder:
    """Stands for an argument that lies on the ranks: the one of this number."""

    number: int


def dumps(thing: Any) -> bytes:
    """Return a parcel; whatever makes that impossible is raised."""
    parcel = io.BytesIO()
    _Writer(parcel).dump(thing)
    return parcel.getvalue()


def loads(parcel: bytes) -> Any:
    """Return what is in a parcel; whatever makes that impossible is raised."""
    return _Reader(io.BytesIO(parcel)).load()


def _reduced_code(code: CodeType) -> tuple[Callable[..., CodeType], tuple[Any, ...]]:
    make, arguments = cloudpickle.Pickler.dispatch_table[CodeType](code)[:2]
    return _made_code, (make, arguments, code.co_filename)


def _made_code(make: Callable[..., CodeType], arguments: tuple[Any, ...], file: str) -> CodeType:
    return make(*arguments).replace(co_filename=file)


class _Writer(cloudpickle.Pickler):  # type: ignore[misc]
    # What is defined in a notebook travels by value. Cloudpickle 3.1.3 leaves out the file, which tracebacks, profiles
    # and reports of calls that hang name.
    dispatch_table = cloudpickle.Pickler.dispatch_table.new_child({CodeType: _reduced_code})


class _Reader(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if module == _MPI and module not in sys.modules:
            # To import it is to initialise MPI, which in a notebook may even end the process.
            raise pickle.UnpicklingError(f"it is of {_MPI}, which is not loaded here; import that before the call")
        return super().find_class(module, name)


def fill(args: Sequence[Any], kwargs: Mapping[str, Any], values: Sequence[Any]) -> tuple[list[Any], dict[str, Any]]:
    """Put values into the slots among the arguments."""

    def filled(argument: Any) -> Any:
        return values[argument.number] if isinstance(argument, Placeholder) else argument

    return [filled(argument) for argument in args], {name: filled(value) for name, value in kwargs.items()}


def strip_internal_frames(error: BaseException) -> BaseException:
    """Return an error without the frames of this package that come first in its traceback."""
    stack = error.__traceback__
    while stack and stack.tb_next and stack.tb_frame.f_code.co_filename.startswith(_PACKAGE):
        stack = stack.tb_next
    return error.with_traceback(stack)


def pack_error(error: BaseException) -> Error:
    """Return an error that was caught for its journey: as itself, and in words for those who cannot read that."""
    import tblib.pickling_support

    stack = strip_internal_frames(error).__traceback__
    message: Error = {
        "words": _cut(_in_words(error), _LONGEST_WORDS),
        "stack": _cut("".join(traceback.format_exception(error)), _LONGEST_STACK),
        "parcel": None,
    }
    try:
        tblib.pickling_support.install(*_chain(error))
        parcel = dumps((error, stack))
        loads(parcel)
    except Exception:  # noqa: BLE001  (whatever it is made of: the words suffice)
        return message
    return {**message, "parcel": parcel} if len(parcel) <= _LARGEST_ERROR else message


def unpack_error(message: Mapping[str, Any], note: str) -> Exception:
    """Return an error that came from a rank, with a note; one that cannot be raised here as `CollectiveFailed`."""
    try:
        error, stack = loads(message["parcel"])
    except Exception:  # noqa: BLE001  (no parcel, or of a module that cannot be imported)
        error = stack = None
    # An event loop, which carries the error on from here, would end with SystemExit, and stumble over StopIteration.
    if not isinstance(error, Exception) or isinstance(error, StopIteration):
        error = CollectiveFailed(f"{message['words']}, {note}")
        error.add_note(f"The traceback of that rank:\n{message['stack']}")
        return error
    error.add_note(note)
    return error.with_traceback(stack if isinstance(stack, TracebackType) else None)


def _in_words(error: BaseException) -> str:
    name = type(error).__name__
    try:
        return f"{name}: {error}".removesuffix(": ")
    except Exception:  # noqa: BLE001  (of the user's class)
        return f"{name}, which cannot be put in words"


def _cut(text: str, longest: int) -> str:
    """Return a text without its middle, where it is too long."""
    half = longest // 2
    return text if len(text) <= longest else f"{text[:half]} [... {len(text) - longest} characters] {text[-half:]}"


def _chain(error: BaseException | None) -> list[BaseException]:
    errors: list[BaseException] = []
    while error is not None and error not in errors:
        errors.append(error)
        error = error.__cause__ or error.__context__
    return errors

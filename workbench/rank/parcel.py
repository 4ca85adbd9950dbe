"""What travels between a client and the ranks of an SPMD call: function and arguments, results, errors.

The head passes parcels on and does not open them: it need not have what they are made of.
"""

from __future__ import annotations

import pickle
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

import cloudpickle

from workbench.errors import CollectiveFailed

_PACKAGE = str(Path(__file__).parents[1]) + "/"


@dataclass(frozen=True)
class Slot:
    """Stands for an argument that lies on the ranks: the one of this number."""

    number: int


def pack(thing: Any) -> bytes:
    """Return a parcel; whatever makes that impossible is raised."""
    # What is defined in a notebook travels by value.
    parcel: bytes = cloudpickle.dumps(thing)
    return parcel


def unpack(parcel: bytes) -> Any:
    """Return what is in a parcel; whatever makes that impossible is raised."""
    return pickle.loads(parcel)  # noqa: S301  (clients and ranks of one user, under TLS)


def fill(args: Sequence[Any], kwargs: Mapping[str, Any], values: Sequence[Any]) -> tuple[list[Any], dict[str, Any]]:
    """Put values into the slots among the arguments."""

    def filled(argument: Any) -> Any:
        return values[argument.number] if isinstance(argument, Slot) else argument

    return [filled(argument) for argument in args], {name: filled(value) for name, value in kwargs.items()}


def bare(error: BaseException) -> BaseException:
    """Return an error without the frames of this package that come first in its traceback."""
    stack = error.__traceback__
    while stack and stack.tb_next and stack.tb_frame.f_code.co_filename.startswith(_PACKAGE):
        stack = stack.tb_next
    return error.with_traceback(stack)


def pack_error(error: BaseException) -> dict[str, Any]:
    """Return an error that was caught for its journey: as itself, and in words for those who cannot read that."""
    import tblib.pickling_support

    stack = bare(error).__traceback__
    told = {
        "words": f"{type(error).__name__}: {error}".removesuffix(": "),
        "stack": "".join(traceback.format_exception(error)),
        "parcel": None,
    }
    try:
        tblib.pickling_support.install(*_chain(error))
        parcel = pack((error, stack))
        unpack(parcel)
    except Exception:  # noqa: BLE001  (whatever it is made of: then the words have to do)
        return told
    return told | {"parcel": parcel}


def unpack_error(told: Mapping[str, Any], note: str) -> Exception:
    """Return an error that came from a rank, with a note; one that cannot be raised here as `CollectiveFailed`."""
    try:
        error, stack = unpack(told["parcel"])
    except Exception:  # noqa: BLE001  (not there, or of a module that is not here)
        error = stack = None
    # An event loop, which carries the error on from here, would end with SystemExit, and stumble over StopIteration.
    if not isinstance(error, Exception) or isinstance(error, StopIteration):
        error = CollectiveFailed(f"{told['words']}, {note}")
        error.add_note(f"The traceback of that rank:\n{told['stack']}")
        return error
    error.add_note(note)
    return error.with_traceback(stack if isinstance(stack, TracebackType) else None)


def _chain(error: BaseException | None) -> list[BaseException]:
    found: list[BaseException] = []
    while error is not None and error not in found:
        found.append(error)
        error = error.__cause__ or error.__context__
    return found

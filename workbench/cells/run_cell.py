"""A cell on its way to a rank and back: what the notebook sends to an engine, and what it answers.

Imports nothing heavy: notebooks make these objects.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any, NoReturn, Protocol


@dataclass
class Done:
    """How a cell went on one rank. Its output is not part of it: that goes ahead, as it comes."""

    status: str
    """``ok``, ``error``, ``exit`` (it left by itself), ``ended`` (since another rank failed) or ``interrupted``."""
    summary: str = ""
    """Why it is not ok, in one line."""
    traceback: str = ""
    """Of an error, as IPython words it."""
    value: bytes | None = None
    """The value of its last line as a parcel, if it was wanted."""
    refusal: str = ""
    """Why the value that was wanted is not there."""
    cut: int = 0
    """Characters of output that were too many."""


class Runner(Protocol):
    """What runs cells on a rank."""

    def run(self, cell: str, source: str, result_limit: int | None) -> Done:
        """Run a cell that was prepared, on the main thread."""


_runners: list[Runner] = []


def take_place(runner: Runner) -> None:
    """Have `runner` run the cells of this process."""
    _runners[:] = [runner]


@dataclass(frozen=True)
class RunCell:
    """A cell for an engine, to be called there."""

    cell: str
    """Its id, under which the head has prepared it."""
    source: str
    """As the user has typed it."""
    result_limit: int | None = None
    """Bytes that the value of its last line may have as a parcel; None: it is not wanted."""

    def __call__(self) -> Done:
        """Run it."""
        return _runners[0].run(self.cell, self.source, self.result_limit)


@dataclass(frozen=True)
class Echo:
    """Answers at once, to see that the way to an engine and back is open."""

    def __call__(self) -> None:
        """Do nothing."""


def leave(code: Any = None) -> NoReturn:
    """Leave a cell; what `exit` and `quit` are in it."""
    raise SystemExit(code)


def run_in_shell(
    names: dict[str, Any],
    source: str,
    result_limit: int | None,
    user_code: Callable[[], AbstractContextManager[None]],
    failing: Callable[[str], None],
) -> Done:
    """Run a cell in the IPython of this process.

    Parameters
    ----------
    names
        What it finds in its namespace.
    source, result_limit
        As of `RunCell`.
    user_code
        Entered around the code of the user.
    failing
        Is told of an error in one line before its traceback is made, which takes time.
    """
    from IPython.core.getipython import get_ipython

    from workbench.mpi.call_state import CallEnded

    shell: Any = get_ipython()
    # Of IPython, to people at a prompt, whenever a cell raises SystemExit.
    warnings.filterwarnings("ignore", "To exit: use", UserWarning)
    shell.user_ns.update(names | {"exit": leave, "quit": leave})

    def show(shell: Any, kind: type[BaseException], error: BaseException, trace: Any, tb_offset: Any = None) -> None:
        # Others are to blame for these.
        if not issubclass(kind, CallEnded | KeyboardInterrupt):
            failing(_line(error))
            shell.showtraceback((kind, error, trace), tb_offset=tb_offset)

    shell.set_custom_exc((BaseException,), show)
    with _unseen(shell) if result_limit is not None else nullcontext(), user_code():
        result = shell.run_cell(source, store_history=True)
    error = result.error_before_exec or result.error_in_exec
    if error is None:
        return _with_value(result.result, result_limit)
    if isinstance(error, SystemExit):
        return Done("exit", "it left the cell by exit()")
    if isinstance(error, CallEnded):
        return Done("ended", str(error))
    traceback = "\n".join(getattr(shell, "_last_traceback", None) or ())
    return Done("error", _line(error), traceback)


@contextmanager
def _unseen(shell: Any) -> Iterator[None]:
    """Do not display the value of a last line: who wants it itself does not, and to write it out may take long."""
    hook = shell.displayhook
    shown, hook.compute_format_data = hook.compute_format_data, lambda _: ({}, {})
    try:
        yield
    finally:
        hook.compute_format_data = shown


def _line(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}".partition("\n")[0]


def _with_value(value: Any, limit: int | None) -> Done:
    from dask.utils import format_bytes

    from workbench.collective.serialize import pack

    if limit is None:
        return Done("ok")
    try:
        parcel = pack(value)
    except Exception as error:  # noqa: BLE001  (whatever the class of the user raises)
        return Done("ok", refusal=f"a {type(value).__name__} cannot be sent: {type(error).__name__}: {error}")
    if len(parcel) > limit:
        size, allowed = format_bytes(len(parcel)), format_bytes(limit)
        return Done("ok", refusal=f"it has {size}, and {allowed} may be sent (setting workbench.cells.result-limit)")
    return Done("ok", value=parcel)


def matching(text: str) -> list[str]:
    """Return the names of the IPython of this process that continue `text`, attributes after a dot."""
    import inspect

    from IPython.core.getipython import get_ipython

    owner, dot, begun = text.rpartition(".")
    shell: Any = get_ipython()
    namespace = shell.user_ns
    if not dot:
        return sorted(name for name in list(namespace) if name.startswith(begun) and (begun or name[0] != "_"))
    first, *attributes = owner.split(".")
    thing = namespace.get(first)
    for attribute in attributes:
        # Statically: a property may compute for long, or talk to other ranks.
        thing = inspect.getattr_static(thing, attribute, None)
    names = dir(thing) if thing is not None else []
    return [f"{owner}.{name}" for name in names if name.startswith(begun) and (begun or name[0] != "_")]

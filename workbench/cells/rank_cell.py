"""One cell on one rank: its state, and its run in IPython on the main thread."""

from __future__ import annotations

import os
import sys
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import TYPE_CHECKING, Any, NoReturn

from workbench.cells import protocol
from workbench.cells.coroutine import is_interrupted, no_event_loop
from workbench.cells.run_cell import CellOutcome, RunCell
from workbench.collective.rank_state import RankState
from workbench.collective.serialize import in_words
from workbench.mpi.call_state import CallCancelled, CallState
from workbench.mpi.threads import end_copy

if TYPE_CHECKING:
    from dask.typing import Key


class Cell(RankState):
    """A prepared or running cell of this rank, with its names and the data of the worker that it uses."""

    kind = "cell"

    def __init__(
        self, request: protocol.Prepare, names: dict[str, Any], watch: CallState, taken: dict[Key, Any]
    ) -> None:
        super().__init__(request["cell"], "a cell", watch)
        self.request, self.names, self.taken = request, names, taken
        self.in_user_code = False
        """Whether the code of the user runs now, so that SIGINT may end it."""
        self.interrupted: str | None = None
        """Reason of an interrupt; None without one, also if the cell is ended since another rank has failed."""
        self.forsaken = False
        """Whether a rank of the cell has failed, and will not meet the others."""
        self._shown = 0
        self.cut = 0
        """Characters of output that were not sent, since they exceed the limit."""

    def admit(self, characters: int) -> int:
        """Return how many of `characters` more characters of output may be sent to the notebook."""
        admitted = min(characters, self.request["allowed"]["limit"] - self._shown)
        self._shown += admitted
        self.cut += characters - admitted
        return admitted

    def check_meeting(self, deadline: float) -> None:
        """Raise if not all ranks create their communicator.

        Ctrl-C does not end the creation: ranks that get the interrupt later would wait in MPI forever.
        """
        if self.forsaken or time.monotonic() > deadline:
            raise CallCancelled(self.watch.ended or "not all ranks have created their communicator")

    @contextmanager
    def user_code(self) -> Iterator[None]:
        """Let SIGINT end the code in this context."""
        self.in_user_code = True
        try:
            yield
        finally:
            self.in_user_code = False


def exit_cell(code: Any = None) -> NoReturn:
    """Leave a cell: `exit` and `quit` in the namespace of cells."""
    raise SystemExit(code)


def run_in_shell(
    names: dict[str, Any],
    cell: RunCell,
    user_code: Callable[[], AbstractContextManager[None]],
    failing: Callable[[str], None],
) -> CellOutcome:
    """Run a cell in the IPython of this process, with `names` in its namespace and `user_code` around the user's code.

    `failing` is called with an error in one line before its traceback is made, which takes time.
    """
    from IPython.core.getipython import get_ipython

    shell: Any = get_ipython()
    # IPython warns users at a prompt whenever a cell raises SystemExit.
    warnings.filterwarnings("ignore", "To exit: use", UserWarning)
    shell.user_ns.update(names | {"exit": exit_cell, "quit": exit_cell})

    def show(shell: Any, kind: type[BaseException], error: BaseException, trace: Any, tb_offset: Any = None) -> None:
        # The other errors follow from the failure of another rank, or from Ctrl-C, also the end of a coroutine.
        if not issubclass(kind, CallCancelled | KeyboardInterrupt | GeneratorExit) and not is_interrupted():
            failing(_line(error))
            shell.showtraceback((kind, error, trace), tb_offset=tb_offset)

    shell.set_custom_exc((BaseException,), show)
    process = os.getpid()
    with (
        _without_display(shell) if cell.result_limit is not None else nullcontext(),
        _failing_programs(shell),
        no_event_loop(),
        user_code(),
    ):
        result = shell.run_cell(cell.source, store_history=True)
    _show_pages(shell)
    error = result.error_before_exec or result.error_in_exec
    end_copy(process, error)
    if isinstance(error, SystemExit) and not error.code:
        return CellOutcome("exit", "the rank left the cell by exit()")
    if error is None:
        return _with_value(result.result, cell.result_limit)
    if isinstance(error, CallCancelled):
        return CellOutcome("ended", str(error))
    traceback = "\n".join(getattr(shell, "_last_traceback", None) or ())
    return CellOutcome("error", _line(error), traceback)


def _show_pages(shell: Any) -> None:
    """Display what a cell has sent to the pager, for example by ``name?``: a notebook has a pager for its own cells."""
    for payload in shell.payload_manager.read_payload():
        if payload["source"] == "page":
            shell.display_pub.publish(payload["data"])
    shell.payload_manager.clear_payload()


@contextmanager
def _failing_programs(shell: Any) -> Iterator[None]:
    """Let `%run` raise the error of a program, which IPython shows and then forgets, so that the cell fails there."""
    from IPython.core.interactiveshell import InteractiveShell

    runners = InteractiveShell.safe_execfile.__code__, InteractiveShell.safe_run_module.__code__
    before, show = vars(shell).get("showtraceback"), shell.showtraceback

    def show_or_raise(*args: Any, **kwargs: Any) -> None:
        __tracebackhide__ = True
        error = sys.exception()
        if error is not None and sys._getframe(1).f_code in runners:  # noqa: SLF001
            raise error
        show(*args, **kwargs)

    shell.showtraceback = show_or_raise
    try:
        yield
    finally:
        # Code of the user may have installed another one.
        if vars(shell).get("showtraceback") is show_or_raise:
            del shell.showtraceback
            if before is not None:
                shell.showtraceback = before


@contextmanager
def _without_display(shell: Any) -> Iterator[None]:
    """Do not display the value of the last line, which is sent as an object: its formatting may take long."""
    hook = shell.displayhook
    compute, hook.compute_format_data = hook.compute_format_data, lambda _: ({}, {})
    try:
        yield
    finally:
        hook.compute_format_data = compute


def _line(error: BaseException) -> str:
    return in_words(error).partition("\n")[0]


def _with_value(value: Any, limit: int | None) -> CellOutcome:
    from dask.utils import format_bytes

    from workbench.collective.serialize import dumps_within

    if limit is None:
        return CellOutcome("ok")
    try:
        parcel, nbytes = dumps_within(value, limit)
    except Exception as error:  # noqa: BLE001  (whatever the class of the user raises)
        return CellOutcome(
            "ok", refusal=f"an object of type {type(value).__name__} cannot be sent: {type(error).__name__}: {error}"
        )
    if parcel is None:
        size, allowed = format_bytes(nbytes), format_bytes(limit)
        return CellOutcome(
            "ok",
            refusal=f"its size is {size}, more than the limit of {allowed} (the setting workbench.cells.result-limit)",
        )
    return CellOutcome("ok", value=parcel)


def completions(text: str, namespace: Mapping[str, Any]) -> list[str]:
    """Return the names in a namespace, or the attributes after a dot, that begin with `text`."""
    import inspect

    owner, dot, prefix = text.rpartition(".")
    if not dot:
        return sorted(name for name in list(namespace) if name.startswith(prefix) and (prefix or name[0] != "_"))
    first, *attributes = owner.split(".")
    value = namespace.get(first)
    for attribute in attributes:
        # A static lookup: a property may compute for long, or call MPI.
        value = inspect.getattr_static(value, attribute, None)
    names = dir(value) if value is not None else []
    return [f"{owner}.{name}" for name in names if name.startswith(prefix) and (prefix or name[0] != "_")]

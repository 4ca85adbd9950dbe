"""The cells of notebooks on a rank: the IPython engine, and each cell from its preparation to its end."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import importlib
import os
import signal
import sys
import threading
import time
import warnings
import weakref
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import TYPE_CHECKING, Any, NoReturn, Unpack

from workbench.cells import namespaces, protocol
from workbench.cells.coroutine import is_interrupted, no_event_loop
from workbench.cells.protocol import JOIN_S, REGISTER_S
from workbench.cells.run_cell import CellOutcome, RunCell
from workbench.collective import process_state
from workbench.collective.operation import Cancelled, answering
from workbench.collective.protocol import RANK_REMEMBER_S
from workbench.collective.rank_call import RankState
from workbench.collective.serialize import in_words, loads
from workbench.errors import CollectiveFailed, RankLost
from workbench.hints import Command
from workbench.host import node_dirs
from workbench.host.output import Written
from workbench.mpi.call_state import CallCancelled, CallState
from workbench.mpi.context import MainThread, end_copy
from workbench.mpi.polling import keep_alive
from workbench.placement.in_use import take
from workbench.text import brief

if TYPE_CHECKING:
    from dask.typing import Key
    from distributed import Worker

    from workbench.metrics.activity import Activity
    from workbench.mpi.context import RankContext


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
        self.peer_failed = False
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
        if self.peer_failed or time.monotonic() > deadline:
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
            refusal=f"its size is {size}, more than the limit of {allowed} (the setting workbench.cells.output-limit)",
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


# Seconds between two SIGINTs for a cell that still runs: the code of a user may catch one.
_AGAIN = 0.2
# Seconds for a completion.
_COMPLETE = 0.4


class Cells:
    """Runs cells on the main thread, which becomes the engine; the handlers are for the event loop of the worker."""

    def __init__(
        self, worker: Worker, context: RankContext, main: MainThread, cluster: str, activity: Activity
    ) -> None:
        self._worker, self._context, self._main, self._cluster = worker, context, main, cluster
        self._activity = activity
        self._engine: Future[str] | None = None
        self._engine_end = Future[Any]()
        self._connection: dict[str, Any] = {}
        self._cell: Cell | None = None
        # Data of the worker that the namespace of the engine may hold, until the user deletes it there.
        self._taken: weakref.WeakValueDictionary[Key, Any] = weakref.WeakValueDictionary()
        self._ended = Cancelled(RANK_REMEMBER_S)
        self._generation = -1
        self._watch = CallState()
        self._given_up: list[Any] = []
        """MPI requests of cells that were ended."""
        self._communicators: Any = None
        self._comms: dict[int, Any] = {}
        worker.handlers |= answering(
            {
                protocol.WARM: self.warm,
                protocol.ENGINE: self.engine,
                protocol.PREPARE: self.prepare,
                protocol.COMPLETE: self.complete,
                protocol.UNUSED: self.unused,
            }
        )
        worker.stream_handlers[protocol.END] = self.end
        worker.stream_handlers[protocol.FORGET] = self.forget
        main.ended.add_done_callback(lambda _: self._end_engine())

    # -- the engine --------------------------------------------------------------------------------------------

    async def warm(self) -> None:
        """Begin the imports of an engine while the controller starts."""
        if self._engine is None:
            self._main.submit(_import)

    async def engine(self, connection: dict[str, Any]) -> str:
        """Start the engine of this rank; return its identity when the engine is ready."""
        if self._context.threads != "multiple":
            raise CollectiveFailed(
                f"cells need MPI_THREAD_MULTIPLE, because cells call MPI on a separate thread. {self._context.library} "
                f"provides only MPI_THREAD_{self._context.threads.upper()}. Use @workbench.spmd."
            )
        if self._engine is None or connection != self._connection:
            self._end_engine()  # of a controller that has ended
            self._connection, self._engine, self._engine_end = connection, Future[str](), Future[Any]()
            self._main.submit(functools.partial(self._become_engine, connection, self._engine, self._engine_end))
        try:
            async with asyncio.timeout(REGISTER_S):
                return await asyncio.shield(asyncio.wrap_future(self._engine))
        except TimeoutError:
            raise CollectiveFailed(
                f"the engine of the rank did not start within {REGISTER_S:.0f} s.",
                hint=("See the log of the rank: ", Command("logs")),
            ) from None

    def _end_engine(self) -> None:
        if not self._engine_end.done():
            self._engine_end.set_result(None)

    def _become_engine(self, connection: dict[str, Any], registered: Future[str], end: Future[Any]) -> None:
        from workbench.cells import engine

        engine.interruptible(self._in_user_code)
        folder = node_dirs.spill(self._cluster) / f"engine-{self._context.world}.{self._context.rank}"
        engine.serve(
            self._context.rank,
            connection,
            folder,
            registered=registered,
            ended=end,
            admit=self._admit,
            in_cell=lambda: self._cell is not None and self._cell.running,
            run=self.run,
            named=lambda name: self._worker.loop.add_callback(self._tell, protocol.NAMED, namespace=name),
        )
        self._worker.loop.add_callback(self._leave_engine, registered)

    def _leave_engine(self, registered: Future[str]) -> None:
        """Report to the head that the engine has ended, so that the next cell starts another. On the worker's loop."""
        if self._engine is registered:
            self._engine = None
            self._tell(protocol.ENGINE_ENDED)

    def _tell(self, operation: str, **message: Any) -> None:
        """Send a message to the head. On the worker's loop."""
        with contextlib.suppress(OSError):
            self._worker.batched_stream.send({"op": operation, **message})

    def _in_user_code(self) -> bool:
        cell = self._cell
        # An MPI operation ends by its flag, and must not be interrupted.
        return cell is not None and cell.in_user_code and cell.watch.operation is None

    def _admit(self, characters: int) -> int:
        """Return how many more characters of output may go to the notebook."""
        return characters if self._cell is None else self._cell.admit(characters)

    # -- preparation -------------------------------------------------------------------------------------------

    async def prepare(self, **request: Unpack[protocol.Prepare]) -> None:
        """Prepare a cell."""
        earlier = self._cell
        if earlier is not None and earlier.running:
            seconds, operation = time.monotonic() - earlier.started, earlier.watch.operation
            place = f"in {operation}" if operation else "in code that does not call MPI through comm"
            raise CollectiveFailed(
                f"the rank is still in an earlier cell, for {seconds:.0f} s, {place}.",
                hint=("If that cell does not end, start the ranks again: ", Command("restart")),
            )
        taken = dict(self._taken)
        values = {name: await self._get(name, transfer, taken) for name, transfer in request["names"].items()}
        if request["cell"] in self._ended:  # during the preparation
            raise CollectiveFailed("the cell was canceled before its start.")
        if request["generation"] != self._generation:
            self._given_up += self._watch.posted
            self._generation, self._watch = request["generation"], CallState()
            for serial in self._comms:
                self._communicators.discard(serial)
            self._comms.clear()
        self._watch.compares = request["allowed"]["compares"]
        self._cell = Cell(request, values, self._watch, taken)

    async def _get(self, name: str, transfer: protocol.Transfer, taken: dict[Key, Any]) -> Any:
        from distributed.utils import offload
        from distributed.utils_comm import gather_from_workers

        if "parcel" in transfer:
            value, error = await offload(_unpack, transfer["parcel"])
            if error is not None:
                raise CollectiveFailed(f"the rank cannot unpickle {name!r}, which the notebook has sent: {error}")
            return value
        key: Key = transfer["key"]
        if key in self._worker.data:
            taken[key] = take(self._worker.data, key)
            return taken[key]
        values, *_ = await gather_from_workers(
            {key: transfer["holders"]}, rpc=self._worker.rpc, who=self._worker.address
        )
        if key not in values:
            raise RankLost(f"the value of {name!r} is no longer on the ranks. Compute the value again.")
        return values[key]

    # -- the end -----------------------------------------------------------------------------------------------

    async def end(self, **request: Unpack[protocol.End]) -> None:
        """End a cell."""
        cell, reason = self._cell, request["reason"]
        # The request to prepare this cell may arrive later.
        self._ended.add(request["cell"])
        if cell is None or cell.id != request["cell"]:
            return
        cell.watch.end(reason)
        if not request["interrupt"]:
            cell.peer_failed = True
            return
        cell.interrupted = reason
        if not cell.running:
            self._cell = None
            self._report(cell.id, protocol.CANCELLED, reason)
            return
        deadline = time.monotonic() + protocol.RANK_CELL_END_S
        while self._cell is cell and time.monotonic() < deadline:
            if cell.in_user_code:
                signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)
            await asyncio.sleep(_AGAIN)

    def _leave(self, cell: Cell, status: str, summary: str) -> None:
        """Keep the blocks that the cell has written, and report the end of the cell. On the worker's loop."""
        try:
            for key, value in cell.put_back(self._worker.data).items():
                with contextlib.suppress(TypeError):  # a value of a type without weak references, a list for instance
                    self._taken[key] = value
        finally:
            self._report(cell.id, status, summary)

    def _report(self, cell: str, status: str, summary: str) -> None:
        """Report to the head that this rank has ended a cell. On the worker's loop."""
        message: protocol.Ended = {
            "cell": cell,
            "rank": self._context.rank,
            "status": status,
            "summary": brief(summary),
        }
        self._tell(protocol.ENDED, **message)

    # -- on the main thread ------------------------------------------------------------------------------------

    def run(self, code: RunCell) -> CellOutcome:
        """Run a prepared cell."""
        from workbench.mpi import comm_world

        cell = self._cell
        if cell is None or cell.id != code.cell:
            return CellOutcome("ended", "the cell was canceled before its start")
        cell.begin()
        process, written = os.getpid(), Written(but_prints=True)
        # This report precedes the traceback, which takes time.
        failing = functools.partial(self._worker.loop.add_callback, self._report, cell.id, "failing")
        try:
            with self._activity.running(cell.id, "a cell", cell.watch):
                names = self._names(cell)
                outcome = process_state.restored(
                    namespaces.run, code.namespace, run_in_shell, names, code, cell.user_code, failing
                )
        except CallCancelled as error:
            outcome = CellOutcome("ended", str(error))
        except BaseException as error:  # noqa: BLE001  (SIGINT before or after the user's code, MPI that fails)
            outcome = CellOutcome("error", in_words(error))
        finally:
            comm_world.leave()
        if cell.interrupted:
            outcome = CellOutcome("interrupted", cell.interrupted, outcome.traceback)
        end_copy(process)
        text, cut = written.take(cell.request["allowed"]["limit"])
        if text:
            with contextlib.suppress(Exception):  # a stream of the user
                sys.stdout.write(text)
        outcome.cut = cell.cut + cut
        self._cell = None
        self._worker.loop.add_callback(self._leave, cell, outcome.status, outcome.summary)
        return outcome

    def _names(self, cell: Cell) -> dict[str, Any]:
        from workbench.mpi import comm_world
        from workbench.mpi.communicator import Communicator
        from workbench.mpi.communicator_cache import CommunicatorCache

        keep_alive(*self._given_up)  # on the thread that has posted these requests
        self._given_up = []
        if self._communicators is None:
            self._communicators = CommunicatorCache(self._context.cells, "cells")
        serial = cell.request["serial"]
        if serial not in self._comms:
            check = functools.partial(cell.check_meeting, time.monotonic() + JOIN_S)
            communicator = self._communicators.get(serial, cell.request["ranks"], check)
            self._comms[serial] = Communicator(communicator, cell.watch, serial)
        comm_world.enter(self._comms[serial])
        return {"comm": self._comms[serial], "rank": self._context.rank, "size": self._context.size} | cell.names

    def where(self) -> dict[str, Any] | None:
        """Return the position of this rank in a cell; None outside a cell."""
        cell = self._cell
        return None if cell is None else cell.where()

    # -- completion --------------------------------------------------------------------------------------------

    async def complete(self, text: str, namespace: str) -> list[str]:
        """Return the names that begin with `text`, as ``"np.li"``; an empty list while a cell runs."""
        if self._cell is not None:
            return []
        try:
            async with asyncio.timeout(_COMPLETE):
                return await asyncio.to_thread(completions, text, namespaces.names(namespace))
        except TimeoutError:
            return []

    # -- notebooks that have gone ------------------------------------------------------------------------------

    async def unused(self, namespace: str) -> float:
        """Return the seconds for which this rank has received no code for the names of a notebook."""
        return namespaces.unused(namespace)

    async def forget(self, namespace: str) -> None:
        """Delete the names of a notebook, on the main thread."""
        forget = functools.partial(namespaces.forget, namespace)
        if self._engine is not None and self._engine.done() and self._engine.exception() is None:
            from workbench.cells.engine import RankEngine

            RankEngine.instance().call_soon(forget)
        else:  # at the end of the present start of an engine, if there is one
            self._main.submit(forget)


def _unpack(parcel: bytes) -> tuple[Any, str | None]:
    """Return the value of a parcel, and None or an error as text."""
    try:
        return loads(parcel), None
    except Exception as error:  # noqa: BLE001  (whatever the class of the user raises)
        return None, in_words(error)


def _import() -> None:
    """Import the modules of an engine, without the debugger, whose import takes long."""
    hidden = "debugpy" not in sys.modules
    if hidden:
        sys.modules["debugpy"] = None  # type: ignore[assignment]  # its import then fails
    try:
        importlib.import_module("ipykernel.debugger")
        importlib.import_module("workbench.cells.engine")
    finally:
        if hidden:
            del sys.modules["debugpy"]

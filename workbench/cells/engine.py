"""The IPython engine of a rank, which runs the cells of notebooks on the main thread.

This module imports ipyparallel, so only ranks import this module, when the first cell starts.
"""

from __future__ import annotations

import asyncio
import json
import signal
import sys
import threading
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from traceback import walk_stack
from types import FrameType
from typing import Any, NoReturn

from ipykernel.iostream import OutStream
from ipyparallel.engine.app import IPEngine
from IPython.core.interactiveshell import InteractiveShell
from traitlets.config import Config

from workbench.cells import namespaces
from workbench.cells.coroutine import interrupt_coroutine, run_coroutine
from workbench.cells.protocol import REGISTER_S
from workbench.collective import process_state
from workbench.errors import StartError
from workbench.host.output import is_of_worker
from workbench.mpi.context import is_in_call

# A callback of Dask that loses exceptions. A later SIGINT then ends the cell.
_DEAF = "_gc_callback"
# The function of IPython that runs the code of a cell.
_RUNS = InteractiveShell.run_code.__code__


class CellStream(OutStream):
    """Standard output or error of a rank: a cell and its threads write to the notebook, all others to the rank's log.

    Parameters
    ----------
    log
        The stream that this stream replaces.
    admit
        Receives the number of characters to write, and returns how many of them may be sent to the notebook.
    in_cell
        Returns whether a cell runs.
    """

    def __init__(
        self,
        session: Any,
        thread: Any,
        name: str,
        log: Any,
        *,
        admit: Callable[[int], int],
        in_cell: Callable[[], bool],
    ) -> None:
        # Output of C code goes to the log, since the whole process shares the file descriptor.
        super().__init__(session, thread, name, watchfd=False)
        self.log, self._admit, self._in_cell = log, admit, in_cell

    def _is_shown(self) -> bool:
        """Return whether the notebook shows what the calling thread writes."""
        thread = threading.current_thread()
        if not self._is_master_process():  # a process that a cell has forked
            return False
        return thread is threading.main_thread() or (self._in_cell() and not is_in_call() and not is_of_worker(thread))

    def write(self, string: str) -> int:
        """Write a string to the notebook or to the log, by the calling thread."""
        if not self._is_shown():
            return int(self.log.write(string))
        if (admitted := self._admit(len(string))) > 0:
            super().write(string[:admitted])
        return len(string)

    def flush(self) -> None:
        """Send or write what is buffered."""
        if self._is_shown():
            super().flush()
        else:
            self.log.flush()

    def close(self) -> None:
        """Flush only: later cells and the other threads of the rank write to this stream, too."""
        self.flush()

    def fileno(self) -> int:
        """Return the file descriptor of the log: subprocesses write there."""
        return int(self.log.fileno())


def limit_displays(shell: Any, admit: Callable[[int], int]) -> None:
    """Count displays and values of last lines as output, and leave out what exceeds the limit.

    Parameters
    ----------
    shell
        The IPython of this process.
    admit
        As of `CellStream`.
    """
    compute = shell.displayhook.compute_format_data

    def of_value(value: Any) -> tuple[dict[str, Any], dict[str, Any]]:
        data, metadata = compute(value)
        data = _within(data, admit)
        return data, {kind: value for kind, value in metadata.items() if kind in data}

    def of_display(message: dict[str, Any]) -> dict[str, Any] | None:
        if "data" in message["content"]:
            message["content"]["data"] = _within(message["content"]["data"], admit)
        return message if message["content"].get("data") != {} else None

    shell.displayhook.compute_format_data = of_value
    shell.display_pub.register_hook(of_display)


def _within(data: dict[str, Any], admit: Callable[[int], int]) -> dict[str, Any]:
    """Return the MIME types of one object that may be sent: all of them, or the admitted part of the plain text."""
    # Jupyter also sends values that plain JSON does not have, for example times.
    sizes = (
        len(value) if isinstance(value, str | bytes) else len(json.dumps(value, default=str)) for value in data.values()
    )
    total = sum(sizes)
    if (admitted := admit(total)) == total:
        return data
    return {"text/plain": data["text/plain"][:admitted]} if admitted and "text/plain" in data else {}


class RankEngine(IPEngine):  # type: ignore[misc]
    """An engine that starts no processes, writes no files, and installs no signal handlers."""

    def __init__(
        self,
        *,
        registered: Future[str],
        ended: Future[Any],
        admit: Callable[[int], int],
        in_cell: Callable[[], bool],
        run: Callable[[Any], Any],
        named: Callable[[str], object],
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self._registered, self._ended, self._admit, self._in_cell = registered, ended, admit, in_cell
        self.run_cell, self._named = run, named

    def initialize(self, argv: Any = None) -> None:
        """Prepare the start, with the working directory after all libraries on the path: it is the user's."""
        super().initialize(argv)
        sys.path[:] = [*filter(None, sys.path), ""]

    def init_signal(self) -> None:
        """Do nothing: the rank has its signal handlers."""

    def redirect_output(self, iopub_socket: Any) -> None:
        """Send the output and the displays of cells to the notebook."""
        from ipykernel.displayhook import ZMQDisplayHook

        for name in ("stdout", "stderr"):
            log = process_state.streams[name]
            stream = CellStream(self.session, iopub_socket, name, log, admit=self._admit, in_cell=self._in_cell)
            stream.topic = f"engine.{self.id}.{name}".encode()
            process_state.set_stream(name, stream)
        sys.displayhook = ZMQDisplayHook(self.session, iopub_socket)
        sys.displayhook.topic = f"engine.{self.id}.execute_result".encode()

    async def complete_registration(self, *args: Any) -> None:
        """Set up the kernel."""
        await super().complete_registration(*args)
        # These hooks would let a SIGINT end any request, also outside the code of the user.
        self.kernel.pre_handler_hook, self.kernel.post_handler_hook = lambda: None, namespaces.leave
        shell = self.kernel.shell
        # That of ipykernel needs a thread of ipykernel's own application, and a view would never get its answer.
        shell.loop_runner = run_coroutine
        if shell.kernel is not self.kernel:  # the shell of an earlier engine, with the names of the user
            shell.kernel, shell.exit_now = self.kernel, False
        else:
            limit_displays(shell, self._admit)
        set_parent = self.kernel.set_parent

        def begin_request(ident: Any, parent: dict[str, Any], channel: str = "shell") -> None:
            process_state.replace_broken_streams()  # the streams get the identity of the request
            set_parent(ident, parent, channel)
            if channel == "shell":
                name = parent["metadata"].get(namespaces.FIELD, namespaces.SHARED)
                if namespaces.enter(shell, name):
                    self._named(name)

        self.kernel.set_parent = begin_request
        self._registered.set_result(self.ident)

    def exit(self, exit_status: int | str | None = 0) -> NoReturn:
        """Raise an error where ipyparallel would end the process."""
        raise StartError(
            f"the engine of rank {self.id} could not register with its controller. See the log of the rank."
        )

    def abort(self) -> NoReturn:
        """Raise an error if the controller does not answer."""
        raise StartError(
            f"the engine of rank {self.id} did not receive an answer from its controller within {self.timeout:g} s. "
            "See the log of the rank."
        )

    async def _start(self) -> None:
        self._loop = asyncio.get_running_loop()
        await self.register()
        await asyncio.wrap_future(self._ended)

    def call_soon(self, function: Callable[[], object]) -> None:
        """Call a function between two requests. Thread-safe."""
        self._loop.call_soon_threadsafe(function)

    def close(self) -> None:
        """Leave the controller, which then has the number of this engine free, and restore the streams."""
        for name in ("stdout", "stderr"):
            if isinstance(stream := process_state.streams[name], CellStream):
                process_state.set_stream(name, stream.log)
        if self.kernel is None:
            return
        self.session.send(self.registrar, "unregistration_request", content={"id": self.id})
        self.kernel.control_thread.stop()
        self.kernel.iopub_socket.stop()
        for socket in (self.registrar, self.shell_socket, self.control_socket, self.iopub_socket):
            socket.close(linger=1000)
        # The shell with the names of the user stays, for the kernel of the next engine.
        self.kernel.clear_instance()


def serve(
    rank: int,
    connection: dict[str, Any],
    folder: Path,
    *,
    registered: Future[str],
    ended: Future[Any],
    admit: Callable[[int], int],
    in_cell: Callable[[], bool],
    run: Callable[[Any], Any],
    named: Callable[[str], object],
) -> None:
    """Run the engine until its end. On the main thread.

    Parameters
    ----------
    connection
        Connection of the controller for engines.
    folder
        Folder for files of IPython; private to the rank.
    registered
        Gets the identity of the engine when the engine is ready, or the error.
    ended
        Ends the engine when it is done.
    admit, in_cell
        As of `CellStream`.
    run
        Called with each cell that arrives at the engine.
    named
        Called with the name of each namespace that is new.
    """
    settings = Config()
    settings.ProfileDir.location = str(folder)
    settings.HistoryManager.enabled = False
    try:
        # As the application of this process: GUI loops and figures look for it.
        RankEngine.clear_instance()
        process_state.replace_broken_streams()
        # The loop of an engine that was stopped stops again.
        asyncio.set_event_loop(asyncio.new_event_loop())
        engine = RankEngine.instance(
            config=settings,
            id=rank,
            enable_nanny=False,
            max_heartbeat_misses=0,
            timeout=REGISTER_S,
            auto_create=True,
            log_level="ERROR",
            registered=registered,
            ended=ended,
            admit=admit,
            in_cell=in_cell,
            run=run,
            named=named,
        )
        engine.connection_info_env = json.dumps(connection)
        try:
            engine.initialize([])
            engine.start()
        finally:
            engine.close()
    except BaseException as error:  # noqa: BLE001  (the caller that waits for the engine gets the error)
        if not registered.done():
            registered.set_exception(error)


def interruptible(is_in_cell: Callable[[], bool]) -> None:
    """Let SIGINT end the code of a user, and nothing else. On the main thread."""

    def handle(_: int, frame: FrameType | None) -> None:
        if not is_in_cell() or any(each.f_code.co_name == _DEAF for each, _ in walk_stack(frame)):
            return
        if _in_user_code(frame):
            raise KeyboardInterrupt
        interrupt_coroutine(frame)

    signal.signal(signal.SIGINT, handle)


def _in_user_code(frame: FrameType | None) -> bool:
    """Return whether a frame is in the code of the user, or in a function that this code calls."""
    called = None
    while frame is not None and frame.f_code is not _RUNS:
        called, frame = frame, frame.f_back
    return frame is not None and called is not None and called.f_code.co_name.startswith("<")

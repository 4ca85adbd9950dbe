"""The handlers of the API, and of the websocket that sends changes to a browser."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from jupyter_server.auth.decorator import authorized, ws_authenticated
from jupyter_server.base.handlers import JupyterHandler
from tornado import web
from tornado.iostream import StreamClosedError
from tornado.websocket import WebSocketClosedError, WebSocketHandler

from workbench.deploy import registry
from workbench.errors import InvalidRequest, WorkbenchError
from workbench.hints import PANEL
from workbench.lab.server import log_files
from workbench.lab.server.actions import ExecutionContext, answer
from workbench.lab.server.api import ROOT, Handler, HandlerContext, PingingWebSocket, requires, valid_name
from workbench.lab.server.form_fields import field_of, to_argv
from workbench.lab.server.process import end_of, logger, run
from workbench.lab.server.survey import FilesystemTimeout, records


class Events(PingingWebSocket, JupyterHandler):
    """Sends the state to a browser, then changes, each after the message before it is written.

    A change is relative to the last message, so a slow browser misses nothing.
    """

    auth_resource = "workbench"

    def initialize(self, shared: HandlerContext) -> None:
        """Set the shared objects, which tornado passes as a keyword argument."""
        self._board = shared.board
        self._sending: asyncio.Task[None] | None = None
        self._pulse: asyncio.Task[None] | None = None

    async def prepare(self) -> None:  # type: ignore[override]  # of the two bases, Jupyter's
        """Reject users without a login, rather than redirect them."""
        await JupyterHandler.prepare(self, _redirect_to_login=False)

    def check_origin(self, origin: str = "") -> bool:
        """Return whether Jupyter's settings allow a websocket from an origin."""
        return JupyterHandler.check_origin(self, origin)

    @ws_authenticated
    async def get(self, *_: Any, **__: Any) -> None:
        """Open the websocket for logged-in users whom the authorizer allows to read."""
        await self._join()

    @authorized(action="read")  # type: ignore[untyped-decorator]
    async def _join(self) -> None:
        await WebSocketHandler.get(self)  # to the end of the connection

    def open(self, *_: Any, **__: Any) -> None:
        """Start sending."""
        self._sending = asyncio.create_task(self._send())

    def on_message(self, message: str | bytes) -> None:
        """Receive whether the page is visible, and for which clusters it shows heartbeats."""
        try:
            visible = json.loads(message)["visible"]
        except (ValueError, RecursionError, TypeError, KeyError):
            visible = None
        match visible:
            case True:
                self._board.show(self._show)
            case False:
                self._board.hide(self._show)
            case [*names] if all(isinstance(name, str) for name in names):
                self._board.show(self._show, frozenset(names))
            case _:
                self.close(1003, 'valid messages: {"visible": true}, {"visible": false} or {"visible": ["NAME", ...]}')

    def on_close(self) -> None:
        """Stop sending."""
        self._board.hide(self._show)
        if self._sending is not None:
            self._sending.cancel()

    async def _send(self) -> None:
        try:
            with self._board.watching():
                with suppress(FilesystemTimeout):  # the state has the error
                    await self._board.state()
                state = self._board.known
                await self.write_message({"type": "state", **state.whole()})
                while True:
                    before, state = state, await self._board.news(state)
                    await self.write_message({"type": "changed", **state.since(before)})
        except WebSocketClosedError:
            return
        except Exception:
            logger.exception("the websocket of a browser failed; the browser connects again")
            self.close(1011)

    def _show(self, message: dict[str, Any]) -> None:
        # Skipped while the last heartbeat is not written yet.
        if self._pulse is None or self._pulse.done():
            self._pulse = asyncio.create_task(self._write(message))

    async def _write(self, message: dict[str, Any]) -> None:
        try:
            await self.write_message(message)
        except WebSocketClosedError:
            self._board.hide(self._show)


# Seconds for a dry run and for the form, which may query schedulers.
_CHECK, _FORM = 180.0, 120.0
_NO_STARTS = (
    "this Jupyter server starts no clusters: its configuration has WorkbenchExtension.allow_starts = False. Start the "
    "cluster in a notebook or a terminal."
)
# Options of the form that are not options of the subcommand.
_CONTEXT_OPTIONS = ("kernel", "directory")


class _WithOptions(Handler):
    async def parse(self, options: dict[str, Any]) -> tuple[list[str], ExecutionContext, dict[str, str]]:
        """Return command line, execution context, and errors by the names of options.

        Raises
        ------
        HTTPError
            If this server does not start clusters.
        """
        if not self.shared.may_start:
            raise web.HTTPError(403, _NO_STARTS)
        argv, errors = to_argv({name: value for name, value in options.items() if name not in _CONTEXT_OPTIONS})
        root, files = self.shared.root, self.shared.files
        context = ExecutionContext(directory=root)
        try:
            context = replace(context, directory=await files.read(_folder, root, options.get("directory")))
        except InvalidRequest as error:
            errors["directory"] = error.words(PANEL)
        try:
            if options.get("kernel") not in (None, ""):
                kernel = await self.shared.kernels.get(options["kernel"])
                context = replace(context, python=kernel.python or sys.executable, environment=kernel.environment)
        except InvalidRequest as error:
            errors["kernel"] = error.words(PANEL)
        return argv, context, errors


class Clusters(_WithOptions):
    """All clusters, and starts of new ones."""

    @requires("read")
    async def get(self) -> None:
        """Send the state of all clusters."""
        self._track_activity = False  # a panel without its websocket polls
        self.finish((await self.shared.board.state()).whole())

    @requires("execute")
    async def post(self) -> None:
        """Start a cluster."""
        options = self.body()
        argv, context, errors = await self.parse(options)
        if errors:
            raise InvalidRequest(" ".join(errors.values()))
        name = str(options["name"]) if options.get("name") else None
        self.accept(self.shared.board.starts.begin(argv, context, name).describe())


class Start(Handler):
    """A start."""

    @requires("write")
    async def delete(self, key: str) -> None:
        """Forget the start; a start that is not complete is canceled."""
        self.shared.board.starts.dismiss(key)
        self.set_status(204)
        self.finish()


class Cluster(Handler):
    """A cluster."""

    @requires("write")
    async def delete(self, name: str) -> None:
        """Stop the cluster."""
        self.shared.board.changes.begin(await self.record(name), "stop")
        self.accept({})


class Scale(Handler):
    """The ranks of a cluster."""

    @requires("write")
    async def post(self, name: str) -> None:
        """Scale the cluster to a number of ranks."""
        ranks = self.body().get("ranks")
        if isinstance(ranks, bool) or not isinstance(ranks, int) or ranks < 1:
            raise InvalidRequest(option="ranks", given=ranks, allowed="a whole number from 1")
        self.shared.board.changes.begin(await self.record(name), "scale", [str(ranks)])
        self.accept({})


class Restart(Handler):
    """The restart of a cluster's ranks."""

    @requires("write")
    async def post(self, name: str) -> None:
        """Restart the ranks."""
        self.shared.board.changes.begin(await self.record(name), "restart")
        self.accept({})


class LastError(Handler):
    """The error of the last action on a cluster."""

    @requires("write")
    async def delete(self, name: str) -> None:
        """Forget the error."""
        self.shared.board.changes.dismiss((await self.record(name)).id)
        self.set_status(204)
        self.finish()


class _OfCluster(Handler):
    # Following a log is no activity of the user: an open tab would keep a hub's server from being culled.
    _track_activity = False


class Logs(_OfCluster):
    """The log files of a cluster, also after its end."""

    @requires("read")
    async def get(self, name: str) -> None:
        """Send the list of log files."""
        self.finish({"files": await records.read(log_files.listing, valid_name(name), self.key)})


class Log(_OfCluster):
    """A log file."""

    @requires("read")
    async def get(self, name: str, file: str) -> None:
        """Send a part of the file."""
        begin = self.get_query_argument("from", "0")
        try:
            first = int(begin)
        except ValueError:
            raise InvalidRequest(option="from", given=begin, allowed="a whole number of bytes") from None
        self.finish(await records.read(log_files.part, valid_name(name), file, first, key=self.key))


class Download(_OfCluster):
    """A log file as a download."""

    @requires("read")
    async def get(self, name: str, file: str) -> None:
        """Send the file in its present length, block by block."""
        # Only once: another cluster may get the name during the download.
        folder = await records.read(registry.logs_of, valid_name(name), self.key)
        sent, size = 0, -1
        # The log may be truncated or removed during the download: the length shows the browser whether it is complete.
        while sent != size:
            block, _, present_size = await records.read(log_files.block, folder, file, sent)
            if size < 0:
                size = present_size
                self.set_header("Content-Type", "application/octet-stream")
                self.set_header("Content-Length", size)
                self.set_attachment_header(f"{name}-{file}.log")
            if not block:
                break
            self.write(block[: size - sent])
            sent = min(size, sent + len(block))
            try:
                await self.flush()
            except StreamClosedError:
                return  # the user has canceled the download


class Form(Handler):
    """The contents of the start form."""

    @requires("read")
    async def get(self) -> None:
        """Send schedulers, fields and the server's folder."""
        module = "workbench.lab.server.form_fields"
        async with self.shared.place(_FORM) as left:
            result = await run([sys.executable, "-P", "-m", module], left)
        self.finish(answer(result, f"python -m {module}", "fields") | {"directory": str(self.shared.root)})


class Check(_WithOptions):
    """The check of options by a dry run."""

    _check_task: asyncio.Task[None] | None = None

    @requires("execute")
    async def post(self) -> None:
        """Send the job script, or all errors."""
        self._check_task = asyncio.create_task(self._check())
        try:
            await self._check_task
        except asyncio.CancelledError:
            if not self._check_task.cancelled():
                self._check_task.cancel()
                raise

    def on_connection_close(self) -> None:
        """Cancel the dry run: while a user types, each key starts another one."""
        if self._check_task is not None:
            self._check_task.cancel()

    async def _check(self) -> None:
        options, script = self.body(), None
        argv, context, errors = await self.parse(options)
        # A dry run without an invalid option would check another cluster. An invalid folder or kernel is replaced by
        # the server's, with which most options can be checked.
        can_run = errors.keys() <= set(_CONTEXT_OPTIONS)
        try:
            await records.read(_check_name, options.get("name"))
        except InvalidRequest as error:
            errors.setdefault("name", error.words(PANEL))
        if can_run:
            try:
                async with self.shared.place(_CHECK) as left:
                    result = await end_of(context.run("start", ["--dry-run", *argv]), left)
                script = answer(result, "workbench start", "script")["script"]
            except WorkbenchError as error:
                # Other errors, for example of the MPI library, may be caused by the missing kernel.
                if isinstance(error, InvalidRequest) or "kernel" not in errors:
                    errors.setdefault(field_of(error), error.words(PANEL))
        self.finish({"errors": errors, "script": None if errors else script})


class Kernels(Handler):
    """The kernels that run Python."""

    @requires("read")
    async def get(self) -> None:
        """Send the list of kernels, each with the version of the workbench in its environment."""
        self.finish({"kernels": [kernel.describe() for kernel in await self.shared.kernels.all()]})


def _check_name(name: Any) -> None:
    if isinstance(name, str) and name:
        registry.check_free(name)
    else:
        registry.names()  # the dry run reads the names, too, and would hang without a deadline


def _folder(root: Path, directory: Any) -> Path:
    """Return a folder in the server's folder, from a relative or an absolute path."""
    if directory in (None, ""):
        return root
    if not isinstance(directory, str) or "\0" in directory:
        raise InvalidRequest(option="directory", given=directory, allowed="the path of a folder")
    # Links are not resolved: they are the user's own, as in the server's file browser.
    folder = Path(os.path.normpath(root / directory))
    if not folder.is_relative_to(root) or not os.path.isdir(folder):  # noqa: PTH112  (it never raises)
        raise InvalidRequest(option="directory", given=directory, allowed=f"an existing folder in {root}")
    return folder


_NAME = rf"{ROOT}/clusters/([^/]+)"
ROUTES: dict[str, type] = {
    f"{ROOT}/clusters": Clusters,
    f"{ROOT}/starts/([^/]+)": Start,
    _NAME: Cluster,
    f"{_NAME}/scale": Scale,
    f"{_NAME}/restart": Restart,
    f"{_NAME}/error": LastError,
    f"{_NAME}/logs": Logs,
    f"{_NAME}/logs/([^/]+)": Log,
    f"{_NAME}/logs/([^/]+)/download": Download,
    f"{ROOT}/form": Form,
    f"{ROOT}/check": Check,
    f"{ROOT}/kernels": Kernels,
    f"{ROOT}/events": Events,
}
"""Handlers by their path below the base URL of a server; all need a `workbench.lab.server.api.HandlerContext`."""

"""The requests of the API, each a handler."""

from __future__ import annotations

import asyncio
import os
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

from tornado import web
from tornado.iostream import StreamClosedError

from workbench.deploy import logs, registry
from workbench.errors import InvalidRequest, WorkbenchError
from workbench.hints import PANEL
from workbench.server import log_files
from workbench.server.api import ROOT, Handler, requires, valid_name
from workbench.server.blocking_files import records
from workbench.server.form_fields import field_of, words_of
from workbench.server.process import end_of, run
from workbench.server.subcommand import ExecutionContext, answer
from workbench.server.websocket import Events

# Seconds for a dry run, in which a scheduler may be asked, and for the form.
_CHECK, _FORM = 180.0, 120.0
_NO_STARTS = (
    "this Jupyter server starts no clusters: its configuration has WorkbenchExtension.allow_starts = False. Start the "
    "cluster in a notebook or a terminal."
)
# Options that are not those of the verb.
_WHERE = ("kernel", "directory")


class _WithOptions(Handler):
    async def asked(self, options: dict[str, Any]) -> tuple[list[str], ExecutionContext, dict[str, str]]:
        """Return the words for options, where they are meant to run, and what is wrong, by names.

        Raises
        ------
        HTTPError
            If nothing can be started from here.
        """
        if not self.shared.may_start:
            raise web.HTTPError(403, _NO_STARTS)
        words, errors = words_of({name: value for name, value in options.items() if name not in _WHERE})
        root, files = self.shared.root, self.shared.files
        surroundings = ExecutionContext(directory=root)
        try:
            surroundings = replace(surroundings, directory=await files.read(_folder, root, options.get("directory")))
        except InvalidRequest as error:
            errors["directory"] = error.words(PANEL)
        try:
            if options.get("kernel") not in (None, ""):
                its = await self.shared.kernels.get(options["kernel"])
                surroundings = replace(surroundings, python=its.python or sys.executable, environment=its.environment)
        except InvalidRequest as error:
            errors["kernel"] = error.words(PANEL)
        return words, surroundings, errors


class Clusters(_WithOptions):
    """All clusters; a new one."""

    @requires("read")
    async def get(self) -> None:
        """Tell how they are."""
        self._track_activity = False  # a panel without its websocket asks again and again
        self.finish((await self.shared.board.state()).whole())

    @requires("execute")
    async def post(self) -> None:
        """Start one."""
        options = self.body()
        words, surroundings, errors = await self.asked(options)
        if errors:
            raise InvalidRequest(" ".join(errors.values()))
        name = str(options["name"]) if options.get("name") else None
        self.accept(self.shared.board.starts.begin(words, surroundings, name).describe())


class Start(Handler):
    """A start."""

    @requires("write")
    async def delete(self, key: str) -> None:
        """Forget it; one that goes on is ended."""
        self.shared.board.starts.dismiss(key)
        self.set_status(204)
        self.finish()


class Cluster(Handler):
    """A cluster."""

    @requires("write")
    async def delete(self, name: str) -> None:
        """Stop it."""
        self.shared.board.changes.begin(await self.record(name), "stop")
        self.accept({})


class Scale(Handler):
    """The ranks of a cluster."""

    @requires("write")
    async def post(self, name: str) -> None:
        """Have so many."""
        ranks = self.body().get("ranks")
        if isinstance(ranks, bool) or not isinstance(ranks, int) or ranks < 1:
            raise InvalidRequest(option="ranks", given=ranks, allowed="a whole number from 1")
        self.shared.board.changes.begin(await self.record(name), "scale", [str(ranks)])
        self.accept({})


class Restart(Handler):
    """The life of a cluster's ranks."""

    @requires("write")
    async def post(self, name: str) -> None:
        """Start them again."""
        self.shared.board.changes.begin(await self.record(name), "restart")
        self.accept({})


class LastError(Handler):
    """Why the last change of a cluster has failed."""

    @requires("write")
    async def delete(self, name: str) -> None:
        """Forget it."""
        self.shared.board.changes.dismiss((await self.record(name)).id)
        self.set_status(204)
        self.finish()


class _OfCluster(Handler):
    # Following a log is no activity of the user: a tab that was left open would keep a hub's server for ever.
    _track_activity = False

    @property
    def key(self) -> str | None:
        """The identity of the cluster that is meant, of several that have had the name."""
        return self.get_query_argument("id", None)


class Logs(_OfCluster):
    """The log files of a cluster, also after its end."""

    @requires("read")
    async def get(self, name: str) -> None:
        """Tell which there are."""
        self.finish({"files": await records.read(log_files.listing, valid_name(name), self.key)})


class Log(_OfCluster):
    """A log file."""

    @requires("read")
    async def get(self, name: str, file: str) -> None:
        """Tell a part of it."""
        begin = self.get_query_argument("from", "0")
        try:
            first = int(begin)
        except ValueError:
            raise InvalidRequest(f"from {begin!r}: allowed is a whole number, of bytes.") from None
        self.finish(await records.read(log_files.part, valid_name(name), file, first, key=self.key))


class Download(_OfCluster):
    """A log file as it is, which the browser keeps."""

    @requires("read")
    async def get(self, name: str, file: str) -> None:
        """Send as much of it as there is now, block by block."""
        # Another cluster may have the name soon.
        folder = await records.read(logs.folder, valid_name(name), self.key)
        sent, size = 0, -1
        # The log may be begun anew while it is sent, and its folder may go: by the length the browser knows whether it
        # has all of it.
        while sent != size:
            block, _, there = await records.read(log_files.block, folder, file, sent)
            if size < 0:
                size = there
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
                return  # the user has cancelled it


class Form(Handler):
    """What a form for a start has to know."""

    @requires("read")
    async def get(self) -> None:
        """Tell it."""
        ended = await run([sys.executable, "-P", "-m", "workbench.server.form_process"], _FORM)
        self.finish(answer(ended, "form", "fields") | {"directory": str(self.shared.root)})


class Check(_WithOptions):
    """What would come of options, without starting anything."""

    _asking: asyncio.Task[None] | None = None

    @requires("execute")
    async def post(self) -> None:
        """Tell the script, or all that is wrong."""
        self._asking = asyncio.create_task(self._check())
        try:
            await self._asking
        except asyncio.CancelledError:
            if not self._asking.cancelled():
                self._asking.cancel()
                raise

    def on_connection_close(self) -> None:
        """End the dry run: while somebody types, each letter begins another one."""
        if self._asking is not None:
            self._asking.cancel()

    async def _check(self) -> None:
        options, script = self.body(), None
        words, surroundings, errors = await self.asked(options)
        # Without what cannot be typed it would be another cluster. Without its folder and kernel, in whose place are
        # the server's, most of it can be judged.
        can_be_judged = errors.keys() <= set(_WHERE)
        try:
            await records.read(_check_name, options.get("name"))
        except InvalidRequest as error:
            errors.setdefault("name", error.words(PANEL))
        if can_be_judged:
            try:
                async with self.shared.checks:
                    ended = await end_of(surroundings.run("start", ["--dry-run", *words]), _CHECK)
                script = answer(ended, "start", "script")["script"]
            except WorkbenchError as error:
                # Which MPI there is, say, is a matter of the kernel.
                if isinstance(error, InvalidRequest) or "kernel" not in errors:
                    errors.setdefault(field_of(error), error.words(PANEL))
        self.finish({"errors": errors, "script": None if errors else script})


class Kernels(Handler):
    """The kernels that run Python."""

    @requires("read")
    async def get(self) -> None:
        """Tell which there are, and where the workbench is installed."""
        self.finish({"kernels": [kernel.told() for kernel in await self.shared.kernels.all()]})


def _check_name(given: Any) -> None:
    if isinstance(given, str) and given:
        registry.check_free(given)
    else:
        registry.names()  # the dry run would look for a free one, and hang where this does


def _folder(root: Path, given: Any) -> Path:
    """Return the folder that was given, relative to the server's or inside of it."""
    if given in (None, ""):
        return root
    if not isinstance(given, str) or "\0" in given:
        raise InvalidRequest(f"directory {given!r}: allowed is the path of a folder.")
    # Not where links lead to: they are the user's own, as in the server's list of files.
    folder = Path(os.path.normpath(root / given))
    if not folder.is_relative_to(root) or not os.path.isdir(folder):  # noqa: PTH112  (it never raises)
        raise InvalidRequest(f"directory {given!r}: allowed are folders in {root}, and there is none of that name.")
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
"""Handlers by what follows the base URL of a server; all take `workbench.server.api.HandlerContext`."""

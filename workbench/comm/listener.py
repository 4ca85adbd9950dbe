"""Listeners that keep strangers out: who has not shown the cluster's certificate has little time and little space.

Any user of the node can connect to a port. The connections of distributed's own listener wait for the TLS handshake
for ever, until the process has no files left for those who hold the key, and each failure is logged.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import time
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from distributed.comm.registry import backends
from distributed.comm.tcp import TLSBackend, TLSListener
from tornado.ioloop import IOLoop
from tornado.netutil import add_accept_handler

from workbench.processes import open_files

if TYPE_CHECKING:
    from tornado.iostream import IOStream

logger = logging.getLogger("workbench.comm")

# Seconds for the handshake: those that distributed gives who connects.
_HANDSHAKE = 30.0
# Connections whose handshake is not done: each takes 50 KiB of memory.
_MOST = 4096
# Seconds between two lines in the log.
_QUIET = 60.0
# Seconds without a new connection, where there are no files for one.
_PAUSE = 0.1
# What the system says when it has no room for a connection.
_FULL = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)


class Warnings:
    """Logs warnings that strangers can cause: one now and then, with the number of those that were left out."""

    def __init__(self) -> None:
        self._next, self._left_out = 0.0, 0

    def warn(self, what: str) -> None:
        """Log a warning, or count it."""
        now = time.monotonic()
        if now < self._next:
            self._left_out += 1
            return
        logger.warning("%s%s", what, f" ({self._left_out} more were not logged)" * bool(self._left_out))
        self._next, self._left_out = now + _QUIET, 0


_warnings = Warnings()


class GuardedTLSListener(TLSListener):
    """Distributed's listener, with a deadline for handshakes and a bound for how many are under way."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        # The oldest first. More than half of the files are never theirs, nor is much memory.
        self._strangers: dict[IOStream, None] = {}
        self._most = min(open_files.most() // 2, _MOST)

    async def start(self) -> None:
        """Listen."""
        await super().start()
        # Tornado lets an error of accept() end the callback, which is called again at once.
        server: Any = self.tcp_server
        handlers: dict[int, Callable[[], None]] = server._handlers  # noqa: SLF001
        for number, listening in server._sockets.items():  # noqa: SLF001
            handlers[number]()
            accepting: Any = _Accepting(listening, self.turn_away)
            handlers[number] = add_accept_handler(accepting, partial(_take, server))

    def stop(self) -> None:
        """Listen no more."""
        super().stop()
        while self.turn_away("this process listens no more"):
            pass

    def turn_away(self, why: str) -> bool:
        """Close the oldest connection whose handshake is not done; return whether there was one."""
        for stream in self._strangers:
            del self._strangers[stream]
            stream.close(exc_info=ConnectionAbortedError(why))
            return True
        return False

    async def _prepare_stream(self, stream: IOStream, address: str) -> IOStream | None:
        self._strangers[stream] = None
        if len(self._strangers) > self._most:
            self.turn_away(f"more than {self._most} others came before its handshake was done")
        late = TimeoutError(f"its handshake was not done after {_HANDSHAKE:.0f} s")
        timer = asyncio.get_running_loop().call_later(_HANDSHAKE, stream.close, late)
        try:
            await stream.wait_for_handshake()  # type: ignore[attr-defined]
        except OSError as error:
            _warnings.warn(f"a connection from {address} did not show the cluster's certificate: {error}")
            return None
        finally:
            timer.cancel()
            self._strangers.pop(stream, None)
        return stream


def _take(server: Any, connection: Any, address: Any) -> None:
    """Have the server of a listener serve a connection."""
    try:
        server._handle_connection(connection, address)  # noqa: SLF001
    except OSError as error:  # it has ended already
        connection.close()
        _warnings.warn(f"a connection from {address} ended before its TLS handshake: {error}")


class _Accepting:
    """A listening socket as tornado uses it, which makes room where there is none for a connection."""

    def __init__(self, listening: Any, turn_away: Callable[[str], bool]) -> None:
        self._listening, self._turn_away = listening, turn_away
        self.fileno, self.close = listening.fileno, listening.close

    def accept(self) -> Any:
        """Return a connection and the address of who has made it; raise BlockingIOError if there is none now."""
        while True:
            try:
                return self._listening.accept()
            except OSError as error:
                if error.errno not in _FULL:
                    raise
                _warnings.warn(f"there is no room for one more connection: {error}")
                if not self._turn_away(f"another one needed its place: {error}"):
                    # The loop would come back at once, and do nothing else.
                    loop = IOLoop.current()
                    loop.update_handler(self.fileno(), 0)
                    loop.call_later(_PAUSE, self._resume)
                    raise BlockingIOError from error

    def _resume(self) -> None:
        if self.fileno() >= 0:  # else it was closed meanwhile
            IOLoop.current().update_handler(self.fileno(), IOLoop.READ)


class _GuardedTLSBackend(TLSBackend):
    _listener_class = GuardedTLSListener


def guard() -> None:
    """Have all that listens in this process by ``tls://`` from now on do so with this listener."""
    backends["tls"] = _GuardedTLSBackend()
    # Tornado logs each failed handshake, which is told above.
    logging.getLogger("tornado.general").addFilter(_is_not_of_a_handshake)


def _is_not_of_a_handshake(record: logging.LogRecord) -> bool:
    return not str(record.msg).startswith("SSL Error on")

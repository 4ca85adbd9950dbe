"""Websockets that ping their browser, since a browser may disappear without closing the connection."""

from __future__ import annotations

from tornado.websocket import WebSocketHandler

# Seconds between two pings, and for the answer, unless the site has set `ServerApp.websocket_ping_interval`.
_PING = 30.0


class PingingWebSocket(WebSocketHandler):
    """A websocket that is closed when its browser does not answer any more."""

    @property
    def ping_interval(self) -> float:
        """Seconds between two pings."""
        return self.settings.get("websocket_ping_interval") or _PING

    @property
    def ping_timeout(self) -> float:
        """Seconds for the answer to a ping."""
        return self.settings.get("websocket_ping_timeout") or self.ping_interval

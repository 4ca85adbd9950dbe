"""A connector of ``tls://`` that reports a peer that ends before the handshake as a lost connection.

Tornado then raises ValueError, which distributed takes for a malformed address: a client stops trying
to reach its scheduler, logs a traceback, and raises the error once more when the client is closed.
"""

from __future__ import annotations

from typing import Any

from distributed.comm.core import CommClosedError
from distributed.comm.tcp import TLSBackend, TLSConnector

# The beginning of tornado's message for a stream that cannot start TLS: of a new stream, only a closed one cannot.
_CLOSED = "IOStream is not idle"


class RetryingTLSConnector(TLSConnector):
    """Distributed's connector, with an error after which distributed tries again."""

    async def connect(self, address: str, deserialize: bool = True, **connection_args: Any) -> Any:
        """Return a connection.

        Raises
        ------
        CommClosedError
            If the peer has closed the connection.
        """
        try:
            return await super().connect(address, deserialize, **connection_args)
        except ValueError as error:
            if not str(error).startswith(_CLOSED):
                raise
            message = f"{self.prefix}{address} closed the connection before the TLS handshake"
            raise CommClosedError(message) from error


def use() -> None:
    """Make this connector the one of all later connections to ``tls://`` of this process."""
    TLSBackend._connector_class = RetryingTLSConnector  # noqa: SLF001

"""The plug-in for the scheme ``mpi``, which distributed finds with the entry point ``distributed.comm.backends``.

A connection uses TLS, with certificates of both sides, if and only if the caller's security has an SSL context.
"""

from __future__ import annotations

import ssl
from typing import Any

from distributed.comm.core import Connector
from distributed.comm.tcp import TCPBackend, TCPConnector, TCPListener

from workbench.comm.comm import MPIComm, MPITLSComm
from workbench.comm.listener import GuardedTLSListener, RetryingTLSConnector

_PREFIX = "mpi://"


class _PlainConnector(TCPConnector):
    prefix, comm_class = _PREFIX, MPIComm


class _TLSConnector(RetryingTLSConnector):
    prefix, comm_class = _PREFIX, MPITLSComm


class _PlainListener(TCPListener):
    prefix, comm_class = _PREFIX, MPIComm


class _TLSListener(GuardedTLSListener):
    prefix, comm_class = _PREFIX, MPITLSComm


class MPIConnector(Connector):
    """Connects to an address of the scheme ``mpi``."""

    async def connect(self, address: str, deserialize: bool = True, **connection_args: Any) -> MPIComm:
        """Return a connection."""
        connector = _TLSConnector() if _is_encrypted(connection_args) else _PlainConnector()
        comm: MPIComm = await connector.connect(address, deserialize, **connection_args)
        return comm


class MPIBackend(TCPBackend):
    """The scheme ``mpi``, with the addresses of TCP."""

    def get_connector(self) -> MPIConnector:
        """Return a connector."""
        return MPIConnector()

    def get_listener(
        self, loc: str, handle_comm: Any, deserialize: bool, **connection_args: Any
    ) -> TCPListener | GuardedTLSListener:
        """Return a listener that is not started yet."""
        listener = _TLSListener if _is_encrypted(connection_args) else _PlainListener
        return listener(loc, handle_comm, deserialize, **connection_args)


def _is_encrypted(connection_args: dict[str, Any]) -> bool:
    return isinstance(connection_args.get("ssl_context"), ssl.SSLContext)

"""Sockets of another user, which it takes root to have."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

NOBODY = 65534


@contextmanager
def as_nobody() -> Iterator[None]:
    """Have all that is opened meanwhile be of another user; the test is skipped where that is not possible."""
    if os.geteuid() != 0:
        pytest.skip("it takes root to be another user")
    os.seteuid(NOBODY)
    try:
        yield
    finally:
        os.seteuid(0)


def connected(address: tuple[str, int], timeout: float, *, nobody: bool = False) -> socket.socket:
    """Return a connection to an address, of this user or of the user ``nobody``."""
    if not nobody:
        return socket.create_connection(address, timeout)
    with as_nobody():
        return socket.create_connection(address, timeout)

"""How many files a process may have open: every connection is one."""

from __future__ import annotations

import resource

from workbench.errors import InvalidRequest

# That are asked for: Dask allows itself half as many connections.
_WANTED = 65536
# Connections of a head beside those to ranks in a call: to clients, and to ranks that are asked where they are.
_OTHERS = 64


def allow_many() -> None:
    """Let this process, and those that it starts from now on, have as many files open as the system allows."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _WANTED if hard == resource.RLIM_INFINITY else min(hard, _WANTED)
    if resource.RLIM_INFINITY != soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def most() -> int:
    """Return how many files this process may have open."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return _WANTED if soft == resource.RLIM_INFINITY else soft


def check_ranks(ranks: int) -> None:
    """Return if a head whose limit is that of this process can have calls on all of `ranks` ranks.

    Raises
    ------
    InvalidRequest
        If these are too many.

    Notes
    -----
    A call holds a connection to each rank. Dask gives its scheduler half of the files for connections, and waits
    without a deadline when they are all in use: the call would never end.
    """
    allowed = most() // 2 - _OTHERS
    if ranks > allowed:
        raise InvalidRequest(
            f"{ranks} ranks: the head may have {most()} files open, and this is enough for {allowed} ranks.",
            option="ranks",
            given=ranks,
            allowed=f"up to {allowed}",
            hint="Start fewer ranks, or have the hard limit raised on the head's node (nofile in "
            "/etc/security/limits.conf; ulimit -Hn prints it).",
        )

"""The limit of open files of a process; each connection is a file."""

from __future__ import annotations

import resource

from workbench.errors import InvalidRequest

# The requested limit. Dask uses at most half of the files for connections.
_WANTED = 65536
# Connections of a head other than those to ranks in a call: to clients, and to ranks for their state.
_OTHER_CONNECTIONS = 64


def allow_many() -> None:
    """Raise the limit of open files of this process and its later children, as far as the system allows."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _WANTED if hard == resource.RLIM_INFINITY else min(hard, _WANTED)
    if resource.RLIM_INFINITY != soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def limit() -> int:
    """Return the limit of open files of this process."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return _WANTED if soft == resource.RLIM_INFINITY else soft


def check_ranks(ranks: int) -> None:
    """Raise InvalidRequest if a head with the limit of this process cannot have calls on `ranks` ranks.

    A call holds a connection to each rank. Dask's scheduler uses at most half of the files for connections, and waits
    without a deadline when all are in use, so the call would never end.
    """
    valid = limit() // 2 - _OTHER_CONNECTIONS
    if ranks > valid:
        raise InvalidRequest(
            f"{ranks} ranks are too many: the head may open {limit()} files, which is enough for {valid} ranks.",
            option="ranks",
            given=ranks,
            allowed=f"up to {valid}",
            hint="Start fewer ranks, or ask your administrator to raise the hard limit on the node of the head (nofile "
            "in /etc/security/limits.conf; ulimit -Hn prints the limit).",
        )

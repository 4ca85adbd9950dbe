"""What a proxy hands requests on to."""

from __future__ import annotations

from contextlib import AbstractContextManager
from pathlib import Path
from typing import Protocol


class Upstream(Protocol):
    """An HTTP server that is reached by a Unix socket of this host, wherever it runs."""

    @property
    def name(self) -> str:
        """What it is, in words."""
        ...

    @property
    def root(self) -> str:
        """The path, as its server has it, of what the browser finds under the prefix; with a slash at its end."""
        ...

    async def socket(self) -> Path:
        """Return the socket that it answers on, and start it if need be.

        Raises
        ------
        WorkbenchError
            If it cannot be reached; the message is for the person who looks.
        """
        ...

    def viewing(self) -> AbstractContextManager[None]:
        """Give a context in which somebody looks at it."""
        ...

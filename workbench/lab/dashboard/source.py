"""The interface between a dashboard and the source of its metrics."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from workbench.metrics.update import Update

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


class Source(Protocol):
    """The head of a cluster, or a simulation."""

    async def ask(self, since: int) -> Update:
        """Return all new metrics.

        Parameters
        ----------
        since
            `Update.seq` of the last answer; 0 for all metrics.

        Raises
        ------
        OSError
            If the source does not answer in time; the caller may try again.
        ClusterNotFound
            If the cluster has ended, with the reason.
        """
        ...

    async def pair(self, source: int, target: int) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Return the history of the traffic from one place to another.

        Parameters
        ----------
        source, target
            Row and column of `Update.traffic`.

        Returns
        -------
        times : ndarray, shape (f,)
            Seconds since the epoch, oldest first.
        rates : ndarray, shape (f, len(KINDS))
            Bytes per second.

        Raises
        ------
        OSError
            If the source does not answer in time.
        """
        ...

"""The source of the numbers of a dashboard."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from workbench.metrics.update import Update

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


class Source(Protocol):
    """The head of a cluster, or a simulation."""

    async def ask(self, since: int) -> Update:
        """Return all that is new.

        Parameters
        ----------
        since
            `Update.seq` of the last answer; 0 for all that there is.

        Raises
        ------
        OSError
            If there is no answer in time; one may ask again.
        ClusterNotFound
            If the cluster has ended, with how it ended.
        """
        ...

    async def pair(self, source: int, target: int) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Return what one place has sent to another, as it is remembered.

        Parameters
        ----------
        source, target
            Row and column of `Update.traffic`.

        Returns
        -------
        times : ndarray, shape (f,)
            Seconds since the epoch, oldest first.
        rates : ndarray, shape (f, len(KINDS))
            Bytes a second.

        Raises
        ------
        OSError
            If there is no answer.
        """
        ...

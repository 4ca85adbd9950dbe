"""The pages of clusters: ``workbench/dashboard/NAME/`` and ``workbench/dask/NAME/``.

What is behind them comes from the registry alone; nothing of a request is ever a path, a host or a port.
"""

from __future__ import annotations

import asyncio
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass
from pathlib import Path

from workbench.deploy import registry
from workbench.deploy.record import Record
from workbench.errors import ClusterNotFound, HeadUnreachable, InvalidRequest, WorkbenchError
from workbench.hints import PANEL
from workbench.server.blocking_files import FilesystemTimeout, records
from workbench.server.dashboards import DashboardProcesses, dask_socket
from workbench.server.proxy import Proxy, Upstream, without_token

ROUTE = r"workbench/(dashboard|dask)/([^/]+)(/.*)?"
"""What follows the base URL of a server: the kind of pages, the name of a cluster, the path of a page."""


@dataclass(frozen=True)
class Dashboard:
    """The dashboard of a cluster, a process of this server."""

    record: Record
    """The cluster."""
    root: str
    """Its pages are served as the browser asks for them, for the process is told its prefix."""
    panels: DashboardProcesses
    """What starts and ends it."""

    @property
    def name(self) -> str:
        """What it is, in words."""
        return f"the dashboard of cluster {self.record.name!r}"

    async def socket(self) -> Path:
        """Return the socket of its process, started if need be."""
        if self.record.address is None:
            raise HeadUnreachable(
                f"cluster {self.record.name!r} has no head yet, it is {self.record.state}. "
                "Reload this page when it is ready."
            )
        return await self.panels.socket(self.record, self.root)

    def viewing(self) -> AbstractContextManager[None]:
        """Give a context in which it is kept."""
        return self.panels.viewing(self.record)


@dataclass(frozen=True)
class DaskDashboardHandler:
    """Dask's own pages of a cluster, to which the process of its dashboard leads."""

    dashboard: Dashboard
    """The dashboard."""
    root: str = "/"
    """Dask knows nothing of the browser's prefix."""

    @property
    def name(self) -> str:
        """What it is, in words."""
        return f"Dask's dashboard in the head of cluster {self.dashboard.record.name!r}"

    async def socket(self) -> Path:
        """Return the socket of the way there."""
        return dask_socket(await self.dashboard.socket())

    def viewing(self) -> AbstractContextManager[None]:
        """Give a context in which the way is kept."""
        return self.dashboard.viewing()


class ClusterPages(Proxy):
    """Answers for all pages of all clusters; who may see them is for derived classes to check."""

    place = PANEL
    """Where errors are read, as of `workbench.hints`."""

    def initialize(self, panels: DashboardProcesses, base: str) -> None:
        """Take what all requests share.

        Parameters
        ----------
        panels
            Dashboards that run.
        base
            Base URL of the server, a path with a slash at its end.
        """
        self._panels, self._base = panels, base

    async def answer(self, kind: str, name: str) -> None:
        """Answer a request for a page or a websocket of a cluster.

        Parameters
        ----------
        kind
            ``dashboard`` or ``dask``.
        name
            Name of the cluster, as the request has it.
        """
        try:
            record = await _record(name)
            prefix, of_dashboard = (f"{self._base}workbench/{each}/{record.name}/" for each in (kind, "dashboard"))
            # As it was quoted: after the base come three words, and the rest.
            rest = self.request.path.removeprefix(self._base).split("/", 3)[3:]
            query = without_token(self.request.query)
            # An address is handed on, and kept: by then Jupyter's cookie does what the token did.
            if rest and (query == self.request.query or self.is_websocket):
                dashboard = Dashboard(record, of_dashboard, self._panels)
                upstream: Upstream = dashboard if kind == "dashboard" else DaskDashboardHandler(dashboard)
                await self.forward(upstream, prefix, rest[0])
            else:
                place = prefix + "".join(rest)
                self.redirect(f"{place}?{query}" if query else place)
        except (ClusterNotFound, InvalidRequest) as error:
            self.error_page(404, error.words(self.place))
        except FilesystemTimeout as error:
            self.error_page(504, error.words(self.place))
        except WorkbenchError as error:
            self.error_page(502, error.words(self.place))
        except OSError as error:
            self.error_page(
                502, f"what shows cluster {name!r} cannot be started: {error}. Reload this page, or free what lacks."
            )


async def _record(name: str) -> Record:
    with suppress(ClusterNotFound):
        record = await records.read(registry.read, name)
        # Whether a job of another host runs would be a question to its scheduler for every picture of a page.
        if record.alive() is not False and record.state != "failed":
            return record
    # It tells of one that has ended; to remove its record schedulers may be asked, for whom no record waits.
    return await asyncio.to_thread(registry.running, name)

"""The pages of clusters, which the observer of this server serves on Unix sockets.

Sockets come from the observer alone; no part of a request is ever used as a path, a host or a port.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from pathlib import Path

from workbench.deploy import registry
from workbench.deploy.record import Record
from workbench.errors import ClusterNotFound, HeadUnreachable, InvalidRequest, WorkbenchError
from workbench.hints import PANEL
from workbench.lab.server.observer import Observer
from workbench.lab.server.proxy import Proxy, without_token
from workbench.lab.server.survey import FilesystemTimeout, records

# Seconds for the first page of a cluster, for which the observer connects to the head.
_START = 60.0

ROUTE = r"workbench/(dashboard|dask)/([^/]+)(/.*)?"
"""Path below the base URL of a server: the kind of pages, the name of a cluster, the path of a page."""


class ClusterPages(Proxy):
    """Serves all pages of all clusters; derived classes check the permissions."""

    place = PANEL
    """Place of error messages, as of `workbench.hints`."""

    def initialize(self, observer: Observer, base: str) -> None:
        """Set the objects that all requests share.

        Parameters
        ----------
        observer
            The observer of this server.
        base
            Base URL of the server, a path with a slash at its end.
        """
        self._observer, self._base = observer, base

    async def answer(self, kind: str, name: str) -> None:
        """Answer a request for a page or a websocket of a cluster.

        Parameters
        ----------
        kind
            ``dashboard`` or ``dask``.
        name
            Name of the cluster in the request.
        """
        try:
            record = await _record(name)
            prefix = f"{self._base}workbench/{kind}/{record.name}/"
            # From the quoted path, since the upstream decodes it: three parts after the base, and the path of a page.
            rest = self.request.path.removeprefix(self._base).split("/", 3)[3:]
            query = without_token(self.request.query)
            # The token is removed from the address, which users share and bookmark: Jupyter's cookie replaces it.
            if rest and (query == self.request.query or self.is_websocket):
                await self._forward(record, kind, prefix, rest[0])
            else:
                url = prefix + "".join(rest)
                self.redirect(f"{url}?{query}" if query else url)
        except (ClusterNotFound, InvalidRequest) as error:
            self.error_page(404, error.words(self.place))
        except FilesystemTimeout as error:
            self.error_page(504, error.words(self.place))
        except WorkbenchError as error:
            self.error_page(502, error.words(self.place))

    async def _forward(self, record: Record, kind: str, prefix: str, rest: str) -> None:
        if self.is_foreign:
            self.send_error(403)
            return
        if record.address is None:
            raise HeadUnreachable(
                f"cluster {record.name!r} has no head yet, because its state is {record.state}. Reload this page when "
                "the cluster is ready."
            )
        # The observer serves dashboards below their path in the browser. Dask does not know that path.
        pages = f"{self._base}workbench/dashboard/{record.name}/"
        sockets = await self._observer.ask("dashboard", _START, name=record.name, key=record.id, prefix=pages)
        if kind == "dashboard":
            root, server = pages, f"the dashboard of cluster {record.name!r}"
        else:
            root, server = "/", f"Dask's dashboard in the head of cluster {record.name!r}"
        await self.forward(Path(sockets[kind]), root, prefix, rest, server)


async def _record(name: str) -> Record:
    with suppress(ClusterNotFound):
        record = await records.read(registry.read, name)
        # For the job of another host each request would query the scheduler.
        if record.alive() is not False and record.state != "failed":
            return record
    # Raises for a cluster that has ended. In another thread, since removing the record may query schedulers.
    return await asyncio.to_thread(registry.running, name)

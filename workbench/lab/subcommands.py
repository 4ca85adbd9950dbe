"""The subcommands `dashboard` and `report`, which load servers and Panel only when they run."""

from __future__ import annotations

from contextlib import suppress
from html import escape
from socket import gethostname
from urllib.parse import urlsplit

from workbench.commands.subcommand import Answer, Argument, Place, Subcommand
from workbench.commands.table import NAME
from workbench.deploy.record import Record
from workbench.errors import InvalidRequest
from workbench.hints import NOTEBOOK, TERMINAL, Command
from workbench.session import current


def _dashboard(at: Place, name: str | None) -> Answer | None:
    """Show the dashboard in a frame of a notebook, or serve the dashboard until Ctrl-C in a terminal."""
    record = at.choose(name)
    if at.name == NOTEBOOK:
        url = dashboard_url(record)
        return Answer(url, html=dashboard_html(url))
    from workbench.lab.server.standalone import serve

    with suppress(KeyboardInterrupt):
        serve(record.name, lambda url: at.show(Answer(_opened(url), {"url": url})))
    return None


def dashboard_url(record: Record) -> str:
    """Return the path of a cluster's dashboard on the Jupyter server of this notebook.

    Raises
    ------
    InvalidRequest
        If the notebook has no server that shows dashboards.
    """
    if not (path := current.dashboard_path(record.name)):
        raise InvalidRequest(
            "the Jupyter server of this notebook does not show dashboards.",
            hint="Run `jupyter server extension enable workbench.lab` in the environment of the server, and restart "
            f"the server; or run {Command('dashboard', record.name).at(TERMINAL)} in a terminal.",
        )
    return path


def dashboard_html(url: str) -> str:
    """Return a frame with the dashboard, and a link."""
    return (
        f'<iframe src="{escape(url)}" title="dashboard" style="width:100%;height:720px;border:0"></iframe>'
        f'<div><a href="{escape(url)}" target="_blank" rel="noopener">open the dashboard in a new tab</a></div>'
    )


def _opened(url: str) -> str:
    port = urlsplit(url).port
    return (
        f"{url}\nThe link opens once, in one browser. Ctrl-C ends the dashboard; the cluster continues.\n"
        f"For a browser on another machine, forward the port first: ssh -L {port}:127.0.0.1:{port} {gethostname()}"
    )


def _report(at: Place, file: str, name: str | None) -> str:
    from workbench.lab.html_report import report

    return report(file, name, at.record)


DASHBOARD = Subcommand(
    "dashboard", "show every rank of a cluster, live", "look at a cluster", _dashboard, arguments=(NAME,)
)
REPORT = Subcommand(
    "report",
    "write the dashboard to one HTML file, which needs no server and no cluster",
    "look at a cluster",
    _report,
    lambda text, _: Answer(text, {"report": text}),
    (
        Argument("file", "file to write, for example report.html; an existing file is replaced", "FILE", required=True),
        NAME,
    ),
)

"""``%mpicluster``: start, watch and end MPI clusters from a notebook."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
import re
import threading
from typing import TYPE_CHECKING, Any

from IPython.core.completer import (
    CompletionContext,
    SimpleCompletion,
    SimpleMatcherResult,
    context_matcher,
)
from IPython.core.error import UsageError
from IPython.core.magic import Magics, line_magic, magics_class
from IPython.display import display

from workbench.cells import magics as cells_magics
from workbench.commands import actions
from workbench.commands import format as commands_format
from workbench.commands.actions import profile
from workbench.commands.html_report import report
from workbench.commands.parse import complete, parse
from workbench.commands.table import overview
from workbench.deploy import registry
from workbench.deploy.registry import Record
from workbench.errors import ClusterNotFound, WorkbenchError
from workbench.hints import NOTEBOOK
from workbench.log import debug_log
from workbench.metrics import magics as metrics_magics
from workbench.text import split

if TYPE_CHECKING:
    from distributed import Client
    from IPython.core.interactiveshell import InteractiveShell

    from workbench.cluster import MPICluster

_DOC = f"""Start, watch and end MPI worlds that are Dask clusters.

`start` and `attach` bind `cluster` and `client` in your namespace; the other verbs are about that
cluster unless they are given a name. Clusters outlive the notebook: `list` and `attach` find them again.
`{{name}}` and `$name` stand for the values of your variables.

{overview(NOTEBOOK)}

Examples
--------
::

    %mpicluster start 8
    %mpicluster start {{n}} --threads 2 --memory 4GB --name big
    %mpicluster logs --rank 3
    %mpicluster stop
"""


@magics_class
class ClusterMagics(Magics):
    """The line magic ``%mpicluster``; each verb is a method of its own."""

    shell: InteractiveShell

    @line_magic
    def mpicluster(self, line: str) -> None:  # noqa: D102  # written below, from the table of the verbs
        try:
            call = parse(split(line), NOTEBOOK)
            with debug_log.shown(verbose=call.options.pop("verbose", False)):
                getattr(self, f"_{call.verb}")(**call.options)
        except WorkbenchError as error:
            raise UsageError(str(error)) from None

    mpicluster.__doc__ = _DOC

    # -- verbs -------------------------------------------------------------------------------------------------

    def _help(self, text: str) -> None:
        print(text)

    def _start(self, ranks: str | None, **options: Any) -> None:
        started = actions.start(ranks=ranks, **options)
        if isinstance(started, str):
            print(started)
        else:
            self._bind(started)

    def _attach(self, name: str, ssh_tunnel: str | None) -> None:
        self._bind(actions.attach(name, ssh_tunnel))

    def _status(self, name: str | None) -> None:
        status = actions.status(self._choose(name), self._cluster)
        _display(commands_format.status_text(status), commands_format.status_html(status))

    def _list(self, *, all: bool) -> None:  # noqa: A002  # as the option is called
        listing = actions.listing(everything=all)
        _display(commands_format.listing_text(listing), commands_format.listing_html(listing))

    def _logs(self, name: str | None, rank: str | None) -> None:
        print(actions.logs(name, rank, self._record))

    def _scale(self, ranks: str, name: str | None) -> None:
        status = actions.scale(self._choose(name), ranks, self._cluster)
        print(commands_format.status_line(status))

    def _restart(self, name: str | None) -> None:
        status = actions.restart(self._choose(name), self._cluster)
        print(commands_format.status_line(status))

    def _where(self, name: str | None, stacks: bool) -> None:
        print(commands_format.where_text(actions.where(self._choose(name), self._cluster), stacks=stacks))

    def _metrics(self, name: str | None, table: str | None, out: str | None) -> None:
        print(actions.metrics(self._choose(name), table, out, self._cluster))

    def _profile(self, name: str | None) -> None:
        display(profile(self._choose(name), self._cluster))

    def _dashboard(self, name: str | None) -> None:
        url = actions.dashboard_url(self._choose(name))
        _display(url, commands_format.dashboard_html(url))

    def _report(self, file: str, name: str | None) -> None:
        print(report(file, name, self._record))

    def _stop(self, name: str | None, all: bool) -> None:  # noqa: A002  # as the option is called
        bound = self._record
        try:
            targets = actions.targets(name, everything=all, bound=bound)
        except ClusterNotFound:
            if name is None and bound is not None:
                self._unbind()
            raise
        if bound is not None and bound.id in [record.id for record in targets.records]:
            self._unbind()
        stopped = actions.stop(targets)
        print(commands_format.stopped_text(stopped))
        if stopped.failed:
            raise UsageError(commands_format.failed_text(stopped, NOTEBOOK))

    def _script(self, name: str | None) -> None:
        print(actions.script(self._choose(name)))

    def _doctor(self, name: str | None, mpi: str | None) -> None:
        findings = []
        for finding in actions.doctor(name, mpi):
            print(commands_format.finding_text(finding, NOTEBOOK))
            findings.append(finding)
        print(commands_format.findings_summary(findings))

    # -- the user's names --------------------------------------------------------------------------------------

    @property
    def _cluster(self) -> MPICluster | None:
        """The cluster in the user's name ``cluster``, if it is one of ours and connected."""
        from workbench.cluster import MPICluster

        cluster = self.shell.user_ns.get("cluster")
        usable = isinstance(cluster, MPICluster) and cluster.status.name == "running" and not cluster.asynchronous
        return cluster if usable else None

    @property
    def _record(self) -> Record | None:
        cluster = self._cluster
        return None if cluster is None else cluster.record

    def _choose(self, name: str | None) -> Record:
        return actions.choose(name, self._record)

    def _bind(self, cluster: MPICluster) -> None:
        try:
            client = cluster.get_client()
        except BaseException:
            cluster.close()
            raise
        before = self._record
        if before is not None:
            self._unbind()
            if before.id != cluster.record.id:
                _tell_what_became_of(before)
        client.subscribe_topic("workbench", functools.partial(self._notify, cluster))
        cluster.on_gone = functools.partial(self._gone, cluster)
        self.shell.push({"cluster": cluster, "client": client})
        display(cluster)

    async def _notify(self, cluster: MPICluster, event: tuple[float, dict[str, Any]]) -> None:
        """Print what users have to see at once, wherever they are in their notebook: ranks lost, the end that comes."""
        _, told = event
        # Of an object that is being closed here they know.
        if cluster.status.name != "running" or not told.get("kind"):
            return
        if told["kind"] == "end":
            await cluster.detach()
            self._part(cluster, told["message"])
        else:
            _tell(cluster, told["message"])

    def _gone(self, cluster: MPICluster, reason: str) -> None:
        self._part(cluster, f"it has ended: {reason}. Its logs are in {cluster.record.logs}")

    def _part(self, cluster: MPICluster, message: str) -> None:
        """Tell that a cluster ends without the user's doing here, and take its names away."""
        _tell(cluster, message)
        # Of a scheduler that is gone Dask would complain for minutes. This is its thread, which must not wait.
        threading.Thread(target=self._release, args=[cluster], name="release", daemon=True).start()

    def _unbind(self) -> None:
        """Let go of the cluster in the user's name ``cluster``."""
        cluster = self._cluster
        if cluster is not None:
            self._release(cluster)

    def _release(self, cluster: MPICluster) -> None:
        """Close a cluster and the user's ``client`` of it, and take the names away; the cluster goes on."""
        names, client = self.shell.user_ns, self.shell.user_ns.get("client")
        if getattr(client, "cluster", None) is cluster:
            del names["client"]
            _close(client)
        if names.get("cluster") is cluster:
            del names["cluster"]
        cluster.detach()


def _close(client: Client) -> None:
    # Dask reports it as an error, with a traceback, that a client gives up to reach a scheduler that is gone.
    logger = logging.getLogger("distributed.client")
    logger.addFilter(_no_cancellation)
    try:
        client.close()
    finally:
        logger.removeFilter(_no_cancellation)


def _no_cancellation(record: logging.LogRecord) -> bool:
    return record.exc_info is None or not isinstance(record.exc_info[1], asyncio.CancelledError)


def _tell(cluster: MPICluster, message: str) -> None:
    print(f"cluster {cluster.record.name!r}: {message}")


def _tell_what_became_of(record: Record) -> None:
    with contextlib.suppress(WorkbenchError):
        if registry.running(record.name).id == record.id:
            print(f"cluster {record.name!r} is running still; %mpicluster attach {record.name} brings it back")


def _display(text: str, html: str) -> None:
    display({"text/plain": text, "text/html": html}, raw=True)


# -- completion ------------------------------------------------------------------------------------------------

_LINE = re.compile(r"\s*%?mpicluster\s+(?P<words>.*)")


@context_matcher(identifier="workbench.mpicluster")  # type: ignore[untyped-decorator]
def match(context: CompletionContext) -> SimpleMatcherResult:
    """Complete a line with ``%mpicluster``: verbs, options, their values, names of clusters."""
    found = _LINE.fullmatch(context.text_until_cursor)
    if found is None:
        return SimpleMatcherResult(completions=[], suppress=False)
    words = found["words"].split()
    last = "" if not words or found["words"][-1].isspace() else words.pop()
    if last.startswith("-") and "=" in last:
        option, _, last = last.partition("=")
        words.append(option)
    candidates = complete(words, last, NOTEBOOK)
    return SimpleMatcherResult(
        completions=[SimpleCompletion(text=candidate, type="keyword") for candidate in candidates],
        matched_fragment=last,
        suppress=True,
        ordered=True,
    )


def load(shell: InteractiveShell) -> None:
    """Register ``%mpicluster``, ``%%mpi`` with their completion, and ``%%mpi_profile``."""
    shell.register_magics(ClusterMagics)
    shell.Completer.custom_matchers.append(match)
    cells_magics.load(shell)
    metrics_magics.load(shell)


def unload(shell: InteractiveShell) -> None:
    """Take the magics and their completion away; clusters and the user's names stay as they are."""
    metrics_magics.unload(shell)
    cells_magics.unload(shell)
    shell.Completer.custom_matchers.remove(match)
    del shell.magics_manager.magics["line"]["mpicluster"]
    del shell.magics_manager.registry[ClusterMagics.__name__]

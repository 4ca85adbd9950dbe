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
from workbench.commands.actions import dashboard_url
from workbench.commands.format import dashboard_html
from workbench.commands.parse import answer, complete
from workbench.commands.table import overview
from workbench.commands.verb import Answer, Place
from workbench.deploy import registry
from workbench.deploy.registry import Record
from workbench.errors import WorkbenchError
from workbench.hints import NOTEBOOK
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
    """The line magic ``%mpicluster``."""

    shell: InteractiveShell

    @line_magic
    def mpicluster(self, line: str) -> None:  # noqa: D102  # written below, from the table of the verbs
        at = Notebook(self.shell)
        try:
            told = answer(split(line), at)
        except WorkbenchError as error:
            raise UsageError(str(error)) from None
        if told is not None:
            at.show(told)
            if told.failure:
                raise UsageError(told.failure)

    mpicluster.__doc__ = _DOC


class Notebook(Place):
    """A notebook, whose user has ``cluster`` and ``client`` as names.

    Parameters
    ----------
    shell
        The shell of its kernel.
    """

    name = NOTEBOOK

    def __init__(self, shell: InteractiveShell) -> None:
        self.shell = shell

    @property
    def cluster(self) -> MPICluster | None:
        """The cluster in the user's name ``cluster``, if it is one of ours and connected."""
        from workbench.cluster import MPICluster

        cluster = self.shell.user_ns.get("cluster")
        usable = isinstance(cluster, MPICluster) and cluster.status.name == "running" and not cluster.asynchronous
        return cluster if usable else None

    def show(self, told: Answer) -> None:
        """Display it."""
        if told.rich is not None:
            display(told.rich)
        elif told.html is not None:
            display({"text/plain": told.text, "text/html": told.html}, raw=True)
        else:
            print(told.text)

    def dashboard(self, record: Record) -> Answer:
        """Show it in a frame."""
        url = dashboard_url(record)
        return Answer(url, html=dashboard_html(url))

    def use(self, cluster: MPICluster) -> None:
        """Give the cluster and a client of it the user's names ``cluster`` and ``client``."""
        try:
            client = cluster.get_client()
        except BaseException:
            cluster.close()
            raise
        before = self.record
        if before is not None:
            self.release()
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

    def release(self) -> None:
        """Release the cluster in the user's name ``cluster``."""
        cluster = self.cluster
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

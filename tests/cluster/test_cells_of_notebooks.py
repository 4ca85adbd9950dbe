"""The names of cells: each notebook has its own, beside those that all notebooks share."""

from __future__ import annotations

import json
import subprocess
import sys
from unittest import mock

import pytest
from support.processes import until

from workbench.cells import client as cells

# A notebook that runs a cell, a view or a completion for each line of its standard input, and prints the answer.
NOTEBOOK = """
import json, sys
from workbench import MPICluster
from workbench.cells import client as cells

with MPICluster.attach(sys.argv[1]) as cluster, cluster.get_client() as client:
    engines = cluster.ipyparallel()
    for line in sys.stdin:
        request = json.loads(line)
        if "view" in request:
            answer = engines[:].apply_sync(eval, request["view"])
        elif "complete" in request:
            answer = cells.complete(request["complete"], client)
        else:
            result = cells.run(client=client, values=True, **request)
            answer = [outcome.summary for outcome in result.done.values() if outcome.status != "ok"] or result.values()
        print(json.dumps(answer), flush=True)
    engines.close()
"""


class Notebook:
    """A notebook in another process."""

    def __init__(self, name):
        command = [sys.executable, "-c", NOTEBOOK, name]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._process.stdin.close()
        self._process.stdout.close()
        self._process.wait()

    def ask(self, **request):
        print(json.dumps(request), file=self._process.stdin, flush=True)
        return json.loads(self._process.stdout.readline())


@pytest.fixture(scope="module")
def other(cluster4):
    with Notebook(cluster4.name) as other:
        yield other


def test_names_and_values_of_a_notebook_are_not_those_of_another(client4, other):
    cells.run("mine = rank\nprint = None\n'a value'", client=client4).check()

    assert other.ask(code="print('still')\nmine")[0].startswith("NameError")
    assert other.ask(code="mine = 'other'\nmine") == ["other"] * 4
    assert all("a value" not in text for text in other.ask(code="repr([_, __, ___, Out])"))
    assert cells.evaluate("mine", client=client4) == [0, 1, 2, 3]


def test_shared_names_are_those_of_all_notebooks(client4, other):
    cells.run("common = rank + 10", client=client4, shared=True).check()

    assert other.ask(code="common + 1", shared=True) == [11, 12, 13, 14]
    assert other.ask(code="common")[0].startswith("NameError")
    assert cells.evaluate("common", client=client4, shared=True) == [10, 11, 12, 13]


def test_context_variables_stay_for_the_cells_of_their_notebook(client4, other):
    cells.run("import numpy as np\nnp.seterr(all='raise')\nnp.set_printoptions(precision=2)", client=client4).check()

    assert (
        cells.evaluate("repr(np.array(1 / 3)), np.geterr()['over']", client=client4) == [("array(0.33)", "raise")] * 4
    )
    assert other.ask(code="import numpy as np\nnp.geterr()['over']") == ["warn"] * 4
    cells.run("np.seterr(all='warn')\nnp.set_printoptions(precision=8)", client=client4).check()
    assert cells.evaluate("repr(np.array(1 / 3))", client=client4) == ["array(0.33333333)"] * 4


def test_views_and_completions_see_the_names_of_their_notebook(cluster4, client4, other):
    cells.run("seen_here = 1", client=client4).check()
    other.ask(code="seen_there = 1")

    engines = cluster4.ipyparallel()
    names = "sorted(name for name in globals() if name.startswith('seen_'))"
    try:
        assert engines[:]["seen_here"] == [1] * 4
        assert other.ask(view=names) == [["seen_there"]] * 4
        engines.clear(block=True)
    finally:
        engines.close()
    assert cells.evaluate(names, client=client4) == [[]] * 4
    assert other.ask(view=names) == [["seen_there"]] * 4
    assert other.ask(complete="seen_") == ["seen_there"]


def test_a_class_of_a_cell_is_pickled_by_the_names_of_its_notebook(client4, other):
    code = "import pickle\nclass Point:\n    x = {}\npoint = pickle.dumps(Point())\n1"
    cells.run(code.format(1), client=client4).check()
    other.ask(code=code.format(2))

    assert cells.evaluate("pickle.loads(point).x, comm.bcast(Point()).x", client=client4) == [(1, 1)] * 4
    assert other.ask(code="pickle.loads(point).x") == [2] * 4


@pytest.fixture
def forgetful(client4):
    """A head that keeps the names of no notebook."""

    client4.run_on_scheduler(lambda: mock.patch("workbench.cells.head._KEEP_NAMES", 0.001).start())
    yield
    client4.run_on_scheduler(mock.patch.stopall)


def test_names_of_a_notebook_that_has_gone_are_deleted(cluster4, client4, forgetful):
    cells.run("mine = 'stays'", client=client4).check()
    with Notebook(cluster4.name) as gone:
        held = "import weakref, builtins\nclass Held: pass\nheld = Held()\nbuiltins.of_the_gone = weakref.ref(held)\n1"
        assert gone.ask(code=held) == [1] * 4
        assert cells.evaluate("of_the_gone() is None", client=client4) == [False] * 4

    until("the names are deleted", lambda: cells.evaluate("of_the_gone() is None", client=client4) == [True] * 4)
    assert cells.evaluate("mine", client=client4) == ["stays"] * 4


def test_names_that_only_a_view_has_used_are_deleted(cluster4, client4, forgetful, monkeypatch):
    monkeypatch.setattr("workbench.cells.engine_client.notebook_id", lambda: "views only")
    with cluster4.ipyparallel() as engines:
        view = engines[:]
        for _ in range(2):  # the second time after the end of the first names
            view.execute(
                "import builtins, weakref\nclass Held: pass\nheld = Held()\nbuiltins.held = weakref.ref(held)"
            ).get()
            until("the names are deleted", lambda: cells.evaluate("held() is None", client=client4) == [True] * 4)

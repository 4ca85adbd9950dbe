"""Values of calls: which of them are whole, and which entries fit their files."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from support.raised import raises

import workbench
from workbench.checkpoint import folder, kept, values
from workbench.errors import InvalidRequest

FILE = folder.FileInfo(1, 1)


def call(ranks, rows=None):
    return {"kind": "call", "ranks": ranks, "rows": rows}


# What each rank knows of a name: the number of the keep, the rank, the number of ranks, and the rows.
@pytest.mark.parametrize(
    ("known", "entry"),
    [
        ([(5, 0, 2, None), (5, 1, 2, None)], call(2)),
        ([(5, 1, 2, 3), (5, 0, 2, 4)], call(2, [4, 3])),
        # A call on one of two ranks has its value.
        ([None, (1, 0, 1, None)], call(1)),
        # A rank has failed before its keep, has never kept the name, or has kept it in a call of other ranks since.
        ([(5, 0, 2, None), (4, 1, 2, None)], None),
        ([(1, 0, 2, None), None], None),
        ([(2, 0, 1, None), (1, 1, 2, None)], call(1)),
    ],
)
def test_a_value_is_whole_if_all_ranks_of_its_call_have_it_of_the_same_keep(known, entry):
    entries = kept.joined([*({} if each is None else {"u": each} for each in known), {"v": (1, 0, 1, None)}])
    assert entries["v"][1] == call(1)
    assert (entries["u"][1] if "u" in entries else None) == entry


@pytest.mark.parametrize("change", [{"rows": [1]}, {"rows": [1, -1]}, {"rows": [1, "1"]}, {"ranks": 3}])
def test_an_entry_that_does_not_fit_its_files_is_refused(change):
    files = {f"u/{rank}/{file}": FILE for rank in range(2) for file in (values.VALUE, values.ARRAYS)}
    kept.check("u", {"kind": "call", "ranks": 2, "rows": [1, 1]}, files)
    with pytest.raises((ValueError, KeyError)):
        kept.check("u", {"kind": "call", "ranks": 2, "rows": None, **change}, files)


@pytest.mark.parametrize(
    "use",
    [workbench.should_stop, lambda comm: workbench.keep(comm, u=1), lambda comm: workbench.kept(comm, "u")],
    ids=["should_stop", "keep", "kept"],
)
def test_a_process_that_is_no_rank_keeps_nothing(use):
    with raises(InvalidRequest, kind="InvalidRequest"):
        use(SimpleNamespace(rank=0, size=1, bcast=None))

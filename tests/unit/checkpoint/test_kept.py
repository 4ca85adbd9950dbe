"""Values of calls: which of them are whole, and their rows in files."""

from __future__ import annotations

import itertools
from types import SimpleNamespace

import numpy as np
import pytest
from support.raised import raises

import workbench
from workbench.checkpoint import folder, kept, values
from workbench.errors import InvalidRequest

FILE = folder.FileInfo(1, 1)


def written(**known):
    """Return what one rank has written: for each name the rank, the number of ranks, the keep, and the rows."""
    return known, {f"{name}/{each[0]}/{values.VALUE}": FILE for name, each in known.items()}


@pytest.mark.parametrize(
    ("ranks", "entry"),
    [
        ([written(u=(0, 2, 5, None)), written(u=(1, 2, 5, None))], {"kind": "call", "ranks": 2, "rows": None}),
        ([written(u=(1, 2, 5, 3)), written(u=(0, 2, 5, 4))], {"kind": "call", "ranks": 2, "rows": [4, 3]}),
        # A call on one of two ranks has its value.
        ([written(), written(u=(0, 1, 1, None))], {"kind": "call", "ranks": 1, "rows": None}),
        # A rank has failed before its keep, has never kept the name, or has kept it in a call of other ranks since.
        ([written(u=(0, 2, 5, None)), written(u=(1, 2, 4, None))], None),
        ([written(u=(0, 2, 1, None)), written()], None),
        ([written(u=(0, 1, 2, None)), written(u=(1, 2, 1, None))], None),
    ],
)
def test_a_value_is_whole_if_all_ranks_of_its_call_have_written_it_at_the_same_keep(ranks, entry):
    whole = {"v": (0, 1, 1, None)}
    entries, files = kept.joined([*ranks, written(**whole)])

    assert entries.get("u") == entry
    assert "v" in entries
    assert {path.partition("/")[0] for path in files} == entries.keys()


@pytest.mark.parametrize("lengths", [[2, 3], [0, 3, 0, 2], [0, 0]])
def test_any_rows_of_a_divided_value_are_read_from_the_files_of_its_ranks(tmp_path, lengths):
    part, found = folder.begin(tmp_path / "run"), []
    whole = np.arange(2.0 * sum(lengths)).reshape(-1, 2)
    for rank, (stop, length) in enumerate(zip(itertools.accumulate(lengths), lengths, strict=True)):
        tree, arrays = values.parts("u", whole[stop - length : stop])
        found.append(kept._write(part, {"u": kept._Copy(tree, arrays, rank, len(lengths), 1, length)}))
    entries, files = kept.joined(found)
    folder.commit(part, 1, created=1.0, cluster="mpi", ranks=len(lengths), entries=entries, files=files)
    version = folder.read(tmp_path / "run")
    kept.check("u", version.entries["u"], version.files)

    np.testing.assert_array_equal(kept.read(version, "u"), whole)
    for start, stop in itertools.combinations_with_replacement(range(len(whole) + 1), 2):
        rows = kept._rows(version, "u", start, stop)
        np.testing.assert_array_equal(rows, whole[start:stop])
        assert rows.shape == (stop - start, 2)


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

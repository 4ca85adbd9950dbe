"""What functions made on ranks, as blocks."""

from __future__ import annotations

import re
import subprocess
import sys
import uuid

import numpy as np
import pandas as pd
import pytest
from distributed import wait
from support.patience import DEADLINE

from workbench.errors import PlacementError
from workbench.placement import from_results, sources
from workbench.placement.in_use import is_aligned
from workbench.placement.pinning import Pin

FRAME = pd.DataFrame({"a": [1, 2, 3], "b": list("xyz")})


def blocks(value, number=0, per="rank", collection=7):
    return from_results.to_blocks(value, number, per=per, collection=collection)


def told(*values):
    """Return the descriptions of what each rank made."""
    return [[its for its, _ in blocks(value, number)] for number, value in enumerate(values)]


@pytest.mark.parametrize("shape", [(3,), (3, 2), (3, 2, 4), (0,), (0, 5)])
def test_an_array_is_kept_aligned_under_a_key_of_a_placed_collection(shape):
    [(its, block)] = blocks(np.ones(shape), 2)
    assert is_aligned(block) or not block.size
    assert block.shape == shape
    assert its.key == (f"placed-rank-{7:032x}", 2, *(0,) * (len(shape) - 1))
    assert its.meta.shape == (0, *shape[1:])
    assert (its.rows, its.several) == (shape[0], False)


def test_an_array_that_is_aligned_is_not_copied_and_a_part_of_one_is():
    [(_, block)] = blocks(np.ones((1000, 2)))
    [(_, same)] = blocks(block)
    [(_, part)] = blocks(block[:10])
    assert same is block
    assert not np.shares_memory(part, block)


@pytest.mark.parametrize("value", [FRAME, FRAME["a"], FRAME[:0]], ids=["frame", "series", "empty"])
def test_a_table_is_kept_as_it_is(value):
    [(its, block)] = blocks(value, 1)
    assert its.key == (f"placed-rank-{7:032x}", 1)
    assert its.rows == len(value)
    assert len(its.meta) == 0
    assert type(its.meta) is type(value)
    assert block.equals(value)


def test_of_a_tuple_each_is_a_block_of_a_collection_of_its_own():
    found = blocks((np.ones(3), FRAME), per="node_1")
    assert [its.key[0] for its, _ in found] == [f"placed-node_1-{number:032x}" for number in (7, 8)]
    assert all(its.several for its, _ in found)


def test_names_of_collections_that_are_made_are_those_of_placed_ones():
    number = uuid.uuid4().int
    names = {sources.placed_name("rank", number, which) for which in range(3)}
    assert len(names) == 3
    assert len(sources.placed_name("rank", 2**128 - 1, 1)) == len(sources.placed_name("rank", 0, 0))


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (7, "an int"),
        (None, "a NoneType"),
        ([np.ones(3)], "a list"),
        ({"a": 1}, "a dict"),
        (np.array(7.0), "0 axes and dtype float64"),
        (np.array([None]), "1 axes and dtype object"),
        (np.ma.ones(3), "ask"),
        (FRAME.index, "a pandas"),
        ((np.ones(3), 7), "an int"),
        ((), "empty tuple"),
    ],
    ids=repr,
)
def test_anything_else_is_no_block(value, words):
    with pytest.raises(PlacementError, match=rf'{words}.*result="blocks"'):
        blocks(value)


def test_blocks_that_differ_in_their_rows_alone_fit():
    from_results.require_consistent(told(np.ones((3, 2)), np.ones((0, 2)), np.ones((7, 2))))
    from_results.require_consistent(told(FRAME, FRAME[:0]))
    from_results.require_consistent(told((FRAME["a"], np.ones(3)), (FRAME["a"][:1], np.ones(0))))
    from_results.require_consistent(told(np.ones(3), np.ones(3, ">f8")))
    labels = pd.MultiIndex.from_tuples([("a", np.nan), ("b", "x")])
    for unnamed in (FRAME.set_axis([0.5, np.nan], axis=1), FRAME["a"].rename(np.nan), FRAME.set_axis(labels, axis=1)):
        from_results.require_consistent(told(unnamed, unnamed.copy()))


def collection(client, *values):
    """Return the meta and the blocks of frames that functions have returned on the ranks."""
    told = [blocks(value, number)[0] for number, value in enumerate(values)]
    futures = [
        client.submit(lambda block=block: block, workers=[number], pure=False) for number, (_, block) in enumerate(told)
    ]
    wait(futures)
    pins = [Pin(next(iter(client.who_has(future)[future.key]))) for future in futures]
    meta, keys, found = client.sync(from_results.of_one_type, client, [its for its, _ in told], futures, pins)
    assert all(re.fullmatch(r"placed-rank-[0-9a-f]{32}", name) and number == n for n, (name, number) in enumerate(keys))
    assert all(future.key == key for future, key in zip(found, keys, strict=True)) or found == futures
    return meta, client.gather(found)


def test_frames_get_one_type_and_the_categories_of_all_ranks(client):
    frames = [
        pd.DataFrame({"n": [1, 2], "c": pd.Categorical(["b", "b"])}),
        pd.DataFrame({"n": [], "c": []}, dtype=object),
        pd.DataFrame({"n": [0.5, np.nan], "c": pd.Categorical(["a", "c"])}),
    ]
    meta, found = collection(client, *frames)
    assert str(meta["n"].dtype) == "float64"
    for block in found:
        assert str(block["n"].dtype) == "float64"
        assert list(block["c"].cat.categories) == ["a", "b", "c"] == list(meta["c"].cat.categories)
    assert list(pd.concat(found)["c"]) == ["b", "b", "a", "c"]


async def test_frames_of_one_type_need_no_task_which_an_ending_cluster_would_refuse():
    metas = [blocks(FRAME, number)[0][0] for number in range(2)]
    meta, keys, kept = await from_results.of_one_type(None, metas, [None, None], [])
    assert meta.dtypes.equals(FRAME.dtypes)
    assert (keys, kept) == ([its.key for its in metas], [None, None])


def test_frames_of_one_type_are_kept(client):
    meta, found = collection(client, FRAME, FRAME)
    assert meta.dtypes.equals(FRAME.dtypes)
    assert all(block.equals(FRAME) for block in found)


def test_frames_without_a_common_type_name_the_ranks(client):
    with pytest.raises(PlacementError):
        collection(client, FRAME["a"], FRAME["a"].map(str), FRAME["a"])


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ((np.ones(3), np.ones((3, 1))), r"rank 1 returned .*\(3, 1\).*, and rank 0 returned .*\(3,\)"),
        ((np.ones((3, 2)), np.ones((3, 2)), np.ones((3, 3))), r"rank 2 returned .*\(3, 3\)"),
        ((np.ones(3), np.ones(3, "f")), "float32, and rank 0 returned .*float64"),
        ((np.ones(3), FRAME["a"]), "rank 1 returned a series 'a' of dtype int64 .*, and rank 0 returned an array"),
        ((FRAME, FRAME["a"]), r"a series 'a'.*a dataframe of columns a \(int64\), b"),
        ((FRAME, FRAME[["b", "a"]]), r"columns b \(.*\), a \(int64\) .*, and rank 0"),
        ((FRAME["a"], FRAME["a"].rename("c")), "a series 'c'"),
        (((np.ones(3),), np.ones(3)), "rank 1 returned one block and rank 0 returned a tuple of 1 block"),
        (((np.ones(3),), (np.ones(3),) * 2), "rank 1 returned a tuple of 2 blocks"),
    ],
)
def test_what_does_not_fit_together_names_the_rank_and_both(values, words):
    with pytest.raises(PlacementError, match=words):
        from_results.require_consistent(told(*values))


WATCHED = """
import importlib._bootstrap, sys
import numpy as np, pandas as pd
from workbench.placement import from_results, rows

class Watch:
    def find_spec(self, name, *_):
        if name == "dask.dataframe":
            print([each for each in importlib._bootstrap._module_locks if each.startswith(name + ".")])

sys.meta_path.insert(0, Watch())
frame = pd.DataFrame({"a": [1.5]})
from_results.to_blocks(np.arange(3), 0, per="rank", collection=0)
print("array")
"""


@pytest.mark.parametrize(
    "made", ["from_results.to_blocks(frame, 0, per='rank', collection=0)", "rows.owned_frame([frame, frame])"]
)
def test_blocks_that_are_frames_import_all_of_dask_dataframe_and_arrays_nothing(made):
    # A thread that imports a module of a package finds modules half made, if another thread imports the package.
    words = [sys.executable, "-c", WATCHED + made]
    done = subprocess.run(words, check=True, capture_output=True, text=True, timeout=DEADLINE)
    assert done.stdout == "array\n[]\n"

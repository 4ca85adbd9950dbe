"""Placed collections and objects in a checkpoint, and back on any number of ranks."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import threading
from decimal import Decimal

import dask.array as da
import google_crc32c
import numpy as np
import pandas as pd
import pytest
import torch
import zarr
from distributed import Client, Event
from IPython.core.error import UsageError
from scipy import sparse
from support import saving
from support.patience import DEADLINE
from support.processes import until
from support.raised import raises
from support.shell import ipython

from workbench import MPICluster, blocks, ml, place, restore, run_on_ranks
from workbench.checkpoint import folder
from workbench.errors import CheckpointNotFound, InvalidRequest, PlacementError, RankLost

ROWS = 403
RANDOM = np.random.default_rng(0)
ARRAYS = {
    "numbers": RANDOM.normal(size=(ROWS, 5)),
    "labels": RANDOM.integers(0, 3, ROWS, np.int8),
    "images": RANDOM.integers(0, 255, (ROWS, 2, 3, 4), np.uint8),
    "days": np.arange(ROWS).astype("M8[D]"),
    "spans": np.arange(ROWS).astype("m8[25ns]"),
    "words": np.array(["ab", "c", "\N{SNOWMAN}", ""] * 101)[:ROWS],
    "bytes": np.array([b"ab", b"c"] * 202)[:ROWS],
    "flags": np.arange(ROWS) % 3 == 0,
    "halves": RANDOM.normal(size=(ROWS, 2)).astype(np.float16),
    "complex": RANDOM.normal(size=ROWS) + 1j,
}
TABLE = pd.DataFrame(
    {
        "number": RANDOM.normal(size=ROWS),
        "level": pd.Categorical(
            RANDOM.choice(["low", "high"], ROWS), categories=["low", "middle", "high"], ordered=True
        ),
        "text": RANDOM.choice(["x", "yy"], ROWS),
        "moment": pd.date_range("2026-01-01", periods=ROWS, freq="h", tz="Europe/Rome"),
        "gaps": pd.array([1, None, 3, 4] * 101, dtype="Int64")[:ROWS],
        "small": np.arange(ROWS, dtype=np.uint8),
    },
    index=pd.Index(np.arange(ROWS)[::-1] * 2, name="key"),
)


@pytest.fixture(scope="module")
def saved(cluster4, tmp_path_factory):
    """A checkpoint with data of all kinds."""
    path = tmp_path_factory.mktemp("saved") / "run"
    matrix = sparse.random(ROWS, 40, 0.1, format="csr", random_state=0)
    with cluster4.get_client() as client:
        placed = {name: place(array, client=client) for name, array in ARRAYS.items()}
        objects = {
            "matrix": place(matrix, client=client),
            "sparse_array": place(sparse.csr_array(matrix), client=client),
            "table": place(TABLE, client=client),
            "column": place(TABLE["number"], client=client),
            "unnamed": place(TABLE["level"].rename(None), client=client),
            "per_node": place(ARRAYS["numbers"], per="node", client=client),
            "on_device": place(ARRAYS["numbers"], device="cpu", client=client),
            "model": ml.StandardScaler().fit(placed["numbers"]),
            "net": torch.nn.Linear(2, 1).state_dict(),
            "epoch": 3,
        }
        version = cluster4.checkpoint(path, **placed, **objects)
        return version, objects


@pytest.fixture
def client3():
    """A client of a cluster of three ranks."""
    with MPICluster(3, preload=["workbench.torch", "workbench.ml"], quiet=True) as cluster, Client(cluster) as client:
        yield client


def check(found, objects):
    """Compare all that was restored with what was saved."""
    for name, array in ARRAYS.items():
        block = getattr(found, name).compute()
        np.testing.assert_array_equal(block, array)
        assert block.dtype == array.dtype
    for name in ("matrix", "sparse_array"):
        matrix = getattr(found, name).compute()
        assert (matrix != sparse.random(ROWS, 40, 0.1, format="csr", random_state=0)).nnz == 0
    assert isinstance(found.sparse_array.compute(), sparse.csr_array)
    pd.testing.assert_frame_equal(found.table.compute(), TABLE)
    pd.testing.assert_series_equal(found.column.compute(), TABLE["number"])
    pd.testing.assert_series_equal(found.unnamed.compute(), TABLE["level"].rename(None))
    np.testing.assert_array_equal(found.model.mean_, objects["model"].mean_)
    assert all(torch.equal(found.net[name], tensor) for name, tensor in objects["net"].items())
    assert found.epoch == 3


def test_all_kinds_of_data_come_back_on_as_many_ranks(saved, client4):
    version, objects = saved
    found = restore(version.parent, client=client4)

    check(found, objects)
    assert len(blocks(found.per_node)) == 1
    assert all(client4.gather(client4.map(torch.is_tensor, blocks(found.on_device))))
    # Together again: a call gets the same rows of each.
    rows = run_on_ranks(lambda _, X, y: (len(X), len(y)), found.numbers, found.labels, client=client4)
    assert rows == [(101, 101), (101, 101), (101, 101), (100, 100)]


def test_all_kinds_of_data_come_back_on_other_ranks(saved, client3):
    version, objects = saved
    check(restore(version.parent, client=client3), objects)


FRAMES = [
    pd.DataFrame(RANDOM.normal(size=(20, 3))),
    pd.DataFrame({0.5: range(20), 1.5: range(20)}),
    pd.Series(range(20), name=0),
    pd.DataFrame({"a": range(20)}, index=pd.MultiIndex.from_product([range(5), list("abcd")], names=["n", None])),
    pd.DataFrame({"a": range(20)}, index=pd.CategoricalIndex(list("ab") * 10, categories=["b", "a", "c"])),
    pd.DataFrame({"p": pd.period_range("2020", periods=20), "z": pd.array([True, None] * 10, "boolean")}),
]


@pytest.mark.parametrize("frame", FRAMES, ids=range(len(FRAMES)))
def test_labels_and_indexes_come_back(client4, cluster4, tmp_path, frame):
    cluster4.checkpoint(tmp_path / "run", table=place(frame, client=client4))
    found = restore(tmp_path / "run", client=client4).table.compute()
    (pd.testing.assert_series_equal if frame.ndim == 1 else pd.testing.assert_frame_equal)(
        found, frame, check_index_type=False
    )


@pytest.fixture
def version(client4, cluster4, tmp_path):
    """A version with an array and a dataframe."""
    X = place(np.arange(4000.0).reshape(1000, 4), client=client4)
    return cluster4.checkpoint(tmp_path / "run", X=X, table=place(TABLE, client=client4))


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("X", {"shape": [10**15, 4]}),
        ("X", {"shape": [-5, 4]}),
        ("X", {"shape": "ab"}),
        ("X", {"height": 0}),
        ("X", {"dtype": "O"}),
        ("X", {"per": 3}),
        ("X", {"device": "meta"}),
        ("X", {"kind": "none"}),
        ("table", {"rows": ["a"]}),
        ("table", {"group": 0}),
    ],
)
def test_a_crafted_manifest_is_refused(client4, version, name, change):
    manifest = version / folder.MANIFEST
    content = json.loads(manifest.read_text())
    content["entries"][name] |= change
    del content["crc32c"]
    manifest.write_text(json.dumps(content | {"crc32c": google_crc32c.value(json.dumps(content).encode())}))
    with raises(InvalidRequest, option="file", given="v000001/manifest.json"):
        restore(version.parent, client=client4)


def test_some_names_of_a_version_can_be_restored(saved, client4):
    version, _ = saved
    assert vars(restore(version.parent, "epoch", version=1, client=client4)) == {"epoch": 3}
    with raises(InvalidRequest, option="name", given="epochs"):
        restore(version.parent, "epochs", client=client4)
    with raises(CheckpointNotFound, option="version", given=2, allowed=("1",)):
        restore(version.parent, version=2, client=client4)


@pytest.mark.parametrize("name", ARRAYS)
def test_zarr_reads_the_arrays(saved, name):
    version, _ = saved
    with np.errstate(all="ignore"):
        np.testing.assert_array_equal(zarr.open_array(version / name, mode="r")[:], ARRAYS[name])


def test_dask_and_pandas_read_the_files(saved):
    version, _ = saved
    np.testing.assert_array_equal(da.from_zarr(version / "numbers").compute(), ARRAYS["numbers"])
    frame = pd.read_parquet(version / "table")
    np.testing.assert_array_equal(frame["gaps"].to_numpy(), TABLE["gaps"].to_numpy())


def test_blocks_of_different_lengths_come_back(client4, cluster4, tmp_path):
    run_on_ranks(saving.with_small_chunks, 1000, client=client4)
    try:
        X, table = (
            run_on_ranks(each, client=client4, result="blocks") for each in (saving.uneven, saving.uneven_table)
        )
        one = run_on_ranks(
            lambda comm: np.arange(3) if comm.rank == 3 else np.arange(0), client=client4, result="blocks"
        )
        version = cluster4.checkpoint(tmp_path / "run", X=X, table=table, one=one)
        found = restore(tmp_path / "run", client=client4)
        np.testing.assert_array_equal(found.X.compute(), X.compute())
        pd.testing.assert_frame_equal(found.table.compute(), table.compute())
        # Three rows have no row for each of the four ranks.
        np.testing.assert_array_equal(found.one.compute(), np.arange(3))
    finally:
        run_on_ranks(saving.with_small_chunks, 64 << 20, client=client4)
    assert len(list((version / "X").glob("c.*"))) > 20
    np.testing.assert_array_equal(zarr.open_array(version / "X", mode="r")[:], X.compute())


@pytest.mark.parametrize(
    ("named", "error", "option"),
    [
        ({"X": da.ones(4)}, PlacementError, ""),
        ({"X": place}, InvalidRequest, "X"),
        ({"not a name": 1}, InvalidRequest, "name"),
    ],
)
def test_what_cannot_be_saved_is_refused_before_a_file_is_written(cluster4, tmp_path, named, error, option):
    with raises(error, option=option):
        cluster4.checkpoint(tmp_path / "run", **named)
    assert not (tmp_path / "run").exists()


def test_a_save_leaves_no_client_behind(cluster4, tmp_path):
    cluster4.checkpoint(tmp_path / "run", epoch=3)
    with pytest.raises(PlacementError):
        restore(tmp_path / "run")


def test_nothing_and_a_wrong_number_of_versions_are_refused(cluster4, tmp_path):
    with raises(InvalidRequest, option="keep", given=0):
        cluster4.checkpoint(tmp_path / "run", keep=0, X=1)
    with pytest.raises(InvalidRequest):
        cluster4.checkpoint(tmp_path / "run")


CHANGED = {
    "objects": pd.DataFrame({"mixed": np.array([1, "a", (2,), None], object)}),
    "dictionaries": pd.DataFrame({"a": [{"a": 1}, {"b": 2}, {}, {}]}),
    "lists": pd.DataFrame({"a": [[1], [2, 3], [], [4]]}),
    "numbers of ranks": pd.DataFrame({"a": [Decimal("1.1"), Decimal("1.1"), Decimal("2.22"), Decimal(3)]}),
    "labels": pd.DataFrame({"a": range(4), 7: range(4)}),
    "periods": pd.DataFrame({"a": range(4)}, index=pd.period_range("2020", periods=4)),
}


@pytest.mark.parametrize("table", CHANGED.values(), ids=CHANGED)
def test_a_dataframe_that_parquet_would_change_is_refused(client4, cluster4, tmp_path, table):
    table = place(table, client=client4)
    with raises(InvalidRequest, option="table"):
        cluster4.checkpoint(tmp_path / "run", table=table)
    assert list((tmp_path / "run").iterdir()) == []


@pytest.fixture
def X(client4):
    """A placed array."""
    return place(np.arange(4000.0).reshape(1000, 4), client=client4)


def test_a_full_disk_leaves_the_former_version(client4, cluster4, tmp_path, X):
    root = tmp_path / "run"
    version = cluster4.checkpoint(root, keep=1, X=X)
    run_on_ranks(saving.limited, 4000, client=client4)
    try:
        with raises(InvalidRequest, option="path", given=str(root)) as raised:
            cluster4.checkpoint(root, keep=1, X=X)
    finally:
        run_on_ranks(saving.limited, -1, client=client4)

    assert "File too large" in str(raised.value)
    assert list(root.iterdir()) == [version]
    assert folder.damages(folder.read(root)) == []


def test_a_damaged_file_is_named_and_no_row_of_it_is_returned(client4, cluster4, tmp_path, X):
    table = place(TABLE, client=client4)
    version = cluster4.checkpoint(tmp_path / "run", X=X, table=table, model=[1.5])
    for name, file in (("X", "c.2.0"), ("table", "00001.parquet"), ("table", "_types.arrow"), ("model", "value.json")):
        path = version / name / file
        content = path.read_bytes()
        path.write_bytes(content[:200] + bytes([content[200 % len(content)] ^ 1]) + content[201:])
        with raises(InvalidRequest, option="file", given=f"v000001/{name}/{file}"):
            restore(tmp_path / "run", name, client=client4)
        path.write_bytes(content)
    assert vars(restore(tmp_path / "run", client=client4)).keys() == {"X", "table", "model"}


def test_an_interrupted_save_leaves_the_former_version(client4, cluster4, tmp_path, X):
    root = tmp_path / "run"
    version = cluster4.checkpoint(root, keep=1, X=X)
    names = [f"{tmp_path.name}-begins", f"{tmp_path.name}-ends"]
    run_on_ranks(saving.opens_slowly, *names, client=client4)

    def interrupt():
        Event(names[0], client=client4).wait(DEADLINE)
        os.kill(os.getpid(), signal.SIGINT)
        Event(names[1], client=client4).set()

    thread = threading.Thread(target=interrupt)
    thread.start()
    with pytest.raises(KeyboardInterrupt):
        cluster4.checkpoint(root, keep=1, X=X)
    thread.join()

    until("the former version alone is left", lambda: list(root.iterdir()) == [version])
    assert folder.damages(folder.read(root)) == []
    assert cluster4.checkpoint(root, keep=1, X=X).name == "v000002"


def test_a_rank_that_is_killed_during_a_save_leaves_the_former_version(tmp_path):
    root = tmp_path / "run"
    with MPICluster(2, quiet=True) as cluster, Client(cluster) as client:
        X = place(np.arange(4000.0).reshape(1000, 4))
        version = cluster.checkpoint(root, keep=1, X=X)
        run_on_ranks(saving.opens_slowly, "begins", "ends")
        victim = cluster.ranks[1]["pid"]

        def kill():
            Event("begins", client=client).wait(DEADLINE)
            os.kill(victim, signal.SIGKILL)

        thread = threading.Thread(target=kill)
        thread.start()
        with pytest.raises((RankLost, InvalidRequest)):
            cluster.checkpoint(root, keep=1, X=X)
        thread.join()
        until("the cluster is ready again", lambda: ready(cluster))
        found = restore(root, client=client)
        np.testing.assert_array_equal(found.X.compute(), np.arange(4000.0).reshape(1000, 4))
    assert [each.name for each in root.iterdir() if not each.name.startswith(".")] == [version.name]
    assert folder.damages(folder.read(root)) == []


def ready(cluster):
    """Return whether all ranks run; ask for those that are lost."""
    record = cluster.refresh()
    if record.state == "degraded":
        with contextlib.suppress(Exception):
            cluster.restart()
    return record.state == "ready" and len(cluster.ranks) == 2


def test_the_subcommands_save_list_and_verify(cluster4, tmp_path, X, capsys):
    path = tmp_path / "run"
    with ipython() as shell:
        shell.run_line_magic("load_ext", "workbench")
        shell.user_ns |= {"cluster": cluster4, "X": X, "epoch": 7}
        shell.run_line_magic("mpicluster", f"checkpoint {path} X,epoch --keep 1")
        assert str(path / "v000001") in capsys.readouterr().out
        shell.run_line_magic("mpicluster", f"checkpoints {path} --verify")
        out = capsys.readouterr().out
        assert "X, epoch" in out
        assert "all files are as they were written" in out
        (path / "v000001" / "X" / "c.0.0").unlink()
        shell.run_line_magic("mpicluster", f"checkpoints {path} --verify")
        assert "v000001/X/c.0.0 cannot be read" in capsys.readouterr().out
        with pytest.raises(UsageError) as raised:
            shell.run_line_magic("mpicluster", f"checkpoint {path} X,missing")
        assert raised.value.__context__.given == "missing"

"""The journal of a fit: its records, its folder, and fits that continue at each answer, on parts of any division."""

from __future__ import annotations

import itertools
import os

import google_crc32c
import numpy as np
import pytest
from scipy import sparse
from sklearn.base import clone
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from support.raised import raises

from workbench.errors import InvalidRequest
from workbench.ml import PCA, KMeans, LinearRegression, LogisticRegression, Ridge
from workbench.ml.engine import fitting, journal, records
from workbench.ml.engine.journaled_part import crc_joined
from workbench.ml.engine.parts import LocalParts
from workbench.ml.engine.records import RecordFile

RANDOM = np.random.default_rng(0)
X = RANDOM.normal(size=(1003, 4))
Y = np.array(["no", "yes"], dtype=object)[(X @ [1, -2, 0.5, 0] + RANDOM.logistic(size=len(X)) > 0).astype(int)]
WEIGHT = RANDOM.uniform(size=len(X))
FITS = {
    "kmeans": (KMeans(5, random_state=0), [X]),
    "runs of kmeans": (KMeans(4, init="random", n_init=3, random_state=0), [X, None, WEIGHT]),
    "sparse kmeans": (KMeans(4, random_state=0), [sparse.csr_matrix(np.clip(X, 0, None))]),
    "far from 0": (KMeans(4, random_state=0), [X + 100]),
    "lbfgs": (LogisticRegression(tol=1e-8), [X, Y]),
    "newton": (LogisticRegression(solver="newton-cholesky", class_weight="balanced"), [X, Y, WEIGHT]),
    "pca": (PCA(2, solver="randomized", random_state=0), [X]),
    "linear": (LinearRegression(), [X, X[:, 0]]),
    "ridge": (Ridge(), [X, X[:, 0]]),
}


def same(left, right):
    """Compare values and types, with the signs of zeros and the order of arrays in the memory."""
    assert type(left) is type(right)
    if isinstance(left, list | tuple):
        assert len(left) == len(right)
        list(map(same, left, right))
    elif isinstance(left, dict):
        same(list(left.items()), list(right.items()))
    elif isinstance(left, np.ndarray) and left.dtype != object:
        assert (left.dtype, left.shape, left.strides) == (right.dtype, right.shape, right.strides)
        assert left.tobytes() == right.tobytes()
    else:
        assert repr(left) == repr(right)


@pytest.mark.parametrize(
    "value",
    [
        None,
        True,
        -3,
        2**70,
        "\N{SNOWMAN}",
        -0.0,
        float("nan"),
        float("-inf"),
        5e-324,
        (),
        [],
        (1.5, [np.float32(-0.0), np.int8(3)], ("a", None)),
        {"a": 1, 2: (np.bool_(True),)},
        np.array([np.nan, -0.0, np.inf]),
        np.array(2.5),
        np.empty(0),
        np.empty((3, 0), np.int32),
        np.arange(12).reshape(3, 4).T,
        np.array(["ab", "c"]),
        np.array(["2026-11-27"], "M8[D]"),
        np.array([["a", 1], [None, 2.5]], dtype=object),
    ],
    ids=repr,
)
def test_an_answer_comes_back_as_it_was(value):
    content = b"".join(piece.tobytes() for piece in records.encode("step", value))
    name, found = records.decode(content)
    assert name == "step"
    same(found, value)


@pytest.mark.parametrize("value", [object(), {1, 2}, np.zeros(1, [("a", int)])], ids=["object", "set", "structure"])
def test_other_answers_are_refused(value):
    with pytest.raises(TypeError):
        records.encode("step", [value])


def written(path, *answers):
    file = RecordFile(path)
    file.keep([])
    for number, answer in enumerate(answers):
        file.append(f"number {number}", answer)
    file.close()


def found(path):
    file = RecordFile(path)
    try:
        return [(record.name, file.read(record)) for record in file.records]
    finally:
        file.close()


def test_a_torn_record_is_passed_over_and_the_next_one_takes_its_place(tmp_path):
    path = tmp_path / "journal"
    written(path, 1, np.arange(3.0), 3)
    whole = path.read_bytes()
    for size in range(len(whole)):
        path.write_bytes(whole[:size])
        assert [name for name, _ in found(path)] == ["number 0", "number 1", "number 2"][: len(found(path))]
        file = RecordFile(path)
        number = len(file.records)
        file.keep(file.records)
        # What was read does not change where a record is written.
        for record in file.records:
            file.read(record)
        file.append("next", None)
        file.close()
        assert [name for name, _ in found(path)][number:] == ["next"]
    assert path.stat().st_mode & 0o777 == 0o600


def test_a_changed_record_ends_the_journal_and_the_first_one_is_an_error(tmp_path):
    path = tmp_path / "journal"
    written(path, 1, np.arange(3.0), 3)
    whole = bytearray(path.read_bytes())
    whole[-20 if len(whole) > 20 else -1] ^= 1
    path.write_bytes(whole)
    assert len(found(path)) == 2
    whole[24] ^= 1
    path.write_bytes(whole)
    with raises(InvalidRequest, option="checkpoint", given=str(tmp_path)):
        found(path)


def test_files_of_others_are_refused_and_not_changed(tmp_path):
    path = tmp_path / "journal"
    path.write_text("my diary")
    with raises(InvalidRequest, option="checkpoint"):
        KMeans(2).fit(X, checkpoint=tmp_path)
    assert path.read_text() == "my diary"
    path.rename(tmp_path / "diary")
    with raises(InvalidRequest, option="checkpoint"):
        KMeans(2).fit(X, checkpoint=tmp_path)
    (tmp_path / "journal").symlink_to(tmp_path / "diary")
    with raises(InvalidRequest, option="path"):
        KMeans(2).fit(X, checkpoint=tmp_path)
    assert (tmp_path / "diary").read_text() == "my diary"


def test_a_folder_has_one_fit_at_a_time_and_is_closed_to_others(tmp_path):
    folder = tmp_path / "fit"

    def fit_again(record):
        if record["iteration"] == 1:
            KMeans(2).fit(X, checkpoint=folder)

    with raises(InvalidRequest, option="checkpoint"):
        KMeans(2, callback=fit_again).fit(X, checkpoint=folder)
    assert folder.stat().st_mode & 0o777 == 0o700
    folder.chmod(0o777)
    with raises(InvalidRequest, option="path"):
        KMeans(2).fit(X, checkpoint=folder)


def test_checksums_of_blocks_are_those_of_all_rows():
    content = RANDOM.integers(0, 256, 1000, np.uint8)
    for cut in (0, 1, 3, 500, 999, 1000):
        crcs = (google_crc32c.value(part.tobytes()) for part in (content[:cut], content[cut:]))
        assert crc_joined(*crcs, 1000 - cut) == google_crc32c.value(content.tobytes())


def numbers_of(model):
    values = [np.asarray(value) for name, value in vars(model).items() if name.endswith("_") and name != "engine_"]
    return [value.astype(np.float64) for value in values if value.dtype.kind in "fi"]


class Killed(BaseException):
    """The end of a fit."""


class Divided:
    """Runs tasks of fits on parts with some rows, and ends them before a request."""

    def __init__(self, monkeypatch):
        self.cuts, self.end, self.asked = (), None, 0
        monkeypatch.setattr(fitting, "fit", self.fit)

    def fit(self, task, data, *_):
        ends = [0, *self.cuts, data.X.shape[0]]
        columns = data.columns()
        parts = [
            task.part(*(None if column is None else column[start:stop] for column in columns), start)
            for start, stop in itertools.pairwise(ends)
        ]
        self.asked = 0
        result = task.algorithm(Counted(parts, self), task.settings)
        if not task.kept:
            return result, "local"
        return (result, (np.concatenate([part.kept()[0] for part in parts]),)), "local"


class Counted(LocalParts):
    """Counts the requests of an algorithm."""

    def __init__(self, parts, divided):
        super().__init__(parts)
        self._divided = divided

    def each(self, method, *args):
        if method not in {"described", "save_state", "load_state"}:
            if self._divided.asked == self._divided.end:
                raise Killed
            self._divided.asked += 1
        return super().each(method, *args)


@pytest.fixture
def divided(monkeypatch):
    return Divided(monkeypatch)


@pytest.mark.parametrize("name", FITS)
def test_a_fit_that_ends_at_any_answer_continues_without_its_earlier_work(divided, tmp_path, name):
    model, data = FITS[name]
    divided.cuts = (300, 300, 700)
    plain = clone(model).fit(*data)
    requests, expected = divided.asked, numbers_of(plain)
    # The first requests are different from each other, and later ones are iterations.
    for end in [*range(min(requests, 7)), *range(7, requests, 7)]:
        folder = tmp_path / str(end)
        divided.cuts, divided.end = (300, 300, 700), end
        with pytest.raises(Killed):
            clone(model).fit(*data, checkpoint=folder, every=0)
        divided.end = None
        if end % 2:
            divided.cuts = (100, 650)
        again = numbers_of(clone(model).fit(*data, checkpoint=folder))
        # At most the last request before the end and two about single parts are repeated.
        assert divided.asked <= requests - end + 2
        for value, other in zip(again, expected, strict=True):
            np.testing.assert_allclose(value, other, rtol=1e-9 * (end % 2), atol=1e-9 * (end % 2))
        repeated = numbers_of(clone(model).fit(*data, checkpoint=folder))
        assert divided.asked == 0
        list(map(np.testing.assert_array_equal, repeated, again))


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"model": KMeans(6, random_state=0)}, "n_clusters was 5 and is 6"),
        ({"model": KMeans(5, random_state=1)}, "seed was"),
        ({"model": PCA(2)}, "estimator was 'KMeans' and is 'PCA'"),
        ({"data": [X[:-1]]}, "shape of X was '1003x4 float64' and is '1002x4 float64'"),
        ({"data": [X.astype(np.float32)]}, "shape of X was '1003x4 float64' and is '1003x4 float32'"),
        ({"data": [-X]}, "checksum of X was"),
        ({"data": [X, None, WEIGHT]}, "shape of sample_weight was None and is '1003 float64'"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_another_fit_in_the_folder_is_refused_with_what_differs(tmp_path, change, named):
    model, data = KMeans(5, random_state=0), [X]
    model.fit(*data, checkpoint=tmp_path / "fit")
    with raises(InvalidRequest, option="checkpoint", given=str(tmp_path / "fit")) as error:
        clone(change.get("model", model)).fit(*change.get("data", data), checkpoint=tmp_path / "fit")
    assert named in str(error.value)
    assert "Remove the folder" in str(error.value)
    clone(model).set_params(verbose=2).fit(*data, checkpoint=tmp_path / "fit")


def test_a_fit_of_another_release_is_refused(tmp_path, monkeypatch):
    KMeans(5).fit(X, checkpoint=tmp_path / "fit")
    monkeypatch.setattr(journal, "__version__", "9.9")
    with pytest.raises(InvalidRequest, match=r"workbench was '.*' and is '9.9'"):
        KMeans(5).fit(X, checkpoint=tmp_path / "fit")


def test_a_seed_that_was_drawn_is_that_of_the_journal(divided, tmp_path):
    first = KMeans(5).fit(X, checkpoint=tmp_path / "fit")
    again = KMeans(5).fit(X, checkpoint=tmp_path / "fit")
    assert divided.asked == 0
    np.testing.assert_array_equal(first.cluster_centers_, again.cluster_centers_)


def test_a_changed_state_is_an_error(divided, tmp_path):
    divided.end = 8
    with pytest.raises(Killed):
        KMeans(5, random_state=0).fit(X, checkpoint=tmp_path / "fit", every=0)
    [file] = (tmp_path / "fit").glob("state-*/0.npz")
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)
    divided.end = None
    with raises(InvalidRequest, option="checkpoint", given=str(tmp_path / "fit")):
        KMeans(5, random_state=0).fit(X, checkpoint=tmp_path / "fit")


def test_a_state_that_cannot_be_written_leaves_the_former_one(divided, tmp_path, monkeypatch):
    model, folder = KMeans(5, random_state=0), tmp_path / "fit"
    expected = numbers_of(clone(model).fit(X))
    divided.end = 8
    with pytest.raises(Killed):
        clone(model).fit(X, checkpoint=folder, every=0)
    former = list(folder.iterdir())
    divided.end = None
    with monkeypatch.context() as patch:
        patch.setattr(np, "savez", full)
        with raises(InvalidRequest, option="path", given=str(folder)) as error:
            clone(model).fit(X, checkpoint=folder, every=0)
        assert "No space left on device" in str(error.value)
    assert list(folder.iterdir()) == former
    list(map(np.testing.assert_array_equal, numbers_of(clone(model).fit(X, checkpoint=folder)), expected))


def full(*_, **__):
    raise OSError(28, os.strerror(28))


@pytest.mark.parametrize("every", [-1, float("nan"), "1 min"])
def test_seconds_that_are_not_valid_are_refused(tmp_path, every):
    with raises(InvalidRequest, option="every"):
        KMeans(2).fit(X, checkpoint=tmp_path / "fit", every=every)


def test_the_tools_of_scikit_learn_pass_the_folder(tmp_path):
    pipeline = make_pipeline(StandardScaler(), KMeans(3, random_state=0))
    pipeline.fit(X, kmeans__checkpoint=tmp_path / "pipeline")
    KMeans(3, random_state=0).fit_predict(X, checkpoint=tmp_path / "predicted")
    PCA(2).fit_transform(X, checkpoint=tmp_path / "transformed")
    assert {path.name for path in tmp_path.glob("*/journal")} | {"journal"} == {"journal"}
    assert len(list(tmp_path.glob("*/journal"))) == 3
    assert "checkpoint" not in clone(pipeline[-1]).get_params()
    GridSearchCV(LogisticRegression(), {"C": [0.1, 1]}, cv=2).fit(X, Y)

"""Objects in a checkpoint: what comes back is what was saved, and no code of the files is run."""

from __future__ import annotations

import io
import json
import math
import zipfile
from collections import defaultdict

import numpy as np
import pytest
import torch
from scipy import sparse
from sklearn.compose import ColumnTransformer
from sklearn.ensemble import RandomForestClassifier
from sklearn.linear_model import LogisticRegression as SklearnRegression
from sklearn.pipeline import Pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler
from support.raised import raises

from workbench import ml
from workbench.checkpoint import values
from workbench.errors import InvalidRequest

X = np.random.default_rng(0).normal(size=(60, 4))
Y = (X[:, 0] > 0).astype(int)
VALUES = [
    None,
    True,
    2**70,
    -(10**1000),
    1.5,
    -math.inf,
    "sieben \N{SNOWMAN} \ud800".encode("utf-8", "replace").decode(),
    b"\x00\xff",
    b"",
    [],
    {},
    (),
    [1, [2, (3, {4}, frozenset("a"))]],
    {"a": {1: None, (2, "x"): [0.5]}, None: 1},
    slice(1, None, 2),
    slice("a", (1, 2), np.int64(3)),
    np.float32(0.1),
    np.bool_(True),
    np.datetime64("2026-01-01", "s"),
    np.str_("text"),
    np.float64,
    np.dtype("<i4"),
]
ARRAYS = [
    np.arange(6.0).reshape(2, 3),
    np.empty((0, 3), np.int8),
    np.array(5),
    np.asfortranarray(np.ones((3, 2), np.float16)),
    np.array(["ab", "c"]),
    np.array(["2026-01-01"], "M8[D]"),
    np.array([None, "x", 1, [2]], object),
    np.array([["a", None]], object),
]


def again(value):
    """Return a value that was encoded and decoded."""
    files = values.encode("value", value)
    return values.decode(files[values.VALUE], files[values.ARRAYS])


@pytest.mark.parametrize("value", VALUES, ids=lambda value: str(type(value).__name__))
def test_plain_values_come_back_as_they_were(value):
    found = again(value)
    assert found == value
    assert type(found) is type(value)
    assert repr(found) == repr(value)


@pytest.mark.parametrize("array", ARRAYS, ids=repr)
def test_arrays_come_back_as_they_were(array):
    found = again([array])[0]
    np.testing.assert_array_equal(found, array)
    assert (found.dtype, found.shape) == (array.dtype, array.shape)


def test_a_number_that_is_none_comes_back():
    assert math.isnan(again({"a": math.nan})["a"])


@pytest.mark.parametrize("kind", [sparse.csr_matrix, sparse.csr_array, sparse.csc_array])
def test_a_matrix_comes_back_in_rows(kind):
    matrix = kind(sparse.random(9, 5, 0.4, random_state=0))
    found = again(matrix)
    assert (found != matrix.tocsr()).nnz == 0
    assert isinstance(found, type(matrix.tocsr()))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64, torch.bool])
def test_tensors_of_a_net_come_back(dtype):
    state = {"w": torch.arange(6).reshape(2, 3).T.to(dtype), "n": torch.tensor(3).to(dtype), "e": torch.empty(0, 2)}
    found = again(state)
    for name, tensor in state.items():
        assert torch.equal(found[name], tensor)
        assert found[name].dtype == tensor.dtype


def test_a_random_state_goes_on_where_it_was():
    state = np.random.RandomState(3)
    state.normal()
    found = again(state)
    assert found.normal() == state.normal()


ESTIMATORS = [
    ml.KMeans(3, random_state=0).fit(X),
    ml.LinearRegression().fit(X, X[:, 0]),
    ml.Ridge().fit(X, X[:, 0]),
    ml.LogisticRegression().fit(X, Y),
    ml.PCA(2).fit(X),
    ml.TruncatedSVD(2).fit(X),
    ml.StandardScaler().fit(X),
    ml.Recipe([(StandardScaler(), slice(0, 2)), (OneHotEncoder(), [3])]).fit(np.round(X)),
    SklearnRegression().fit(X, Y),
    ColumnTransformer([("scale", StandardScaler(), [0, 1])]).fit(X),
]


@pytest.mark.parametrize(
    "model", ESTIMATORS, ids=lambda model: type(model).__module__.split(".")[0] + type(model).__name__
)
def test_a_fitted_estimator_gives_the_same_results(model):
    found = again(model)
    method = "predict" if hasattr(model, "predict") else "transform"
    expected, results = (getattr(each, method)(np.round(X)) for each in (model, found))
    if sparse.issparse(expected):
        expected, results = expected.toarray(), results.toarray()
    np.testing.assert_array_equal(results, expected)
    assert type(found) is type(model)
    assert repr(found) == repr(model)


def nested(levels):
    """Return lists in lists."""
    value = []
    for _ in range(levels):
        value = [value]
    return value


def test_what_can_be_saved_can_be_restored_however_deep_the_object_is():
    assert again(nested(90)) == nested(90)
    cycle = []
    cycle.append(cycle)
    for value in (nested(150), nested(5000), cycle):
        with raises(InvalidRequest, option="value"):
            values.encode("value", value)


def test_a_pipeline_has_no_folder_from_which_it_would_load_pickles():
    pipeline = Pipeline([("scale", StandardScaler())], memory="/tmp/cache").fit(X)  # noqa: S108
    assert again(pipeline).memory is None
    files = values.encode("value", Pipeline([("scale", StandardScaler())]).fit(X))
    crafted = files[values.VALUE].replace(b'["memory", null]', b'["memory", "/tmp/cache"]')
    assert crafted != files[values.VALUE]
    assert values.decode(crafted, files[values.ARRAYS]).memory is None


def test_the_callback_of_an_estimator_stays_in_its_notebook():
    assert again(ml.KMeans(3, callback=print).fit(X)).callback is None


@pytest.mark.parametrize(
    ("value", "place"),
    [
        (print, "value"),
        ({"a": [object()]}, "value['a'][0]"),
        ({print: 1}, "the keys of value[0]"),
        (RandomForestClassifier(2).fit(X, Y), "value.estimators_[0].tree_"),
        (torch.nn.Linear(1, 1), "value"),
        (np.array([print], object), "value[0]"),
        (defaultdict(int), "value"),
        (np.dtype([("a", "<i4")]), "value"),
        (np.floating, "value"),
        (np.array(["a"], np.dtypes.StringDType()), "value"),
        (torch.eye(2).to_sparse(), "value"),
    ],
)
def test_what_cannot_be_saved_is_named_by_its_place(value, place):
    with raises(InvalidRequest, option=place):
        values.encode("value", value)


def npz(compression=zipfile.ZIP_STORED, allow_pickle=False, **arrays):
    """Return the bytes of an npz file."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", compression) as file:
        for name, array in arrays.items():
            content = io.BytesIO()
            np.lib.format.write_array(content, array, allow_pickle=allow_pickle)
            file.writestr(f"{name}.npy", content.getvalue())
    return buffer.getvalue()


class Runs:
    """An object whose pickle runs code."""

    def __reduce__(self):
        return pytest.fail, ("code of the file was run",)


CSR = {"csr": [True, [2, 2], [0, 1, 2]]}
INDICES = npz(**{"0": np.ones(2), "1": np.array([0, 9]), "2": np.array([0, 1, 2])})


@pytest.mark.parametrize(
    ("tree", "arrays"),
    [
        ({"object": ["os", "system", []]}, npz()),
        ({"object": ["subprocess", "Popen", []]}, npz()),
        ({"object": ["sklearn.utils", "Bunch", []]}, npz()),
        ({"object": ["workbench.cluster", "MPICluster", []]}, npz()),
        ({"object": ["sklearn.conftest", "X", []]}, npz()),
        ({"array": 0}, npz(allow_pickle=True, **{"0": np.array([Runs()], object)})),
        ({"array": 0}, npz(zipfile.ZIP_DEFLATED, **{"0": np.zeros(10**6)})),
        ({"other": 0}, npz()),
        ({"a": 1, "b": 2}, npz()),
        (CSR, INDICES),
    ],
)
def test_files_that_no_save_has_written_are_refused(tree, arrays):
    with pytest.raises((ValueError, KeyError, AttributeError, TypeError)):
        values.decode(json.dumps(tree).encode(), arrays)

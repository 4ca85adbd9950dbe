"""Objects as JSON and NumPy's npz: plain Python values, arrays, tensors and fitted estimators. Never a pickle.

A value that JSON does not have is an object of JSON with one name, its kind, for example ``{"tuple": [1, 2]}``.
"""

from __future__ import annotations

import contextlib
import dataclasses
import importlib
import io
import json
import math
import re
import sys
import zipfile
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from workbench.errors import InvalidRequest
from workbench.gpu import tensors
from workbench.placement.rows import is_matrix
from workbench.placement.sources import type_name

VALUE, ARRAYS = "value.json", "arrays.npz"
# Packages with estimators whose attributes are plain values and arrays.
_MODULES = re.compile(r"(workbench\.ml|sklearn)(\.(?!conftest|tests)\w+)+")
_DEPTH = 100
# The callback watches one fit in this notebook. `memory` is a folder of pickles, which a pipeline would load.
_DROPPED = {"callback", "memory"}
_SCALARS = {np.dtype(code).type for code in "?bhilqBHILQefdFDSUMm"}


def encode(name: str, value: Any) -> dict[str, bytes]:
    """Return the files of an object by their names.

    Parameters
    ----------
    name
        Name of the object in messages.
    value
        None, boolean, number, text, bytes, list, tuple, set, dictionary, dtype, array of NumPy, sparse matrix, tensor,
        random state of NumPy, or an estimator that consists of these.

    Raises
    ------
    InvalidRequest
        If a part of the object is of another kind.
    """
    tree, arrays = parts(name, value)
    buffer = io.BytesIO()
    write_arrays(buffer, arrays)
    return {VALUE: tree, ARRAYS: buffer.getvalue()}


def parts(name: str, value: Any) -> tuple[bytes, list[Any]]:
    """Return an object as JSON, and the arrays in it, in the memory of the object; raise an error as `encode`."""
    encoder = _Encoder()
    return json.dumps(encoder.encode(value, name), allow_nan=False).encode(), encoder.arrays


def write_arrays(file: Any, arrays: Sequence[Any]) -> None:
    """Write the arrays of an object as npz."""
    np.savez(file, **{str(number): array for number, array in enumerate(arrays)})


def revived(tree: bytes, arrays: list[Any]) -> Any:
    """Return the object of `parts`, in the memory of these arrays."""
    return _decode(json.loads(tree), arrays)


class _Encoder:
    """Values as JSON, and the arrays in them."""

    def __init__(self) -> None:
        self.arrays: list[Any] = []

    def encode(self, value: Any, path: str) -> Any:
        """Return a value as JSON; `path` is its place in the object."""
        kind = type(value)
        if value is None or kind in {bool, str} or (kind is float and math.isfinite(value)):
            return value
        if kind is int:
            return value if abs(value) < 2**63 else {"int": hex(value)}
        if path.count("[") > _DEPTH:
            message = f"checkpoint: {path[:80]}... has more than {_DEPTH} levels, or contains itself."
            raise InvalidRequest(message, option=path.partition("[")[0])
        if kind is list:
            return self._items(value, path)
        if kind in {tuple, set, frozenset}:
            return {kind.__name__: self._items(value, path)}
        if kind in {dict, OrderedDict}:
            values = [self.encode(each, f"{path}[{key!r}]") for key, each in value.items()]
            return {"dict": [self._items(value, f"the keys of {path}"), values]}
        return self._of_numpy(value) or self._of_library(value, path)

    def _of_numpy(self, value: Any) -> Any:
        """Return an array, a part of NumPy or a plain value with a name; None for other values."""
        kind = type(value)
        found: Any = None
        if kind is float:
            found = {"float": repr(value)}
        elif kind is bytes:
            found = {"bytes": self._array(np.frombuffer(value, np.uint8))}
        elif kind is slice:
            found = {"slice": self._items([value.start, value.stop, value.step], "slice")}
        elif kind is np.ndarray and not value.dtype.hasobject:
            found = {"array": self._array(value)}
        elif isinstance(value, np.generic) and not value.dtype.hasobject:
            found = {"scalar": self._array(np.asarray(value))}
        elif isinstance(value, np.dtype) and not value.hasobject and np.dtype(value.str) == value:
            found = {"dtype": value.str}
        elif isinstance(value, type) and value in _SCALARS:
            found = {"type": np.dtype(value).str}
        return found

    def _of_library(self, value: Any, path: str) -> Any:
        """Return an object of a library; raise InvalidRequest for other values."""
        kind = type(value)
        if kind is np.ndarray and value.dtype.kind == "O":
            return {"objects": [list(value.shape), self._items(value.ravel().tolist(), path)]}
        if kind is np.random.RandomState:
            return {"RandomState": self.encode(value.get_state(legacy=False), path)}
        if is_matrix(value):
            rows = value.tocsr()
            parts = [self._array(part) for part in (rows.data, rows.indices, rows.indptr)]
            return {"csr": [kind.__name__.endswith("array"), list(value.shape), parts]}
        if tensors.is_tensor(value):
            with contextlib.suppress(RuntimeError, NotImplementedError):  # of a sparse tensor, for example
                dtype, shape, content = tensors.to_bytes(value)
                return {"tensor": [dtype, shape, self._array(content)]}
        if _is_known(kind):
            state = {key: None if key in _DROPPED else part for key, part in value.__getstate__().items()}
            items = [[key, self.encode(part, f"{path}.{key}")] for key, part in state.items()]
            return {"object": [kind.__module__, kind.__qualname__, items]}
        raise InvalidRequest(
            f"checkpoint: {path} is {type_name(value)}, which a checkpoint cannot have. Save placed collections "
            "(place), arrays, tensors (net.state_dict()), estimators of workbench.ml, and plain values of Python.",
            option=path,
        )

    def _items(self, values: Any, path: str) -> list[Any]:
        return [self.encode(each, f"{path}[{number}]") for number, each in enumerate(values)]

    def _array(self, values: Any) -> int:
        self.arrays.append(values)
        return len(self.arrays) - 1


def _is_known(kind: Any) -> bool:
    """Return whether a type is that of an estimator, or of a part of one, that can be made from its attributes."""
    base = sys.modules.get("sklearn.base")  # without it no estimator exists
    if base is None or not isinstance(kind, type) or not _MODULES.fullmatch(kind.__module__):
        return False
    return issubclass(kind, base.BaseEstimator) or (dataclasses.is_dataclass(kind) and not hasattr(kind, "__slots__"))


def decode(value: bytes, arrays: bytes) -> Any:
    """Return the object of two files.

    Raises
    ------
    ValueError
        If the files are not those of an object.
    """
    with zipfile.ZipFile(io.BytesIO(arrays)) as file:
        # A compressed array may have any size.
        if any(each.compress_type != zipfile.ZIP_STORED for each in file.infolist()):
            raise ValueError("an array is compressed")
    with np.load(io.BytesIO(arrays), allow_pickle=False) as stored:
        return _decode(json.loads(value), [stored[str(number)] for number in range(len(stored.files))])


def _decode(tree: Any, arrays: list[Any]) -> Any:
    if isinstance(tree, list):
        return [_decode(each, arrays) for each in tree]
    if not isinstance(tree, dict):
        return tree
    ((kind, content),) = tree.items()
    if kind in {"array", "bytes", "scalar"}:
        array = arrays[content]
        return array if kind == "array" else array.tobytes() if kind == "bytes" else array[()]
    if kind in _OF_ARRAYS:
        return _OF_ARRAYS[kind](content, arrays)
    return _OF_VALUES[kind](_decode(content, arrays))


def _matrix(content: Any, arrays: list[Any]) -> Any:
    from scipy import sparse

    is_array, shape, parts = content
    rows = tuple(arrays[number] for number in parts)
    matrix = (sparse.csr_array if is_array else sparse.csr_matrix)(rows, shape=tuple(shape))
    matrix.check_format(full_check=True)  # functions in C do not check indices
    return matrix


def _objects(content: Any) -> Any:
    shape, items = content
    values = np.empty(len(items), object)
    values[:] = items
    return values.reshape(shape)


def _random_state(state: dict[str, Any]) -> np.random.RandomState:
    random_state = np.random.RandomState()
    random_state.set_state(state)
    return random_state


def _object(content: Any) -> Any:
    """Return an estimator or a part of one; no class outside of the two packages is imported."""
    module, name, state = content
    if not _MODULES.fullmatch(module):
        raise ValueError(f"an object of {module}")
    kind = getattr(importlib.import_module(module), name)
    if not _is_known(kind):
        raise ValueError(f"{module}.{name} is no estimator")
    made = kind.__new__(kind)
    state = {key: None if key in _DROPPED else part for key, part in state}
    if hasattr(kind, "__setstate__"):
        made.__setstate__(state)
    else:
        vars(made).update(state)
    return made


# Kinds by their functions: of the arrays, and of the values inside.
_OF_ARRAYS: dict[str, Callable[[Any, list[Any]], Any]] = {
    "csr": _matrix,
    "tensor": lambda content, arrays: tensors.from_bytes(content[0], content[1], arrays[content[2]]),
}
_OF_VALUES: dict[str, Callable[[Any], Any]] = {
    "float": float,
    "int": lambda text: int(text, 16),
    "tuple": tuple,
    "set": set,
    "frozenset": frozenset,
    "dict": lambda content: dict(zip(*content, strict=True)),
    "slice": lambda content: slice(*content),
    "dtype": np.dtype,
    "type": lambda name: np.dtype(name).type,
    "objects": _objects,
    "RandomState": _random_state,
    "object": _object,
}

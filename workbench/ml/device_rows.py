"""The rows of a part on a device, for example a GPU; written with the array API."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from workbench.errors import InvalidRequest
from workbench.gpu.tensors import missing, on_device, on_host
from workbench.ml.algebra.row_slices import pack


class TensorRows:
    """Rows on a device; the host gets a copy of what it reads.

    Parameters
    ----------
    tensor
        Tensor of PyTorch of shape (rows, features).
    """

    def __init__(self, tensor: Any) -> None:
        self.tensor = tensor
        self.shape: tuple[int, ...] = tuple(tensor.shape)
        self.dtype = np.dtype(str(tensor.dtype).removeprefix("torch."))

    def __getitem__(self, part: Any) -> Any:
        """Return some rows as a NumPy array; `part` is a slice, or numbers of rows."""
        return on_host(self.tensor[part])

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Any:
        """Return all rows as a NumPy array."""
        return np.array(on_host(self.tensor), dtype, copy=copy) if copy else np.asarray(on_host(self.tensor), dtype)


_Array = NDArray[Any]

# Bytes of a slice as float64: on a CPU a slice stays in a cache while it is used; a GPU needs many rows at a time.
_CACHED, _ON_GPU, _LEAST = 2 << 20, 256 << 20, 128
# Columns of a block of a product of which only the upper half is computed.
_COLUMNS = 64


@dataclass(frozen=True)
class _OnDevice:
    """Makes parts on a device."""

    part: Callable[..., Any]
    device: str
    takes_tensors: ClassVar = True
    """For `workbench.ml.checks.make`."""

    def __call__(self, *columns: Any) -> Any:
        return self.part(*columns, device=self.device)


def part_on(device: str | None, host: Callable[..., Any], other: Callable[..., Any]) -> Callable[..., Any]:
    """Return the class of a part in the memory of the host, or on a device.

    Parameters
    ----------
    device
        The parameter of the estimator; None: the host.
    host, other
        The two classes.
    """
    return host if device is None else _OnDevice(other, device)


class DeviceRows:
    """Rows on a device. The methods compute there, and their arguments and results are arrays of NumPy.

    Parameters
    ----------
    X
        Shape (rows, features): an array, which is copied to the device, or `TensorRows`, which are copied only from
        another device.
    device
        Name of a device of PyTorch, for example ``"cuda"``, or ``"cpu"``, which shares the memory of the rows.

    Raises
    ------
    InvalidRequest
        If the rows are sparse, or the process cannot use the device.
    """

    def __init__(self, X: Any, device: str) -> None:
        if sparse.issparse(X):
            raise InvalidRequest(option="device", given=device, allowed="None for a sparse matrix, or pass dense rows")
        try:
            import array_api_compat.torch as xp
        except ImportError as error:
            raise missing(device, error) from error
        self.xp: Any = xp
        self._device = device
        self._space: Any = None
        self._rows = on_device(X.tensor if isinstance(X, TensorRows) else np.asarray(X), device)
        self.shape = X.shape

    def put(self, array: Any, dtype: Any = None) -> Any:
        """Return a copy of an array on the device."""
        array = np.asarray(array, dtype)
        # PyTorch has no arrays that cannot be written.
        return self.xp.asarray(array if array.flags.writeable else array.copy(), device=self._device)

    def get(self, array: Any) -> _Array:
        """Return a copy of an array of the device, or on the CPU the array itself."""
        return np.asarray(array.cpu())

    def floats(self, array: Any) -> Any:
        """Return an array of the device as float64."""
        return self.xp.astype(array, self.xp.float64, copy=False)

    def slices(self, middle: Any = None, width: int | None = None) -> Iterator[tuple[slice, Any]]:
        """Yield slices and their rows on the device as float64, minus a middle; the next slice may overwrite the rows.

        Parameters
        ----------
        middle
            Shape (features,), subtracted from each row; None: nothing is subtracted.
        width
            Numbers per row that the caller computes; None: as many as features.
        """
        if middle is None:
            yield from ((part, self.floats(self._rows[part, :])) for part in self.parts(width))
            return
        shift = self.put(middle, np.float64)
        for part in self.parts(width):
            yield part, self.less(self._rows[part, :], shift)

    def less(self, rows: Any, shift: Any) -> Any:
        """Return the rows of a slice minus a row as float64; the next call overwrites the result."""
        # On a CPU new memory takes as long as the subtraction.
        if self._space is None or self._space.shape[0] < rows.shape[0]:
            self._space = self.zeros(*rows.shape)
        # PyTorch cannot subtract from booleans.
        numbers = self.floats(rows) if rows.dtype == self.xp.bool else rows
        # The array API has no `out`, but its libraries have, and a copy before would take as long as the subtraction.
        return self.xp.subtract(numbers, shift, out=self._space[: rows.shape[0], :])

    def parts(self, width: int | None = None) -> Iterator[slice]:
        """Yield slices; see `slices`."""
        size = _CACHED if self._device.startswith("cpu") else _ON_GPU
        at_once = max(_LEAST, size // (8 * max(1, self.shape[1], width or 0)))
        for start in range(0, self.shape[0], at_once):
            yield slice(start, min(start + at_once, self.shape[0]))

    def product(self, X: Any, right: Any) -> Any:
        """Return ``X @ right`` for many rows and few columns; the transposed product is twice as fast on a CPU."""
        if right.ndim == 1:
            return X @ right
        turn = self.xp.matrix_transpose
        return turn(turn(right) @ turn(X))

    def __getitem__(self, part: Any) -> Any:
        """Return some rows on the device, in their dtype; `part` is a slice, or numbers of rows in NumPy."""
        if isinstance(part, slice):
            return self._rows[part, :]
        return self.xp.take(self._rows, self.put(part), axis=0)

    def zeros(self, *shape: int) -> Any:
        """Return zeros on the device, float64."""
        return self.xp.zeros(shape, dtype=self.xp.float64, device=self._device)


class DeviceProducts:
    """The sum of products of the transposed rows and the rows on a device: as `row_slices.Products`."""

    def __init__(self, rows: DeviceRows, width: int) -> None:
        self._rows, self._square = rows, rows.zeros(width, width)

    def add(self, X: Any) -> None:
        """Add the products of rows on the device, shape (rows, features): the upper half and the blocks it crosses."""
        transposed = self._rows.xp.matrix_transpose(X)
        for start in range(0, X.shape[1], _COLUMNS):
            self._square[start : start + _COLUMNS, start:] += transposed[start : start + _COLUMNS, :] @ X[:, start:]

    @property
    def packed(self) -> NDArray[np.float64]:
        """The packed half; `workbench.ml.algebra.row_slices.upper` unpacks it."""
        return pack(self._rows.get(self._square))

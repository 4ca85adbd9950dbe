"""Singular values and vectors of all rows: three solvers, and the choice between them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import eigh, qr, svd

from workbench.ml.algebra.memory_limits import UNASKED, Limit
from workbench.ml.algebra.row_slices import refuse_overflow, upper
from workbench.ml.algebra.sums import COUNTED, about_mean, join_triangles
from workbench.ml.engine.parts import Parts, Passes

_Array = NDArray[np.float64]

SOLVERS = ("auto", "gram", "tsqr", "randomized")
"""The values of the parameter `solver`."""

# Maximum number of features for which the eigenvectors of their products take at most a second.
_NARROW = 1000
# Above this fraction of all components random vectors save nothing.
_MOST = 0.8
# A singular value with a larger relative error justifies another pass over the rows.
_DOUBTFUL = 1e-6
_EPS = float(np.finfo(np.float64).eps)
# Loadings whose relative difference is smaller are equal, apart from rounding.
_TIED = 1e-8


@dataclass(frozen=True)
class Settings:
    """Settings of a fit, with the names of the parameters."""

    n_components: float | None
    """Number of components; a fraction of the variance, less than 1; or None for all."""
    centered: bool
    """Whether the mean is subtracted from the rows."""
    solver: str
    n_iter: int
    n_oversamples: int
    seed: int
    rows: int
    features: int
    limit: Limit = UNASKED

    @property
    def all(self) -> int:
        """Maximum number of components."""
        return min(self.rows, self.features)

    @property
    def chosen(self) -> str:
        """The first solver."""
        if self.solver != "auto":
            return self.solver
        number = self.all if self.n_components is None else self.n_components
        if self.features > _NARROW and 1 <= number < _MOST * self.all:
            return "randomized"
        return "tsqr" if self.rows < self.features else "gram"

    @property
    def most(self) -> int:
        """Maximum number of features with any memory."""
        return COUNTED if self.chosen == "gram" else 2**31 - 1

    def needs(self, features: int) -> int:
        """Return the bytes of matrices for a number of features, on the rank that needs the most."""
        if self.chosen == "gram":
            return 16 * features**2
        if self.chosen == "tsqr":
            return self.for_triangles(features)
        vectors = self._vectors(features)
        return 48 * features * vectors + 28 * vectors**2

    def for_triangles(self, features: int) -> int:
        """Return the bytes of matrices of ``"tsqr"`` for a number of features."""
        rows, least = min(self.rows, 4 * features), min(self.rows, features)
        return max(16 * features * (rows + least), 34 * features * least + 24 * least**2)

    def sent(self, features: int) -> int:
        """Return the bytes of a message of a part, for a number of features."""
        if self.chosen == "gram":
            return 4 * features**2
        return 8 * features * (min(self.rows, features) if self.chosen == "tsqr" else self._vectors(features))

    @property
    def later(self) -> int:
        """Bytes of matrices of a second solver, if the first one may have too few digits."""
        return self.for_triangles(self.features) if self.solver == "auto" and self.chosen == "gram" else 0

    @property
    def vectors(self) -> int:
        """Number of vectors of ``"randomized"``."""
        return self._vectors(self.features)

    def _vectors(self, features: int) -> int:
        most = min(self.rows, features)
        return most if self.n_components is None else min(int(self.n_components) + self.n_oversamples, most)


@dataclass(frozen=True)
class Fitted:
    """The result of a fit."""

    mean: _Array
    """Mean of the rows, shape (features,)."""
    components: _Array
    """Shape (components, features)."""
    singular_values: _Array
    """Shape (components,), in descending order."""
    rest: float
    """Sum of the squares of the omitted singular values."""
    bound: _Array
    """Bound of the error of each singular value, shape (components,)."""
    solver: str
    short: str = ""
    """Why a solver with more digits exceeded the memory limit; empty if it was not needed, or was used."""


@dataclass(frozen=True)
class _Spectrum:
    """The result of a solver."""

    mean: _Array
    values: _Array
    vectors: _Array
    """Shape (values, features)."""
    total: float
    """Sum of the squares of all singular values, including the unknown ones."""
    bound: _Array


def fit(parts: Parts, settings: Settings) -> Fitted:
    """Compute singular values and vectors.

    Parameters
    ----------
    parts
        `DecompositionPart` objects.
    settings
        The settings.

    Notes
    -----
    ``"gram"``: eigenvectors of the products of features; one pass. Squares have half of the digits: singular values
    below 1e-8 of the largest are rounding errors. ``"tsqr"``: Demmel, Grigori, Hoemmen and Langou, SIAM Journal on
    Scientific Computing 34 (2012); all digits, several times the work, and a pass for the mean. ``"randomized"``:
    Halko, Martinsson and Tropp, SIAM Review 53 (2011), subspace iteration on the products of features, which needs
    numbers per feature and vector and none per row; a pass for the mean, and ``n_iter + 3`` passes.
    `workbench.ml.decomposition.estimators.PCA` describes ``"auto"``, which omits the second solver if its matrices
    exceed the memory limit.

    Rounding errors are assumed to be random, so that n errors add up to the root of n: Higham and Mary, SIAM Journal on
    Scientific Computing 41 (2019).
    """
    passes = Passes(parts)
    solver = settings.chosen
    spectrum = _SOLVERS[solver](passes, settings)
    number, short = _number(spectrum, settings), ""
    if settings.solver == "auto" and solver == "gram" and _doubtful(spectrum, number):
        short = settings.limit.over(settings.later)
        if not short:
            solver = "tsqr"
            spectrum = _SOLVERS[solver](passes, settings)
            number = _number(spectrum, settings)
    values = spectrum.values[:number]
    rest = spectrum.total - float(values @ values)
    if len(spectrum.values) == settings.all:
        rest = float(np.square(spectrum.values[number:]).sum())
    components = spectrum.vectors[:number].copy()
    # One component at a time: the absolute values of all would take as much memory as the components.
    components *= np.copysign(1.0, list(map(_largest, components)))[:, None]
    return Fitted(spectrum.mean, components, values, max(rest, 0.0), spectrum.bound[:number], solver, short)


def _largest(component: _Array) -> Any:
    """Return the first of the largest loadings, apart from rounding, which must not choose the sign."""
    sizes = np.abs(component)
    return component[np.argmax(sizes >= (1 - _TIED) * sizes.max())]


def _doubtful(spectrum: _Spectrum, number: int) -> bool:
    return bool(number and spectrum.bound[number - 1] > _DOUBTFUL * spectrum.values[number - 1])


def _number(spectrum: _Spectrum, settings: Settings) -> int:
    """Return the number of components."""
    if settings.n_components is None:
        return settings.all
    if settings.n_components >= 1:
        return int(settings.n_components)
    shares = np.cumsum(np.square(spectrum.values)) / (spectrum.total or 1.0)
    return min(int(np.searchsorted(shares, settings.n_components, side="right")) + 1, settings.all)


def _mean(parts: Parts, settings: Settings) -> tuple[_Array, _Array | None]:
    """Return the mean, and the middle that is subtracted from the rows."""
    mean = parts.sum("sums") / settings.rows
    return mean, mean if settings.centered else None


def _by_gram(parts: Parts, settings: Settings) -> _Spectrum:
    gram, mean = _about_mean(parts, settings) if settings.centered else _about_zero(parts, settings)
    squares, vectors = eigh(gram, lower=False, overwrite_a=True, check_finite=False)
    squares, vectors = np.clip(squares[::-1], 0.0, None)[: settings.all], vectors.T[::-1][: settings.all]
    doubt = _rounding(settings) * squares.max(initial=0.0)
    return _Spectrum(mean, np.sqrt(squares), vectors, float(squares.sum()), _of_roots(squares, doubt))


def _about_mean(parts: Parts, settings: Settings) -> tuple[_Array, _Array]:
    """Return the Gram matrix of centered rows, and the mean; the mean of a sample as the origin saves a pass."""
    number, sums = parts.sum("sample", settings.rows)
    origin = sums / number
    while True:
        packed, sums = parts.sum("gram", origin)
        gram = about_mean(packed, sums, settings.rows, origin)
        if not gram.far or (gram.mean == origin).all():
            return gram.matrix, gram.mean
        origin = gram.mean


def _about_zero(parts: Parts, settings: Settings) -> tuple[_Array, _Array]:
    packed, sums = parts.sum("gram", None)
    return upper(packed, settings.features), sums / settings.rows


def _by_tsqr(parts: Parts, settings: Settings) -> _Spectrum:
    mean, middle = _mean(parts, settings)
    triangle = parts.fold(join_triangles, "triangle", middle, None)
    _, values, vectors = svd(triangle, full_matrices=False, check_finite=False)
    # `vdot` overflows without a warning.
    total = float(np.vdot(values, values))
    refuse_overflow(total)
    return _Spectrum(mean, values, vectors, total, _of_values(values, middle, settings))


def _by_random_vectors(parts: Passes, settings: Settings) -> _Spectrum:
    mean, middle = _mean(parts, settings)
    total = parts.sum("squares", middle)
    refuse_overflow(total)
    basis = np.random.default_rng(settings.seed).normal(size=(settings.features, settings.vectors))
    for iteration in range(settings.n_iter + 1):
        product = parts.parts.sum("normal", middle, basis)
        parts.report({"iteration": iteration + 1})
        basis = qr(product, mode="economic", overwrite_a=True, check_finite=False)[0]
    triangle = parts.fold(join_triangles, "triangle", middle, basis)
    _, values, turn = svd(triangle, full_matrices=False, check_finite=False)
    directions = turn @ basis.T
    squares = np.square(values)
    # The part outside of the basis adds at most the sum of its squares to any square.
    outside = max(total - float(squares.sum()), 0.0) + _rounding(settings) * total
    residuals = np.linalg.norm(parts.sum("normal", middle, directions.T) - directions.T * squares, axis=0)
    doubt = _of_residuals(squares, residuals + _rounding(settings) * squares.max(initial=0.0), outside)
    # A basis underestimates singular values, and never overestimates them.
    bound = np.divide(doubt, values + np.sqrt(squares + doubt), out=np.zeros(len(values)), where=doubt > 0)
    return _Spectrum(mean, values, directions, total, bound + _of_values(values, middle, settings))


_SOLVERS = {"gram": _by_gram, "tsqr": _by_tsqr, "randomized": _by_random_vectors}


def _rounding(settings: Settings) -> float:
    """Return the error of sums of products, relative to the largest eigenvalue."""
    return _EPS * (10 + settings.features + float(np.sqrt(settings.rows)))


def _of_residuals(squares: _Array, residuals: _Array, outside: float) -> _Array:
    """Return the errors of the squares of singular values from a basis.

    Parameters
    ----------
    squares
        The eigenvalues, in descending order.
    residuals
        The norms of the residuals of the eigenvectors.
    outside
        Bound of the eigenvalues outside of the basis.

    Notes
    -----
    The errors of the first eigenvalues are the sum of their squared residuals, divided by the gap to the other
    eigenvalues: Li and Li, Linear Algebra and its Applications 395 (2005). The best number of first eigenvalues is
    used; without a gap the error is `outside`.
    """
    gaps = squares[:, None] - np.append(squares[1:], 0.0) - outside
    known = np.cumsum(np.square(residuals))
    errors = np.full(gaps.shape, outside)
    np.divide(2 * known, gaps + np.sqrt(np.square(gaps) + 4 * known), out=errors, where=np.triu(gaps > 0))
    best: _Array = errors.min(axis=1, initial=outside)
    return best


def _of_roots(squares: _Array, doubt: float) -> _Array:
    """Return the errors of the roots of numbers with an error of `doubt`."""
    roots, sure = np.sqrt(squares), np.sqrt(np.clip(squares - doubt, 0.0, None))
    bound: _Array = doubt / np.maximum(roots + sure, np.sqrt(doubt)) if doubt else np.zeros(len(squares))
    return bound


def _of_values(values: _Array, middle: _Array | None, settings: Settings) -> _Array:
    """Return the errors of singular values that were computed without squares."""
    error = _rounding(settings) * values.max(initial=0.0)
    if middle is not None:
        error += _EPS * float(np.sqrt(settings.rows) * np.linalg.norm(middle))
    return np.full(len(values), error)

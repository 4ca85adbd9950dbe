"""Feature engineering like ``ColumnTransformer`` of scikit-learn, on ranks and in one pass."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from numbers import Real
from typing import TYPE_CHECKING, Any, ClassVar, Self

import numpy as np
import pandas as pd
from dask.base import is_dask_collection
from numpy.typing import NDArray
from sklearn.preprocessing import TargetEncoder
from sklearn.utils.validation import _check_feature_names_in, check_is_fitted, validate_data

from workbench.ml.data import Data, know_features, refuse_other_axes
from workbench.ml.engine.kept_arrays import Applied, AppliedToNumbered
from workbench.ml.engine.mpi_parts import Task
from workbench.ml.engine.progress import Callback
from workbench.ml.estimator import Estimator, rows_together
from workbench.ml.placed import in_blocks
from workbench.ml.recipe.data import local, training
from workbench.ml.recipe.fitted import Columns, FittedColumn, fitted
from workbench.ml.recipe.part import RecipeChecks, RecipePart, of_weighed, statistics
from workbench.ml.recipe.steps import Chain, chains
from workbench.ml.transformer import Transformer
from workbench.placement.sources import with_final_partitions

if TYPE_CHECKING:
    from sklearn.compose import ColumnTransformer

_Array = NDArray[Any]


class Recipe(Transformer, Estimator):
    """The transformations of the columns of a table before the training of a model.

    Parameters
    ----------
    steps : list
        List of pairs ``(steps, columns)``. Steps are transformers of scikit-learn: ``SimpleImputer``,
        ``StandardScaler``, ``OneHotEncoder``, ``KBinsDiscretizer``, ``TargetEncoder``, ``"passthrough"``, or a
        ``SimpleImputer`` and one of these in a list or a pipeline. Other valid steps are transformers without a fit,
        for example ``FunctionTransformer``, and fitted ones in a ``FrozenEstimator``; they are applied to all their
        columns together, or to a series if one column is named alone, as vectorizers of text need it. Parameters
        without a meaning here raise an error. Columns are a name, a number, a list or slice of these, or a function
        from the dataframe to these, for example ``sklearn.compose.make_column_selector``. A slice of names includes the
        last one. A number is a position, as in scikit-learn; if labels of the dataframe are numbers, it is a label.
        Each column has its own result. Other columns are dropped.
    engine : {"auto", "mpi", "dask", "local"}, default="auto"
        See `workbench.ml.engine.fitting.fit`.
    verbose : int, default=0
        1: a progress bar; 2: one line per pass over the rows.
    callback : callable, default=None
        Called after each pass over the rows with its number and name: ``pass``, ``name``.

    Attributes
    ----------
    columns_ : list
        The fitted columns, in the order of the steps.
    transformer_ : sklearn.compose.ColumnTransformer
        The recipe as fitted transformers of scikit-learn, which can be loaded without an installed workbench. Its
        results are those of ``transform``, for tables whose missing values are NaN; numbers for buckets must not be
        missing.
    n_features_in_ : int
        Number of columns.
    feature_names_in_ : ndarray of str
        Names of the columns, if these are text.
    engine_ : str
        The engine of the last fit: ``"mpi"``, ``"dask"``, or ``"local"``, this process.

    Notes
    -----
    The result is that of scikit-learn, apart from rounding, on any number of ranks; quantiles are exact if each block
    has at most 8192 different numbers. Differences: all missing values (None, NaN, NaT) are one category; missing
    numbers stay missing in buckets; a column without any number is filled with 0, and not dropped; the folds of a
    ``TargetEncoder`` depend on the numbers of the rows.

    With a target of more than two classes, ``TargetEncoder`` returns a column per class: the share of the class in the
    rows of the category. Its ``target_type="auto"`` selects the type as in scikit-learn, and refuses more than 100
    different whole numbers, which may be numbers or labels.

    In addition to its block, a rank needs eight columns of numbers and the statistics: 128 KiB per column with
    quantiles and rank, and some numbers per category.

    Examples
    --------
    >>> import pandas as pd
    >>> from sklearn.impute import SimpleImputer
    >>> from sklearn.preprocessing import OneHotEncoder, StandardScaler
    >>> flights = pd.DataFrame({"distance": [100.0, None, 300.0], "carrier": ["AA", "UA", "AA"]})
    >>> numbers = [SimpleImputer(strategy="median"), StandardScaler()]
    >>> recipe = Recipe([(numbers, "distance"), (OneHotEncoder(sparse_output=False), "carrier")])
    >>> recipe.fit_transform(flights).round(2)
    array([[-1.22,  1.  ,  0.  ],
           [ 0.  ,  0.  ,  1.  ],
           [ 1.22,  1.  ,  0.  ]])
    >>> recipe.get_feature_names_out()
    array(['distance', 'carrier_AA', 'carrier_UA'], dtype=object)
    """

    _parameter_constraints: ClassVar[dict[str, list[Any]]] = {
        **Estimator._parameter_constraints,
        "steps": [list, tuple],
    }

    def __init__(
        self,
        steps: Sequence[tuple[Any, Any]],
        *,
        engine: str = "auto",
        verbose: int = 0,
        callback: Callback | None = None,
    ) -> None:
        self.steps = steps
        self.engine = engine
        self.verbose = verbose
        self.callback = callback

    def fit(self, X: Any, y: Any = None, sample_weight: Any = None) -> Self:
        """Compute the statistics of the columns for the steps.

        Parameters
        ----------
        X : dataframe, array, or Dask dataframe or array of shape (rows, columns)
            The table.
        y : array-like, or Dask array or series of shape (rows,), default=None
            The target; only a ``TargetEncoder`` needs it. Numbers, booleans or labels; numbers for ``"continuous"``.
        sample_weight : float, array-like, or Dask array or series of shape (rows,), default=None
            Weights of the rows. A row of weight 2 counts as two rows in all statistics, and a row of weight 0 does not
            count. None: all 1.

        Returns
        -------
        Recipe
            The estimator itself.

        Raises
        ------
        ValueError, TypeError
            If a list of steps is not valid, a column does not exist, a step for numbers has a column of other values,
            or the target is missing or has another type than the ``target_type`` of a ``TargetEncoder``.
        """
        self._learn(X, y, sample_weight)
        return self

    def fit_transform(  # type: ignore[override]  # with the arguments of `fit`
        self, X: Any, y: Any = None, sample_weight: Any = None
    ) -> Any:
        """Fit, and return the rows for the training of a model: with target means of the other folds.

        Parameters
        ----------
        X, y, sample_weight
            See `fit`.

        Returns
        -------
        ndarray, scipy.sparse.csr_array or dask.array.Array
            See `transform`. A Dask array is placed, one block per rank, and computed once: the next step of a pipeline
            fits on these blocks.
        """
        return super().fit_transform(X, y, sample_weight=sample_weight)

    def _fit_transform(self, X: Any, y: Any, **params: Any) -> Any:
        data = self._learn(X, y, params["sample_weight"])
        columns = Columns(tuple(self.columns_))
        if not is_dask_collection(X):
            X = local(X)
            return columns.transform(X, np.arange(len(X)))
        return data.X.map_blocks(AppliedToNumbered(columns, "transform"), **_lazily(data.X.chunks[0], columns))

    def transform(self, X: Any) -> Any:
        """Return the transformed rows.

        Parameters
        ----------
        X
            See `fit`.

        Returns
        -------
        ndarray, scipy.sparse.csr_array or dask.array.Array of shape (rows, names), float64
            In CSR format if a step returns sparse rows, for example ``OneHotEncoder()``; a Dask array has
            chunks in this format. Lazy if X is a Dask collection; the lengths of the chunks are unknown if X is a
            dataframe that is not placed.
        """
        import dask.array as da

        check_is_fitted(self)
        columns = Columns(tuple(self.columns_))
        if not is_dask_collection(X):
            X = local(X)
            validate_data(self, X, reset=False, skip_check_array=True)
            return columns.transform(X)
        know_features(self, X, reset=False)
        call, blocks = Applied(columns, "transform"), in_blocks(X, object)
        if not hasattr(blocks, "divisions"):
            blocks = rows_together(blocks)
            return blocks.map_blocks(call, **_lazily(blocks.chunks[0], columns))
        blocks = with_final_partitions(blocks)
        options = _lazily([np.nan] * blocks.npartitions, columns)
        blocks = blocks.map_partitions(call, meta=options["meta"], enforce_metadata=False)
        return da.Array(blocks.dask, blocks.name, **options)

    def get_feature_names_out(self, input_features: Any = None) -> _Array:
        """Return the names of the columns of `transform`.

        A name that several steps return has the class of its step as a prefix, for example ``kbinsdiscretizer__hour``.

        Parameters
        ----------
        input_features : array-like of str of shape (columns,), default=None
            Names of the columns, if the recipe was fitted on an array; None: ``x0``, ``x1``, ...

        Returns
        -------
        ndarray of shape (names,), object
            The names, in the order of the columns of the result.
        """
        check_is_fitted(self)
        names = _check_feature_names_in(self, input_features)
        return np.array(self._names(names), dtype=object)

    @property
    def transformer_(self) -> ColumnTransformer:
        """The fitted recipe as a fitted transformer of scikit-learn, which can be loaded without workbench."""
        check_is_fitted(self)
        names = getattr(self, "feature_names_in_", None)
        output_names = [name for name, _ in self._steps_of(_check_feature_names_in(self))]
        unique = len(set(output_names)) == len(output_names)
        return Columns(tuple(self.columns_)).of_scikit_learn(names, self.n_features_in_, unique=unique)

    def _learn(self, X: Any, y: Any, weight: Any) -> Data:
        self._validate_params()
        X = X if is_dask_collection(X) else local(X)
        if is_dask_collection(X):
            refuse_other_axes(X)
            know_features(self, X, reset=True)
        else:
            validate_data(self, X, skip_check_array=True)
        chains = self._chains(X)
        needs_target = any(isinstance(chain.encoder, TargetEncoder) for chain in chains)
        if needs_target and y is None:
            raise ValueError(
                "This Recipe requires y to be passed, but the target y is None. TargetEncoder() needs the target."
            )
        checks = RecipeChecks(type(self).__name__)
        data = training(checks, X, y if needs_target else None, weight, self.engine)
        algorithm = statistics if weight is None else of_weighed
        columns = tuple(chain.column() for chain in chains)
        columns_statistics = self._fit(Task(algorithm, columns, RecipePart, checks), data)
        self.columns_: list[FittedColumn] = list(map(fitted, chains, columns_statistics))
        return data

    def _chains(self, X: Any) -> tuple[Chain, ...]:
        frame = getattr(X, "_meta", X)
        labels = list(frame.columns) if hasattr(frame, "columns") else list(range(self.n_features_in_))
        result = []
        for steps, columns in map(_pair, self.steps):
            chosen = columns(frame) if callable(columns) else columns
            result += chains(_positions(chosen, labels), labels, steps, is_series=_is_one(chosen))
        if not result:
            raise ValueError(
                "a Recipe needs at least one column. Pass steps, for example [(StandardScaler(), ['distance'])]."
            )
        return tuple(result)

    def _steps_of(self, names: _Array) -> list[tuple[str, str]]:
        """Return for each column of the result its name, and the name of its step."""
        labels = list(map(str, names))
        return [(name, column.chain.name) for column in self.columns_ for name in column.names(labels)]

    def _names(self, names: _Array) -> list[str]:
        pairs = self._steps_of(names)
        counts = Counter(name for name, _ in pairs)
        unique = [f"{step}__{name}" if counts[name] > 1 else name for name, step in pairs]
        if len(set(unique)) < len(unique):
            raise ValueError(
                f"the columns of a Recipe need distinct names, and a step that is used repeatedly returns {unique}. "
                "Use each step only once for a column."
            )
        return unique

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan = True
        tags.input_tags.string = tags.input_tags.categorical = True
        return tags


def _pair(entry: Any) -> tuple[Any, Any]:
    """Return the steps and the columns of an entry of `Recipe.steps`."""
    if not isinstance(entry, tuple | list) or len(entry) != 2:
        raise TypeError(
            f"{entry!r} is not a pair of steps and columns. Pass, for example, (StandardScaler(), ['distance'])."
        )
    return entry[0], entry[1]


def _is_one(columns: Any) -> bool:
    """Return whether this is one column, and not a list or slice of columns."""
    return isinstance(columns, str) or not (isinstance(columns, slice) or np.iterable(columns))


def _positions(columns: Any, labels: Sequence[Any]) -> list[int]:
    """Return the numbers of columns from labels, or from numbers where no label is another number."""
    if isinstance(columns, slice):
        start, stop = columns.start, columns.stop
        if not _takes_numbers(labels) and isinstance(start if stop is None else stop, int | np.integer):
            raise ValueError(
                f"{columns!r} may be positions or labels, because labels of X are numbers. Pass a list of labels. The "
                f"columns of X: {_listed(labels)}."
            )
        if isinstance(start, str):
            [start] = _found([start], labels)
        if isinstance(stop, str):
            # A slice of names includes the last one, as in pandas.
            stop = _found([stop], labels)[0] + 1
        return list(range(len(labels))[start : stop : columns.step])
    return _found([columns] if _is_one(columns) else list(columns), labels)


def _found(columns: Sequence[Any], labels: Sequence[Any]) -> list[int]:
    """Return the numbers of columns; raise ValueError if there is none, or several."""
    # Labels may be NaN, which is not equal to itself.
    index = _index(labels)
    different = np.flatnonzero(~index.duplicated())
    is_repeated, takes_numbers = index.duplicated(keep=False), _takes_numbers(labels)
    result = []
    for column, place in zip(columns, index[different].get_indexer(_index(columns)), strict=True):
        number, is_bool = int(different[place]), isinstance(column, bool | np.bool_)
        if place >= 0 and is_repeated[number]:
            times = len(index.get_indexer_for(_index([column])))
            raise ValueError(
                f"X has {times} columns {column!r}. Give each column its own label. The columns: {_listed(labels)}."
            )
        if place < 0 or (is_bool and not isinstance(labels[number], bool | np.bool_)):
            if is_bool or not isinstance(column, int | np.integer) or not -len(labels) <= column < len(labels):
                raise ValueError(f"X has no column {column!r}. The columns of X: {_listed(labels)}.")
            if not takes_numbers:
                raise ValueError(
                    f"X has no column {column!r}. Labels of X are numbers, so that a number is a label and not a "
                    f"position. The columns of X: {_listed(labels)}."
                )
            number = int(column) % len(labels)
        result.append(number)
    return result


def _index(labels: Sequence[Any]) -> pd.Index[Any]:
    return pd.Index(labels, dtype=object, tupleize_cols=False)


def _listed(labels: Sequence[Any]) -> str:
    return ", ".join(map(repr, labels[:20]))


def _takes_numbers(labels: Sequence[Any]) -> bool:
    """Return whether numbers are positions: no label is a number, or all labels are their positions."""
    return list(labels) == list(range(len(labels))) or not any(isinstance(label, Real) for label in labels)


def _lazily(lengths: Sequence[float], columns: Columns) -> dict[str, Any]:
    """Return the arguments of Dask for the result."""
    empty = columns.empty
    return {"chunks": (tuple(lengths), (empty.shape[1],)), "dtype": np.float64, "meta": empty}

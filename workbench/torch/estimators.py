"""`workbench.torch.fit` as estimators of scikit-learn, on ranks or in this process."""

from __future__ import annotations

import functools
from collections.abc import Callable
from numbers import Integral, Real
from typing import Any, ClassVar, Self

from dask.base import is_dask_collection
from sklearn.base import MultiOutputMixin
from sklearn.utils._param_validation import Interval, StrOptions
from sklearn.utils.validation import check_is_fitted

from workbench.ml.checks import Checks
from workbench.ml.data import training
from workbench.ml.engine.mpi_parts import Task
from workbench.ml.engine.progress import Callback
from workbench.ml.estimator import Estimator
from workbench.ml.scores import Classifier, Regressor
from workbench.torch.context import require_torch
from workbench.torch.feeding import SHUFFLES

# Parameters of `workbench.torch.fit` with the same meaning.
_OPTIONS = ("epochs", "size", "optimizer", "schedule", "patience", "seed", "shuffle", "device")


class _NeuralNet(Estimator):
    """A module of PyTorch, trained as by `workbench.torch.fit`."""

    _limited_by = "epochs"
    _parameter_constraints: ClassVar[dict[str, list[Any]]] = {
        **Estimator._parameter_constraints,  # noqa: SLF001  (a hook of scikit-learn)
        **{name: [callable, None] for name in ("module", "loss", "optimizer", "schedule")},
        **{name: [Interval(Integral, 1, None, closed="left")] for name in ("epochs", "size")},
        "validation": [Interval(Real, 0, 1, closed="neither"), None],
        "patience": [Interval(Integral, 1, None, closed="left"), None],
        "seed": [Interval(Integral, 0, None, closed="left")],
        "shuffle": [StrOptions(set(SHUFFLES)), None],
        "engine": [StrOptions({"auto", "mpi", "local"})],
        "device": [str, None],
    }

    def __init__(
        self,
        module: Any = None,
        *,
        loss: Callable[..., Any] | None = None,
        optimizer: Callable[[Any], Any] | None = None,
        epochs: int = 10,
        size: int = 256,
        schedule: Callable[[Any], Any] | None = None,
        validation: float | None = None,
        patience: int | None = None,
        seed: int = 0,
        shuffle: str | None = "exchange",
        engine: str = "auto",
        device: str | None = None,
        verbose: int = 0,
        callback: Callback | None = None,
    ) -> None:
        self.module, self.loss, self.optimizer, self.schedule = module, loss, optimizer, schedule
        self.epochs, self.size, self.validation, self.patience = epochs, size, validation, patience
        self.seed, self.shuffle, self.engine, self.device = seed, shuffle, engine, device
        self.verbose, self.callback = verbose, callback

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> Self:
        """Train a new copy of the module.

        Parameters
        ----------
        X : array, dataframe, or Dask array or dataframe of shape (rows, features) or (rows, ...)
            The rows. Integers are converted to real numbers.
        y : array-like, or Dask array or series of shape (rows,) or, for numbers, (rows, targets)
            The targets.
        sample_weight : float, array-like, or Dask array or series of shape (rows,), default=None
            Weights of the rows in the loss; None: all 1.

        Returns
        -------
        NeuralNetClassifier or NeuralNetRegressor
            This estimator.

        Raises
        ------
        ValueError, TypeError
            If rows, targets or weights are not valid; with messages of scikit-learn.
        InvalidRequest
            If PyTorch is not installed, the outputs of the module do not fit the targets, the workers have no MPI, or
            the device cannot be used.
        """
        require_torch()
        import torch

        from workbench.torch import net_part
        from workbench.torch.epochs import Plan

        classify = isinstance(self, Classifier)
        target = "labels" if classify else "numbers"
        checks = Checks(type(self).__name__, target=target, several=not classify, several_axes=True)
        data = training(self, checks, X, y, sample_weight)
        loss = self.loss or (torch.nn.functional.cross_entropy if classify else torch.nn.functional.mse_loss)
        options = {name: getattr(self, name) for name in _OPTIONS}
        plan = Plan(loss, **options, callback=None, checkpoint=None, name="")
        part = functools.partial(net_part.NetPart, plan, self.module, self.validation, classify)
        state, self.history_, outputs, classes = self._fit(Task(net_part.trained, None, part, checks), data)
        self.module_ = net_part.made(self.module, data.X.shape, outputs, self.seed)
        self.module_.load_state_dict(state)
        if classify:
            self.classes_ = classes
        self._columns = None if classify or data.y.ndim == 1 else outputs
        return self

    def predict(self, X: Any) -> Any:
        """Return the most probable label of each row, or the predicted numbers.

        Parameters
        ----------
        X : array, dataframe, or Dask array or dataframe, as of `fit`
            The rows.

        Returns
        -------
        array of shape (rows,) or (rows, targets), as the targets of the fit
            Labels, or numbers of the dtype of the weights (float32 for bfloat16). Lazy if `X` is a Dask collection.
        """
        check_is_fitted(self)
        classes = getattr(self, "classes_", None)
        if is_dask_collection(X):
            return self._map("predict", X, self._columns, self._dtype if classes is None else classes.dtype)
        outputs = self._outputs(X)
        if classes is not None:
            return classes[outputs.argmax(axis=1)]
        return outputs[:, 0] if self._columns is None else outputs

    def _outputs(self, X: Any) -> Any:
        from workbench.torch.epochs import outputs

        found = outputs(None, self.module_, 1024, self._checked(X, allow_nd=True))
        # The fit has accepted outputs with more axes of length 1.
        return found.reshape(len(found), -1)

    @property
    def _dtype(self) -> Any:
        """Type of the outputs: that of the weights."""
        from workbench.torch.epochs import as_array

        return as_array(next(iter(self.module_.parameters())).detach().new_empty(0)).dtype


class NeuralNetClassifier(Classifier, _NeuralNet):
    """A module of PyTorch as a classifier.

    Parameters
    ----------
    module : torch.nn.Module or callable, default=None
        A module that returns a score for each class, or a number for each target; each fit trains a copy. Or a function
        of the number of features (the shape of a row, if `X` has more than two axes) and the number of outputs that
        returns a module, as the class ``torch.nn.Linear``. None: a perceptron with a hidden layer of 100 units.
    loss : callable, default=None
        Function of outputs and targets, numbers of classes for a classifier, that returns the mean over the rows. With
        weights of rows it must accept ``reduction="none"``. None: ``torch.nn.functional.cross_entropy``, or
        ``mse_loss`` for numbers.
    optimizer, schedule : callable, default=None
        See `workbench.torch.fit`, also for `patience` and `shuffle`.
    epochs : int, default=10
        Maximum number of epochs.
    size : int, default=256
        Rows of a batch on all ranks together; all rows if `X` has fewer. Rows that do not fill a batch are left out of
        an epoch, and each epoch leaves out other rows.
    validation : float, default=None
        Fraction of the rows that is not used for training, and whose loss is measured after each epoch.
    patience : int, default=None
        Number of epochs without a lower loss after which the training ends.
    seed : int, default=0
        Seed of the first weights of a new module, of the order of the rows, and of layers that draw numbers.
    shuffle : {"exchange", "local"} or None, default="exchange"
        How the order of the rows is drawn.
    engine : {"auto", "mpi", "local"}, default="auto"
        ``"mpi"``: on the ranks of an MPI world, which have the rows. ``"local"``: in this process, for arrays.
        ``"auto"``: arrays in this process, Dask collections on the ranks.
    device : str, default=None
        Device of PyTorch that trains, for example ``"cuda"``; None: the CPU. The trained module is on the host.
    verbose : int, default=0
        1: a progress bar; 2: a line for each epoch.
    callback : callable, default=None
        Called in this process after each epoch with a mapping of ``iteration``, ``loss`` and, with validation,
        ``validation_loss``.

    Attributes
    ----------
    classes_ : ndarray of shape (classes,)
        The labels, sorted.
    module_ : torch.nn.Module
        The trained module.
    history_ : list of dict
        For each epoch ``loss``, the mean over the batches, and ``validation_loss``.
    n_features_in_ : int
        Number of features: the length of the second axis of `X`.
    engine_ : str
        Backend of the fit: ``"mpi"`` or ``"local"``.

    Notes
    -----
    The results on any number of ranks are those of one process, except for rounding, under the conditions of the notes
    of `workbench.torch.fit`.

    Examples
    --------
    >>> X = np.random.default_rng(0).normal(size=(200, 2))
    >>> y = X[:, 0] > 0
    >>> bool(NeuralNetClassifier(epochs=80).fit(X, y).score(X, y) > 0.9)
    True
    """

    def predict_proba(self, X: Any) -> Any:
        """Return the probability of each class.

        Parameters
        ----------
        X : array, dataframe, or Dask array or dataframe, as of `fit`
            The rows.

        Returns
        -------
        array of shape (rows, classes), dtype of the weights (float32 for bfloat16)
            Softmax of the outputs, in the order of ``classes_``. A lazy collection if `X` is a Dask collection.
        """
        check_is_fitted(self)
        if is_dask_collection(X):
            return self._map("predict_proba", X, len(self.classes_), self._dtype)
        from scipy.special import softmax

        return softmax(self._outputs(X), axis=1)


class NeuralNetRegressor(MultiOutputMixin, Regressor, _NeuralNet):
    """A module of PyTorch as a regressor.

    Parameters
    ----------
    module, loss, optimizer, epochs, size, schedule, validation, patience, seed, shuffle, engine, device
        See `NeuralNetClassifier`.
    verbose, callback
        See `NeuralNetClassifier`.

    Attributes
    ----------
    module_, history_, n_features_in_, engine_
        See `NeuralNetClassifier`.

    Examples
    --------
    >>> X = np.random.default_rng(0).normal(size=(200, 2))
    >>> y = X[:, 0] + X[:, 1]
    >>> bool(NeuralNetRegressor(epochs=80).fit(X, y).score(X, y) > 0.9)
    True
    """

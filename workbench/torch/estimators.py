"""Neural networks as estimators of scikit-learn, trained on ranks or in this process."""

from __future__ import annotations

import functools
from collections.abc import Callable
from numbers import Integral, Real
from typing import TYPE_CHECKING, Any, ClassVar, Self

from dask.base import is_dask_collection
from sklearn.base import MultiOutputMixin
from sklearn.utils._param_validation import Interval, StrOptions
from sklearn.utils.validation import check_is_fitted

from workbench.ml.checks import Checks
from workbench.ml.data import training
from workbench.ml.engine.rank_task import Task
from workbench.ml.engine.verbose import Callback
from workbench.ml.estimator import Estimator
from workbench.ml.scores import Classifier, Regressor
from workbench.torch.context import require_torch
from workbench.torch.feeding import SHUFFLES

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from workbench.torch.net_part import Trained

# Rows that are passed to a module in one call.
_ROWS = 1024


class _NeuralNet(Estimator):
    """Common parts of the networks."""

    _limited_by = "epochs"
    _target: ClassVar[str]
    """Kind of the targets, for their checks."""
    _loss: ClassVar[str]
    """Name of the default loss in ``torch.nn.functional``."""
    _parameter_constraints: ClassVar[dict[str, list[Any]]] = {
        **Estimator._parameter_constraints,  # noqa: SLF001  (a hook of scikit-learn)
        "module": [callable, None],
        "loss": [callable, None],
        "optimizer": [callable, None],
        "epochs": [Interval(Integral, 1, None, closed="left")],
        "size": [Interval(Integral, 1, None, closed="left")],
        "schedule": [callable, None],
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
        self.module = module
        self.loss = loss
        self.optimizer = optimizer
        self.epochs = epochs
        self.size = size
        self.schedule = schedule
        self.validation = validation
        self.patience = patience
        self.seed = seed
        self.shuffle = shuffle
        self.engine = engine
        self.device = device
        self.verbose = verbose
        self.callback = callback

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

        several = self._target == "numbers"
        checks = Checks(type(self).__name__, target=self._target, several=several, several_axes=True)
        data = training(self, checks, X, y, sample_weight)
        plan = Plan(
            loss=self.loss or getattr(torch.nn.functional, self._loss),
            epochs=self.epochs,
            size=self.size,
            optimizer=self.optimizer,
            schedule=self.schedule,
            patience=self.patience,
            callback=None,
            checkpoint=None,
            seed=self.seed,
            shuffle=self.shuffle,
            name="",
            device=self.device,
        )
        settings = net_part.Settings(self.module, plan, self.validation, classify=self._target == "labels")
        trained: Trained = self._fit(
            Task(net_part.trained, None, functools.partial(net_part.NetPart, settings), checks), data
        )
        self.module_ = net_part.made(self.module, net_part.row_of(data.X), trained.outputs, self.seed)
        self.module_.load_state_dict(trained.state)
        self.history_ = trained.history
        if trained.classes is not None:
            self.classes_ = trained.classes
        self._targets = trained.outputs if data.y.ndim > 1 else None
        return self

    def _outputs(self, X: Any) -> NDArray[Any]:
        """Return the outputs of the module for arrays."""
        from workbench.torch.epochs import outputs

        found = outputs(None, self.module_, _ROWS, self._checked(X, allow_nd=True))
        # The fit has accepted outputs with more axes of length 1.
        return found.reshape(len(found), -1)

    @property
    def _dtype(self) -> np.dtype[Any]:
        """Type of the outputs: that of the weights."""
        from workbench.torch.epochs import as_array

        return as_array(next(iter(self.module_.parameters())).detach().new_empty(0)).dtype


class NeuralNetClassifier(Classifier, _NeuralNet):
    """A module of PyTorch as a classifier.

    Parameters
    ----------
    module : torch.nn.Module or callable, default=None
        A module that returns a score for each class, as ``torch.nn.Linear(features, classes)``; each fit trains a copy.
        Or a function of the number of features and the number of classes that returns a module, as the class
        ``torch.nn.Linear``; its first argument is the shape of a row if `X` has more than two axes. None: a perceptron
        with a hidden layer of 100 units, as in scikit-learn.
    loss : callable, default=None
        Function of scores and numbers of classes that returns the mean over the rows. With weights of rows it must
        accept ``reduction="none"``. None: ``torch.nn.functional.cross_entropy``.
    optimizer : callable, default=None
        Function of the weights that returns an optimizer, as ``functools.partial(torch.optim.SGD, lr=0.1)``. None:
        ``torch.optim.Adam``.
    epochs : int, default=10
        Maximum number of epochs.
    size : int, default=256
        Rows of a batch on all ranks together; all rows if `X` has fewer. Rows that do not fill a batch are left out of
        an epoch, and each epoch leaves out other rows.
    schedule : callable, default=None
        Function of the optimizer that returns a scheduler of ``torch.optim.lr_scheduler``; a step follows each epoch.
    validation : float, default=None
        Fraction of the rows that is not used for training, and whose loss is measured after each epoch.
    patience : int, default=None
        Number of epochs without a lower loss after which the training ends; the loss of the validation if it exists.
    seed : int, default=0
        Seed of the first weights of a new module, of the order of the rows, and of layers that draw numbers.
    shuffle : {"exchange", "local"} or None, default="exchange"
        See `workbench.torch.batches`.
    engine : {"auto", "mpi", "local"}, default="auto"
        ``"mpi"``: on the ranks of an MPI world, which have the rows. ``"local"``: in this process, for arrays.
        ``"auto"``: arrays in this process, Dask collections on the ranks.
    device : str, default=None
        Device of PyTorch that trains, for example ``"cuda"``: that of each rank, or of this process. None: the CPU. The
        trained module is in the memory of the host, and predicts there.
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

    See Also
    --------
    workbench.torch.fit : Train a module on placed blocks, with checkpoints.

    Notes
    -----
    With ``shuffle="exchange"``, modules that neither draw numbers nor depend on the batch, and losses that divide by
    the number of rows, the results on any number of ranks are those of one process, except for rounding.
    ``cross_entropy`` with ``weight`` divides by the weights of the rows of a rank.

    Examples
    --------
    >>> X = np.random.default_rng(0).normal(size=(200, 2))
    >>> y = X[:, 0] > 0
    >>> bool(NeuralNetClassifier(epochs=80).fit(X, y).score(X, y) > 0.9)
    True
    """

    _target, _loss = "labels", "cross_entropy"

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

    def predict(self, X: Any) -> Any:
        """Return the most probable label of each row.

        Parameters
        ----------
        X : array, dataframe, or Dask array or dataframe, as of `fit`
            The rows.

        Returns
        -------
        array of shape (rows,), dtype of the labels
            A lazy collection if `X` is a Dask collection.
        """
        check_is_fitted(self)
        if is_dask_collection(X):
            return self._map("predict", X, None, self.classes_.dtype)
        return self.classes_[self._outputs(X).argmax(axis=1)]


class NeuralNetRegressor(MultiOutputMixin, Regressor, _NeuralNet):
    """A module of PyTorch as a regressor.

    Parameters
    ----------
    module : torch.nn.Module or callable, default=None
        A module that returns a number for each target, as ``torch.nn.Linear(features, targets)``; each fit trains a
        copy. Or a function of the number of features and the number of targets that returns a module, as the class
        ``torch.nn.Linear``; its first argument is the shape of a row if `X` has more than two axes. None: a perceptron
        with a hidden layer of 100 units, as in scikit-learn.
    loss : callable, default=None
        Function of outputs and targets that returns the mean over the rows. With weights of rows it must accept
        ``reduction="none"``. None: ``torch.nn.functional.mse_loss``.
    optimizer, epochs, size, schedule, validation, patience, seed, shuffle, engine, device, verbose, callback
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

    _target, _loss = "numbers", "mse_loss"

    def predict(self, X: Any) -> Any:
        """Return the predicted numbers.

        Parameters
        ----------
        X : array, dataframe, or Dask array or dataframe, as of `fit`
            The rows.

        Returns
        -------
        array of shape (rows,) or (rows, targets), as the targets of the fit
            Of the dtype of the weights, float32 for bfloat16. A lazy collection if `X` is a Dask collection.
        """
        check_is_fitted(self)
        if is_dask_collection(X):
            return self._map("predict", X, self._targets, self._dtype)
        outputs = self._outputs(X)
        return outputs[:, 0] if self._targets is None else outputs

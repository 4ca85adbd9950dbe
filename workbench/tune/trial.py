"""A trial on its ranks, which sends the requests of the objective to the study in the notebook."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import cloudpickle

from workbench.errors import InvalidRequest
from workbench.extension import ask
from workbench.metrics import training
from workbench.metrics.report import tell
from workbench.text import brief

if TYPE_CHECKING:
    from workbench.extension import Communicator

STOP = "study.stop"
"""The request to begin no more trials."""


class RankTrial:
    """A trial of a study on the ranks of its group, with the methods of ``optuna.Trial`` that objectives call.

    Every method and property is collective: all ranks of the group call it, in the same order, and get the same value
    or the same error. The arguments of the first rank count. A call takes a message to the notebook and back, some
    milliseconds.

    Parameters
    ----------
    comm : mpi4py.MPI.Intracomm
        Communicator of the group.
    identity : str
        Identity of the trial on the dashboard.
    number : int
        Number of the trial in the study.
    name : str
        Name of the study.
    """

    def __init__(self, comm: Communicator, identity: str, number: int, name: str) -> None:
        self.number = number
        """Number of the trial in the study."""
        self._comm, self._identity, self._name = comm, identity, brief(name)

    def suggest_float(self, name: str, low: float, high: float, *, step: float | None = None, log: bool = False) -> Any:
        """Return a value of a parameter, as ``optuna.Trial.suggest_float``.

        Parameters
        ----------
        name : str
            Name of the parameter.
        low, high : float
            Both ends of the interval; both are valid values.
        step : float, optional
            Difference of two neighboring values. Default: any value is valid.
        log : bool, default=False
            True: small and large values are equally likely by their order of magnitude.

        Returns
        -------
        float
            The value.
        """
        return self._ask("suggest_float", name, low, high, step=step, log=log)

    def suggest_int(self, name: str, low: int, high: int, *, step: int = 1, log: bool = False) -> Any:
        """Return a value of a parameter, as ``optuna.Trial.suggest_int``.

        Parameters
        ----------
        name : str
            Name of the parameter.
        low, high : int
            Both ends of the interval; both are valid values.
        step : int, default=1
            Difference of two neighboring values.
        log : bool, default=False
            True: small and large values are equally likely by their order of magnitude.

        Returns
        -------
        int
            The value.
        """
        return self._ask("suggest_int", name, low, high, step=step, log=log)

    def suggest_categorical(self, name: str, choices: Sequence[Any]) -> Any:
        """Return a value of a parameter, as ``optuna.Trial.suggest_categorical``.

        Parameters
        ----------
        name : str
            Name of the parameter.
        choices : sequence of str, int, float, bool or None
            The valid values.

        Returns
        -------
        str, int, float, bool or None
            The value.
        """
        return self._ask("suggest_categorical", name, list(choices))

    def report(self, value: float, step: int) -> None:
        """Report the value of a step, as ``optuna.Trial.report``; the dashboard's page *Training* draws the values.

        Parameters
        ----------
        value : float
            The value to optimize, after this step.
        step : int
            Number of the step, for example of the epoch.
        """
        if self._comm.rank == 0:
            with contextlib.suppress(Exception):  # Optuna raises the error, on all ranks
                value = float(value)
        self._ask("report", value, step)
        if self._comm.rank == 0:
            record = {"step": float(step), "value": value}
            name = f"{self._name}, trial {self.number}"
            tell(training.TOPIC, {"fit": self._identity, "name": name, "records": [record]})

    def should_prune(self) -> bool:
        """Return whether the objective must raise ``optuna.TrialPruned``, as the pruner of the study decides.

        Returns
        -------
        bool
            The decision, from the reported values.
        """
        return bool(self._ask("should_prune"))

    def set_user_attr(self, key: str, value: Any) -> None:
        """Store a value with the trial, as ``optuna.Trial.set_user_attr``.

        Parameters
        ----------
        key : str
            Name of the value.
        value : object
            The value, which the storage of the study must accept.
        """
        self._ask("set_user_attr", key, value)

    @property
    def study(self) -> Any:
        """The study, with ``stop()`` alone: no more trials begin, as after ``optuna.Study.stop``."""
        return SimpleNamespace(stop=lambda: self._ask(STOP))

    @property
    def params(self) -> Any:
        """Values of the suggested parameters, by name."""
        return self._ask("params")

    def _ask(self, name: str, *args: Any, **kwargs: Any) -> Any:
        """Return the value of an attribute or a method of the trial in the notebook, on all ranks of the group."""
        contents = None
        if self._comm.rank == 0:
            try:
                answer = ask((name, args, kwargs))
            except InvalidRequest as refused:  # the other ranks wait; an error of the objective, which fails the trial
                answer = None, ValueError(str(refused))
            # With cloudpickle: mpi4py cannot pickle an error of a class of the notebook, and would raise on one rank.
            contents = cloudpickle.dumps(answer)
        value, error = cloudpickle.loads(self._comm.bcast(contents))
        if error is not None:
            raise error
        return value


def run(
    comm: Communicator,
    objective: Callable[..., Any],
    identity: str,
    number: int,
    name: str,
    /,
    *args: Any,
    **kwargs: Any,
) -> Any:
    """Return the value of the objective for a trial. Runs on the ranks of the group."""
    return objective(comm, RankTrial(comm, identity, number, name), *args, **kwargs)

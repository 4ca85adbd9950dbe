"""A trial on its ranks, which sends the requests of the objective to the study in the notebook."""

from __future__ import annotations

import contextlib
import queue
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from dask.utils import format_bytes

from workbench.collective import serialize
from workbench.collective.request import LARGE
from workbench.metrics import training
from workbench.metrics.report import tell
from workbench.text import brief

if TYPE_CHECKING:
    from workbench.mpi.communicator import Communicator

STOP = "study.stop"
"""The request to begin no more trials."""

# Seconds between two checks that the call still runs.
_LOOK = 0.05

# Answers by identity of the trial that waits on this rank.
_answers: dict[str, queue.SimpleQueue[bytes]] = {}


def answer(identity: str, contents: bytes) -> None:
    """Pass an answer to the trial that waits for it. Runs on the rank, in the event loop of the worker."""
    if identity in _answers:
        _answers[identity].put(contents)


def failure(error: Exception) -> bytes:
    """Return the answer of a request that has failed."""
    try:
        return serialize.dumps((None, error))
    except Exception:  # noqa: BLE001  (whatever the error contains)
        return serialize.dumps((None, RuntimeError(f"{type(error).__name__}: {error}")))


def identity_of(topic: str, number: int) -> str:
    """Return the identity of a trial of the study with this topic."""
    return f"{topic}-{number}"


class RankTrial:
    """A trial of a study on the ranks of its group, with the methods of ``optuna.Trial`` that objectives call.

    Every method and property is collective: all ranks of the group call it, in the same order, and get the same value
    or the same error. The arguments of the first rank count. A call takes a message to the notebook and back, some
    milliseconds.

    Parameters
    ----------
    comm : mpi4py.MPI.Intracomm
        Communicator of the group.
    topic : str
        Topic of the Dask events for requests of this trial.
    number : int
        Number of the trial in the study.
    name : str
        Name of the study.
    """

    def __init__(self, comm: Communicator, topic: str, number: int, name: str) -> None:
        self.number = number
        """Number of the trial in the study."""
        self._comm, self._topic, self._name = comm, topic, brief(name)

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
            identity, name = identity_of(self._topic, self.number), f"{self._name}, trial {self.number}"
            tell(training.TOPIC, {"fit": identity, "name": name, "records": [record]})

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
        # As bytes: mpi4py cannot pickle an error of a class of the notebook, and would raise on one rank only.
        contents = self._comm.bcast(self._answer(name, args, kwargs) if self._comm.rank == 0 else None)
        value, error = serialize.loads(contents)
        if error is not None:
            raise error
        return value

    def _answer(self, *question: Any) -> bytes:
        try:
            contents = serialize.dumps(question)
        except Exception as error:  # noqa: BLE001  (the other ranks wait for the answer)
            return failure(error)
        if len(contents) > LARGE:  # the head keeps events
            return failure(
                ValueError(
                    f"the arguments of trial.{question[0]}() have {format_bytes(len(contents))}, and the limit is "
                    f"{format_bytes(LARGE)}. Write larger data to a file, and pass the path of the file."
                )
            )
        arrived = _answers.setdefault(identity_of(self._topic, self.number), queue.SimpleQueue())
        tell(self._topic, {"trial": self.number, "question": contents})
        while True:
            try:
                return arrived.get(timeout=_LOOK)
            except queue.Empty:
                self._comm.watch.check()


def run(
    comm: Communicator, objective: Callable[..., Any], topic: str, number: int, name: str, /, *args: Any, **kwargs: Any
) -> Any:
    """Return the value of the objective for a trial. Runs on the ranks of the group."""
    try:
        return objective(comm, RankTrial(comm, topic, number, name), *args, **kwargs)
    finally:
        _answers.pop(identity_of(topic, number), None)

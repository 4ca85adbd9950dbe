"""A trial on its ranks: what the objective function asks goes to the study, which is in the notebook."""

from __future__ import annotations

import queue
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from workbench.collective import serialize
from workbench.metrics import training
from workbench.metrics.report import tell

if TYPE_CHECKING:
    from workbench.mpi.communicator import Communicator

# Seconds between two looks whether the call was ended.
_LOOK = 0.05

# By identity of a trial that waits on this rank.
_answers: dict[str, queue.SimpleQueue[bytes]] = {}


def answer(identity: str, contents: bytes) -> None:
    """Hand on the answer to the question of a trial; runs on the rank, on the event loop of its worker."""
    if identity in _answers:
        _answers[identity].put(contents)


def identity_of(topic: str, number: int) -> str:
    """Return the identity of a trial of the study with this topic."""
    return f"{topic}-{number}"


class RankTrial:
    """A trial of a study on the ranks of its group, with the methods of `optuna.Trial` that objectives call.

    Every method and property is collective: all ranks of the group call it, in the same order, and get the same. One
    call takes a message to the notebook and back, some milliseconds.

    Parameters
    ----------
    comm
        Communicator of the group.
    topic
        Of the Dask events with which it asks.
    number, name
        Of the trial in its study, and of the study.
    """

    def __init__(self, comm: Communicator, topic: str, number: int, name: str) -> None:
        self.number = number
        """Number of the trial in its study."""
        self._comm, self._topic, self._name = comm, topic, name

    def suggest_float(self, name: str, low: float, high: float, *, step: float | None = None, log: bool = False) -> Any:
        """Return a value for a parameter, as `optuna.Trial.suggest_float`."""
        return self._ask("suggest_float", name, low, high, step=step, log=log)

    def suggest_int(self, name: str, low: int, high: int, *, step: int = 1, log: bool = False) -> Any:
        """Return a value for a parameter, as `optuna.Trial.suggest_int`."""
        return self._ask("suggest_int", name, low, high, step=step, log=log)

    def suggest_categorical(self, name: str, choices: Sequence[Any]) -> Any:
        """Return a value for a parameter, as `optuna.Trial.suggest_categorical`."""
        return self._ask("suggest_categorical", name, list(choices))

    def report(self, value: float, step: int) -> None:
        """Report the value of a step, as `optuna.Trial.report`, and draw it on the dashboard's page *Training*."""
        value = float(value)
        self._ask("report", value, step)
        if self._comm.rank == 0:
            record = {"step": float(step), "value": value}
            identity, name = identity_of(self._topic, self.number), f"{self._name}, trial {self.number}"
            tell(training.TOPIC, {"fit": identity, "name": name, "records": [record]})

    def should_prune(self) -> bool:
        """Return whether the study's pruner ends the trial; if so, raise `optuna.TrialPruned`."""
        return bool(self._ask("should_prune"))

    def set_user_attr(self, key: str, value: Any) -> None:
        """Keep a value with the trial, as `optuna.Trial.set_user_attr`."""
        self._ask("set_user_attr", key, value)

    @property
    def params(self) -> Any:
        """Values of the parameters so far, by name."""
        return self._ask("params")

    def _ask(self, name: str, *args: Any, **kwargs: Any) -> Any:
        """Return what the attribute or the method of the trial in the notebook returns, on all ranks of the group."""
        value, error = self._comm.bcast(self._answer(name, args, kwargs) if self._comm.rank == 0 else None)
        if error is not None:
            raise error
        return value

    def _answer(self, *question: Any) -> Any:
        arrived = _answers.setdefault(identity_of(self._topic, self.number), queue.SimpleQueue())
        tell(self._topic, {"trial": self.number, "question": serialize.dumps(question)})
        while True:
            try:
                return serialize.loads(arrived.get(timeout=_LOOK))
            except queue.Empty:
                self._comm.watch.check()


def run(
    comm: Communicator, objective: Callable[..., Any], topic: str, number: int, name: str, *args: Any, **kwargs: Any
) -> Any:
    """Return the value of the objective function for a trial; on the ranks of its group."""
    try:
        return objective(comm, RankTrial(comm, topic, number, name), *args, **kwargs)
    finally:
        _answers.pop(identity_of(topic, number), None)

"""A trial gives all ranks of its group the same values and errors."""

from __future__ import annotations

import pickle

import pytest
from support.raised import raises

from workbench.errors import InvalidRequest
from workbench.tune.trial import RankTrial


class Group:
    """The communicator of one rank of a group, whose ranks run one after another."""

    def __init__(self, rank, sent):
        self.rank, self._sent = rank, sent

    def bcast(self, contents):
        if self.rank == 0:
            self._sent.append(pickle.dumps(contents))  # as mpi4py
            return contents
        return pickle.loads(self._sent.pop(0))  # noqa: S301  (pickled here)


@pytest.fixture
def ranks():
    """Return the trial as each of two ranks has it."""
    sent = []
    return [RankTrial(Group(rank, sent), "topic", 3, "study") for rank in range(2)]


@pytest.fixture
def reply(monkeypatch):
    """Return a function that sets the answer of the notebook to each question."""

    def set_reply(value, error=None):
        monkeypatch.setattr("workbench.tune.trial.ask", lambda _: (value, error))

    return set_reply


def test_a_question_that_cannot_be_sent_is_an_error_on_all_ranks(ranks, monkeypatch):
    def refuse(question):
        raise InvalidRequest("the value has 2.00 MiB")

    monkeypatch.setattr("workbench.tune.trial.ask", refuse)
    for trial in ranks:
        with raises(ValueError, args=("the value has 2.00 MiB",)) as raised:
            trial.set_user_attr("weights", bytes(2 << 20))
        assert raised.type is ValueError  # an InvalidRequest would end the study


def test_an_error_of_a_class_of_the_notebook_reaches_all_ranks(ranks, reply):
    class LocalError(Exception):  # pickled by value
        pass

    reply(None, LocalError("of the sampler"))
    for trial in ranks:
        with raises(Exception, args=("of the sampler",)) as raised:
            trial.should_prune()
        assert raised.type.__name__ == "LocalError"


def test_the_value_of_the_first_rank_is_reported(ranks, reply):
    reply(None)
    for trial, value in zip(ranks, (0.5, None), strict=True):  # as of comm.reduce
        trial.report(value, 1)

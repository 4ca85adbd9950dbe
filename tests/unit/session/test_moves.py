"""Requests follow the moves of a cluster to its next jobs."""

from __future__ import annotations

import threading
from types import SimpleNamespace

import pytest

from workbench.deploy.ending_loop import EndingLoop
from workbench.errors import RankLost, StartError
from workbench.session import moves


class Cluster:
    """The object of a cluster in one of its jobs."""

    _moved = True


@pytest.fixture(autouse=True)
def no_moves(monkeypatch):
    """Leave the moves of this process as they are."""
    for name, value in (("_moves", moves.WeakKeyDictionary()), ("_latest", []), ("replaced", {})):
        monkeypatch.setattr(moves, name, value)


def moved(cluster):
    """Move a cluster; return the client in its next job."""
    client = SimpleNamespace(cluster=Cluster())
    moves.begun(cluster).set_result(client)
    return client


def test_a_cluster_that_has_moved_twice_has_the_client_of_its_last_job():
    first = SimpleNamespace(cluster=Cluster())
    assert moves.followed(first) is first
    second = moved(first.cluster)
    assert moves.followed(first) is second
    third = moved(second.cluster)

    assert moves.followed(first) is third
    assert moves.followed(None) is third
    assert EndingLoop.get_client(first.cluster) is third
    assert EndingLoop.get_client(second.cluster) is third


@pytest.mark.parametrize("value", [None, "a value without a cluster", SimpleNamespace(cluster=None)])
def test_what_has_no_cluster_has_not_moved(value):
    assert moves.followed(value) is value


def test_a_request_waits_for_the_next_job_and_raises_why_there_is_none(capsys):
    first = SimpleNamespace(cluster=Cluster())
    move = moves.begun(first.cluster)
    threading.Timer(0.1, move.set_exception, [StartError("the next job has failed")]).start()
    with pytest.raises(StartError):
        moves.followed(first)
    assert "this request waits for the job" in capsys.readouterr().out


def test_the_place_of_a_collection_is_taken_by_the_one_that_was_restored_last():
    collections = [SimpleNamespace(_name=name) for name in "abc"]
    for before, after in zip("ab", collections[1:], strict=True):
        moves.replaced[before] = after
        assert moves.there(collections[0]) is after
    with pytest.raises(RankLost):
        moves.there(SimpleNamespace(_name="not kept"))

"""Which client code of the user means, and what is reported where none is connected."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
from distributed import Client
from support.raised import raises

import workbench
from workbench.errors import HeadUnreachable, PlacementError
from workbench.session import current as module
from workbench.session.current import current_client


def test_without_a_client_it_is_said_how_to_get_one(monkeypatch):
    monkeypatch.setattr(module, "_last", "")
    with pytest.raises(PlacementError):
        workbench.place(np.ones(4))


class Lost(Client):
    """A client whose scheduler has ended: first it tries to connect again, then it closes itself."""

    asynchronous = False

    def __init__(self):
        self.status, self.scheduler = "running", SimpleNamespace(address="tls://10.0.0.1:40000")

    def __del__(self):
        pass


def test_a_client_that_has_lost_its_head_says_so_until_another_one_is_connected(monkeypatch):
    monkeypatch.setattr(module, "_last", "")
    client = Lost()
    assert current_client(client) is client
    client.status = "connecting"
    with raises(HeadUnreachable, given="tls://10.0.0.1:40000"):
        current_client(client)
    closed = r"cluster at tls://10\.0\.0\.1:40000, is closed.*has ended.*Start a cluster.*%mpicluster list"
    with pytest.raises(PlacementError, match=closed):
        current_client(None)

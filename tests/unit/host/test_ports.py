"""A port is closed to another user only if another user has tried it."""

from __future__ import annotations

import os
import socket

import pytest

from workbench.host import network


@pytest.fixture
def listening():
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server


@pytest.fixture
def root(monkeypatch):
    if os.geteuid():
        pytest.skip("it takes root to be another user")
    monkeypatch.setattr(network, "_CLOSE_TIMEOUT", 0.1)


@pytest.mark.parametrize("how", ["accepts", "closes", "does neither"])
def test_a_connection_is_accepted_if_a_program_has_its_other_end_and_keeps_it(how, listening, root, monkeypatch):
    connect, ends = socket.socket.connect, []

    def accept(connection, address):
        connect(connection, address)
        if how != "does neither":
            ends.append(listening.accept()[0])
        if how == "closes":
            ends.pop().close()

    monkeypatch.setattr(socket.socket, "connect", accept)
    assert network.is_accepted(*listening.getsockname()) is (how == "accepts")
    for end in ends:
        end.close()


def test_who_cannot_be_another_user_has_not_tried(listening, monkeypatch):
    def refuse(_):
        raise PermissionError

    monkeypatch.setattr(os, "seteuid", refuse)
    assert network.is_accepted(*listening.getsockname()) is None


def test_a_process_below_no_tether_reports_its_own_ports(listening):
    (its,) = (port for port in network.tried() if port["port"] == listening.getsockname()[1])
    assert its["host"] == "127.0.0.1"

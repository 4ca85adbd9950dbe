"""Head and ranks bind loopback where no other host must reach them, and never where other hosts must."""

from __future__ import annotations

import socket

import dask
import psutil
import pytest
from support.raised import raises

from workbench.errors import InvalidRequest, LaunchError
from workbench.host import network


def addresses():
    """Return the addresses of this host by their interfaces."""
    interfaces = psutil.net_if_addrs().items()
    return {name: its.address for name, all_its in interfaces for its in all_its if its.family == socket.AF_INET}


def test_on_one_host_it_is_loopback():
    assert network.address() == "127.0.0.1"


def test_an_interface_that_is_named_is_taken_ahead_of_the_one_that_is_set():
    with dask.config.set({"workbench.interface": "none-such"}):
        assert network.address("lo", peers=[]) == "127.0.0.1"


def test_the_interface_that_is_set_is_taken():
    with dask.config.set({"workbench.interface": "lo"}):
        assert network.address(peers=[]) == "127.0.0.1"


@pytest.mark.parametrize("given", ["lo9", "", 0, ["lo"]])
def test_an_interface_that_is_not_here_is_refused_with_those_that_are(given):
    with (
        dask.config.set({"workbench.interface": given}),
        raises(InvalidRequest, option="workbench.interface") as refused,
    ):
        network.address()
    assert "lo" in refused.value.allowed


def test_an_interface_that_is_named_wrongly_is_refused():
    with raises(InvalidRequest, option="interface", given="ib9"):
        network.address("ib9")


@pytest.mark.parametrize("peers", [[], ["localhost"], ["127.0.0.1"], ["no-such-host.invalid"]])
def test_where_others_have_to_reach_it_it_is_never_loopback(peers):
    outer = [address for address in addresses().values() if not address.startswith("127.")]
    if outer:
        assert network.address(peers=peers) in outer
    else:
        with pytest.raises(LaunchError):
            network.address(peers=peers)


def test_a_host_with_loopback_alone_says_so(monkeypatch):
    monkeypatch.setattr(network, "_source_address", lambda _: None)
    monkeypatch.setattr(network, "_resolve", lambda _: "127.0.1.1")
    monkeypatch.setattr(network, "_addresses", lambda: {"lo": "127.0.0.1"})
    with raises(LaunchError, option="interface"):
        network.address(peers=["n2"])


def test_the_way_to_another_node_counts_most(monkeypatch):
    ways = {"n2": "10.1.0.1", "192.0.2.1": "192.168.0.1"}
    monkeypatch.setattr(network, "_source_address", ways.get)
    assert network.address(peers=["gone", "n2"]) == "10.1.0.1"
    assert network.address(peers=[]) == "192.168.0.1"


def test_a_device_of_another_network_than_that_of_sockets_is_seen(monkeypatch, tmp_path):
    monkeypatch.setattr(network, "_FABRICS", (str(tmp_path / "none"), str(tmp_path)))
    assert not network.has_fabric()
    (tmp_path / "mlx5_0").mkdir()
    assert network.has_fabric()

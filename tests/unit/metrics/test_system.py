"""Counters of the operating system."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from types import SimpleNamespace

import numpy as np
import psutil
import pytest

from workbench.metrics import system
from workbench.metrics.schema import NODE


def spin(seconds):
    end = time.process_time() + seconds
    while time.process_time() < end:
        pass


def test_a_process_uses_the_time_that_it_spins():
    process = psutil.Process()
    before = system.process_usage(process)
    spin(0.1)
    after = system.process_usage(process)
    assert after.since(before)["cpu"] >= 100 * 0.1 / (after.time - before.time)
    assert after.time > before.time
    assert after.values["threads"] >= 1
    assert after.values["memory"] == pytest.approx(process.memory_info().rss, rel=0.2)


def test_a_process_writes_what_it_writes(tmp_path):
    before = system.process_usage(psutil.Process())
    with open(tmp_path / "file", "wb") as file:
        file.write(b"x" * (1 << 22))
        file.flush()
        os.fsync(file.fileno())
    assert system.process_usage(psutil.Process()).values["written"] - before.values["written"] >= 1 << 22


def test_another_process_is_looked_at_from_outside():
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as child:
        seen = system.process_usage(psutil.Process(child.pid))
        child.stdin.close()
    assert seen.values["memory"] > 0
    with pytest.raises(psutil.NoSuchProcess):
        system.process_usage(psutil.Process(child.pid))


def test_what_goes_from_a_node_to_itself_is_no_traffic_of_the_network(monkeypatch):
    def device(sent, received):
        return SimpleNamespace(bytes_sent=sent, bytes_recv=received)

    def count(*, pernic=False):
        return devices if pernic else device(*(sum(vars(each)[name] for each in devices.values()) for name in names))

    names, devices = ("bytes_sent", "bytes_recv"), {"lo": device(1000, 1000), "eth0": device(20, 20)}
    monkeypatch.setattr(psutil, "net_io_counters", count)
    node = system.NodeUsage()
    devices["lo"] = device(10**9, 10**9)
    assert node.sample()[0][NODE.index("net_sent")] == 0
    devices["eth0"] = device(10**9, 20)
    values, _ = node.sample()
    assert values[NODE.index("net_sent")] > 0 == values[NODE.index("net_received")]


def test_a_node_tells_of_each_core_and_of_its_memory():
    node = system.NodeUsage()
    spin(0.2)
    values, cores = node.sample()
    assert cores.dtype == np.uint8
    assert len(cores) == psutil.cpu_count()
    assert cores.max() > 0
    assert cores.max() <= 100
    total = psutil.virtual_memory().total
    assert values[NODE.index("memory_total")] == pytest.approx(total, rel=1e-6)
    assert 0 < values[NODE.index("memory")] < total
    assert (values >= 0).all()

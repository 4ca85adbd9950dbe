"""An object for a cluster that runs is made as any other object of its class."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest
from distributed.core import Status

from workbench import MPICluster
from workbench.deploy import registry
from workbench.deploy.connection import HeadConnection
from workbench.deploy.record import Record
from workbench.host.processes import ProcessId


class Labeled(MPICluster):
    """A cluster with another size and another label."""

    def __init__(self, ranks: int = 2, *, label: str = "none", **options: Any) -> None:
        super().__init__(ranks, **options)
        self.label = label


@pytest.fixture(autouse=True)
def _running(tmp_path, monkeypatch):
    monkeypatch.setenv("JUPYTER_DATA_DIR", str(tmp_path))
    registry.create(Record(name="a", ranks=8, state="ready", process=ProcessId.here()))


async def test_the_constructor_of_a_subclass_runs_with_the_options_of_the_call():
    cluster = Labeled.attach("a", label="mine", asynchronous=True)

    assert (type(cluster), cluster.label, cluster.record.ranks) == (Labeled, "mine", 8)
    assert (cluster.quiet, cluster.asynchronous, cluster.name) == (True, True, "a")
    await cluster.close()


async def test_each_object_has_the_cluster_that_it_was_attached_to():
    registry.create(Record(name="b", ranks=4, state="ready", process=ProcessId.here()))

    clusters = [MPICluster.attach(name, asynchronous=True) for name in ("a", "b")]

    assert [cluster.record.name for cluster in clusters] == ["a", "b"]
    for cluster in clusters:
        await cluster.close()


@pytest.mark.parametrize("option", ["ranks", "nodes", "label"])
def test_an_option_that_cannot_have_an_effect_is_refused(option):
    with pytest.raises(TypeError, match=rf"got an unexpected keyword argument '{option}'"):
        MPICluster.attach("a", **{option: 4})


async def test_a_close_that_misses_its_deadline_can_be_repeated(monkeypatch):
    cluster, asked = MPICluster.attach("a", asynchronous=True), []

    async def ask_to_end(_):
        asked.append(1)
        if len(asked) == 1:
            await asyncio.Event().wait()

    async def close_rpc():
        pass

    monkeypatch.setattr(HeadConnection, "ask_to_end", ask_to_end)
    monkeypatch.setattr("workbench.deploy.ending_loop.await_end", lambda _: asked.append("the end"))
    cluster.scheduler_comm, cluster.status = SimpleNamespace(close_rpc=close_rpc), Status.running

    with pytest.raises(TimeoutError):
        await cluster.close(timeout=0.01, shutdown=True)
    assert cluster.status == Status.running
    await cluster.close(shutdown=True)

    assert asked == [1, 1, "the end"]
    assert cluster.status == Status.closed

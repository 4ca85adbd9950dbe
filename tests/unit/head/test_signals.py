"""The head ends by the first signal, and asks its scheduler for the reason."""

from __future__ import annotations

import asyncio

import pytest

from workbench.deploy.folder import ClusterFolder
from workbench.deploy.record import Record
from workbench.head.head import Head


@pytest.mark.parametrize(("scheduler", "asks"), [("slurm", True), ("local", False)])
async def test_a_second_signal_does_not_drop_the_reason_of_the_scheduler(scheduler, asks):
    head = object.__new__(Head)
    head.record, head._signaled = Record(name="a", ranks=1, scheduler=scheduler), False
    head.folder = ClusterFolder.of(head.record)
    head._end = asyncio.get_running_loop().create_future()
    head._on_signal("SIGTERM was received")
    head._on_signal("SIGINT was received")
    assert head._signaled is asks
    assert head._end.result()[1] == "SIGTERM was received"


async def test_a_signal_during_the_end_is_not_its_reason():
    head = object.__new__(Head)
    head.record, head._signaled = Record(name="a", ranks=1, scheduler="slurm"), False
    head.folder = ClusterFolder.of(head.record)
    head._end = asyncio.get_running_loop().create_future()
    head.end("the user has stopped it")
    head._on_signal("SIGTERM was received")
    assert not head._signaled

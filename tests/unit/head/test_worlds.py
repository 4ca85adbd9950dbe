"""A world that is removed does not come back, whatever happens to its processes meanwhile."""

from __future__ import annotations

import asyncio
import re
from types import SimpleNamespace

import pytest
from support.patience import DEADLINE
from support.raised import raises

from workbench.deploy.record import Record
from workbench.deploy.world import MPIWorld
from workbench.errors import InvalidRequest, StartError, StartTimeout
from workbench.head import worlds
from workbench.launch.mpi_library import MPI
from workbench.launch.options import Resources

OPENMPI = MPI("openmpi", (5, 0), "", "mpiexec")


class World(MPIWorld):
    """A world without processes, whose ranks register immediately in its first `complete_starts` starts, then never."""

    complete_starts = 1
    error = None
    """Raised by later starts."""

    def __init__(self, record, mpi, index, ranks, before=0):
        super().__init__(record, mpi, index, ranks)
        self.before = before
        self.started = asyncio.Event()
        self._end = None

    @property
    def runs(self):
        return self._end is not None and not self._end.done()

    async def start(self, timeout, address):
        self.begin()
        self._end = asyncio.get_running_loop().create_future()
        self.started.set()
        if self.error and self.starts > 1:
            raise self.error
        for rank in range(self.ranks if self.starts <= self.complete_starts else 0):
            self.joined(rank, {"threads": "multiple"})

    async def exited(self):
        return await asyncio.shield(self._end)

    async def stop(self, request_end):
        self.stopping = True
        self.lose("it was stopped")

    def lose(self, how="killed"):
        if self.runs:
            self._end.set_result(how)


class Scheduler:
    """The two requests of a removal, which take as long as a test wants."""

    address, workers = "tls://127.0.0.1:1", {}

    def __init__(self):
        self.moved, self.moving = asyncio.Event(), asyncio.Event()
        self.losing = set()

    def loses(self, world):
        return world in self.losing

    async def retire_workers(self, **_):
        self.moving.set()
        await self.moved.wait()


@pytest.fixture
async def cluster(monkeypatch, request):
    """Return the worlds of a cluster, its scheduler and its messages; a parameter has fields of the record."""
    monkeypatch.setattr(worlds, "WorldProcess", World)
    record = Record(name="a", ranks=2, **getattr(request, "param", {}))
    scheduler, messages, tasks = Scheduler(), [], []

    def run(coroutine):
        tasks.append(asyncio.ensure_future(coroutine))
        return tasks[-1]

    first = World(record, OPENMPI, 0, 2)
    first.send_address = lambda _: None
    await first.start(1, "")
    its = worlds.Worlds(
        record,
        first,
        scheduler,
        report=lambda message, **_: messages.append(message),
        changed=lambda: None,
        run=run,
        is_ending=lambda: False,
    )
    yield SimpleNamespace(worlds=its, scheduler=scheduler, messages=messages, tasks=tasks)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def test_a_world_that_is_lost_and_removed_while_it_starts_again_is_not_called_abandoned(cluster):
    async with asyncio.timeout(DEADLINE):
        await cluster.worlds.scale(4)
        world = cluster.worlds.get(1)
        world.started.clear()
        scaling = asyncio.ensure_future(cluster.worlds.scale(2))
        await cluster.scheduler.moving.wait()
        world.lose()
        await world.started.wait()
        cluster.scheduler.moved.set()
        await scaling
        await asyncio.gather(*cluster.tasks, return_exceptions=True)
    assert not world.runs
    assert [each.index for each in cluster.worlds] == [0]
    assert cluster.messages[-1] == "world 1 was removed, and its results were moved to the other worlds"
    assert not [message for message in cluster.messages if "abandoned" in message]


@pytest.mark.parametrize("survives", [True, False])
async def test_only_the_rank_that_was_lost_first_has_ended_its_world_and_its_tasks(cluster, monkeypatch, survives):
    monkeypatch.setattr(worlds, "survives_a_lost_rank", lambda *_, **__: survives)
    first, second = ({"world": 0, "rank": rank, "pid": 7, "host": "n1"} for rank in (0, 1))
    assert not cluster.worlds.ends(first)
    cluster.scheduler.losing.add(0)  # the cause of the first loss is being read
    assert cluster.worlds.ends(second) is not survives
    cluster.scheduler.losing.clear()
    cluster.worlds.left(0, 0, ", as the system has killed a process of this host for lack of memory")
    assert " was lost, as the system has killed a process of this host for lack of memory; " in cluster.messages[-1]
    assert cluster.worlds.ends(second) is not survives
    cluster.worlds.get(0).stopping = True
    assert cluster.worlds.ends(second)
    assert cluster.worlds.ends({"world": 9, "rank": 0}), "a world that was removed"


async def test_the_head_ends_a_world_that_its_launcher_leaves_without_a_rank_and_starts_it_again(cluster, monkeypatch):
    monkeypatch.setattr(worlds, "_LAUNCHER_TIMEOUT", 0.01)
    async with asyncio.timeout(DEADLINE):
        await cluster.worlds.scale(4)
        world = cluster.worlds.get(1)
        world.complete_starts = 2
        monkeypatch.setattr(worlds, "survives_a_lost_rank", lambda *_, **__: True)
        cluster.worlds.left(1, 0)
        assert len(cluster.tasks) == 1, "the others go on"
        monkeypatch.setattr(worlds, "survives_a_lost_rank", lambda *_, **__: False)
        world.joined(0, {"threads": "multiple"})
        world.lost.clear()
        world.started.clear()
        cluster.worlds.left(1, 0)
        await world.started.wait()
    assert any("has not ended it within 0.01 s" in message for message in cluster.messages)
    assert any("world 1 was lost: it was stopped; its 2 ranks are started again" in each for each in cluster.messages)
    assert (world.starts, world.stopping) == (2, False)


async def test_a_later_world_leaves_the_earlier_ones_their_cores(cluster):
    async with asyncio.timeout(DEADLINE):
        for ranks in (5, 9):
            await cluster.worlds.scale(ranks)
    assert [world.before for world in cluster.worlds] == [0, 2, 5]


async def test_a_world_that_is_lost_just_before_its_removal_does_not_start_again_after_it(cluster, monkeypatch):
    forgetting, forgotten = asyncio.Event(), asyncio.Event()

    async def forget(_):
        forgetting.set()
        await forgotten.wait()

    cluster.scheduler.moved.set()
    async with asyncio.timeout(DEADLINE):
        await cluster.worlds.scale(4)
        world = cluster.worlds.get(1)
        with monkeypatch.context() as slow:
            slow.setattr(cluster.worlds, "_forget_workers", forget)
            world.lose()
            await forgetting.wait()
        await cluster.worlds.scale(2)
        forgotten.set()
        await asyncio.gather(*cluster.tasks, return_exceptions=True)
    assert world.starts == 1
    assert [each.index for each in cluster.worlds] == [0]
    assert cluster.messages[-1] == "world 1 was removed, and its results were moved to the other worlds"


async def test_a_restart_names_the_world_that_is_not_ready_at_its_deadline(cluster, monkeypatch):
    monkeypatch.setattr(worlds, "_EXTRA_TIMEOUT", -cluster.worlds.get(0).record.ready_within)
    async with asyncio.timeout(DEADLINE):
        await cluster.worlds.scale(4)
        cluster.tasks.append(asyncio.ensure_future(cluster.worlds.keep_first(DEADLINE)))
        with pytest.raises(StartTimeout):
            await cluster.worlds.restart()


async def test_a_restart_waits_for_a_world_that_is_started_after_a_loss(cluster):
    first = cluster.worlds.get(0)
    async with asyncio.timeout(DEADLINE):
        await cluster.worlds.scale(4)
        later = cluster.worlds.get(1)
        later.complete_starts = 2
        cluster.tasks.append(asyncio.ensure_future(cluster.worlds.keep_first(DEADLINE)))
        first.started.clear()
        first.lose()
        await first.started.wait()
        restarting = asyncio.ensure_future(cluster.worlds.restart())
        later.started.clear()
        await later.started.wait()
        assert not restarting.done()
        for rank in range(2):
            cluster.worlds.joined(0, rank, {"threads": "multiple"})
        await restarting
    assert (first.starts, later.starts) == (2, 2)


async def test_a_restart_that_ends_with_lost_ranks_is_an_error(cluster):
    async with asyncio.timeout(DEADLINE):
        await cluster.worlds.scale(4)
        first, later = cluster.worlds
        later.complete_starts = 2
        cluster.tasks.append(asyncio.ensure_future(cluster.worlds.keep_first(DEADLINE)))
        for world in (first, later):
            world.started.clear()
        restarting = asyncio.ensure_future(cluster.worlds.restart())
        await asyncio.gather(first.started.wait(), later.started.wait())
        cluster.worlds.left(1, 1)
        for rank in range(2):
            cluster.worlds.joined(0, rank, {"threads": "multiple"})
        with raises(StartError, ranks=(1,)):
            await restarting


@pytest.mark.parametrize("error", [StartError("srun found no controller."), OSError("no space left on device")])
async def test_a_failed_start_of_a_restart_uses_up_a_restart_and_costs_no_other_world(cluster, monkeypatch, error):
    monkeypatch.setattr(worlds, "_PAUSES", (0.01, 0.02))
    reason = str(error).rstrip(".")
    async with asyncio.timeout(DEADLINE):
        await cluster.worlds.scale(4)
        first, later = cluster.worlds
        first.error = error
        keeping = asyncio.ensure_future(cluster.worlds.keep_first(DEADLINE))
        cluster.tasks.append(keeping)
        later.complete_starts = 2
        restarting = asyncio.ensure_future(cluster.worlds.restart())
        while first.starts < 3:
            first.started.clear()
            await first.started.wait()
        first.error = None
        first.complete_starts = 4
        await restarting
    failed = [message for message in cluster.messages if "world 0 did not start again" in message]
    assert failed == [
        f"world 0 did not start again: {reason}; its 2 ranks are started again in 0.01 s, 2 more restarts left",
        f"world 0 did not start again: {reason}; its 2 ranks are started again in 0.02 s, 1 more restart left",
    ]
    assert not keeping.done()
    assert (first.starts, later.starts) == (4, 2)


async def test_a_world_that_never_starts_again_is_given_up_when_the_restarts_are_used_up(cluster, monkeypatch):
    monkeypatch.setattr(worlds, "_PAUSES", (0.0,))
    first = cluster.worlds.get(0)
    first.error = StartError("srun found no controller.")
    async with asyncio.timeout(DEADLINE):
        first.lose()
        with pytest.raises(StartError):
            await cluster.worlds.keep_first(DEADLINE)
    assert first.starts == 4


def _on_nodes(nodes, ready_within):
    return {"spread": True, "resources": Resources(nodes=nodes), "ready_within": ready_within}


@pytest.mark.parametrize(
    ("cluster", "kind", "told"),
    [
        (_on_nodes(nodes, ready_within), kind, told)
        for nodes, told in ((None, True), (2, True), (1, False))
        for ready_within, kind in ((0.0, StartTimeout), (DEADLINE, StartError))
    ],
    indirect=["cluster"],
)
async def test_a_start_on_several_nodes_in_which_no_rank_registers_names_the_network(cluster, monkeypatch, kind, told):
    monkeypatch.setattr(World, "complete_starts", 0)
    async with asyncio.timeout(DEADLINE):
        scaling = asyncio.ensure_future(cluster.worlds.scale(4))
        await asyncio.sleep(0)
        world = cluster.worlds.get(1)
        await world.started.wait()
        if kind is StartError:
            world.lose()
        with pytest.raises(kind) as caught:
            await scaling
    assert ("a firewall must leave the ports between nodes open" in str(caught.value)) is told


async def test_a_first_start_that_fails_is_not_repeated(cluster, monkeypatch):
    monkeypatch.setattr(World, "complete_starts", 0)
    async with asyncio.timeout(DEADLINE):
        scaling = asyncio.ensure_future(cluster.worlds.scale(4))
        await asyncio.sleep(0)
        world = cluster.worlds.get(1)
        await world.started.wait()
        world.lose()
        with raises(StartError, kind="StartError", ranks=()):
            await scaling
    assert world.starts == 1


class Client:
    """The connection of a client, until it is lost."""

    lost = False

    def closed(self):
        return self.lost


async def growing(cluster, monkeypatch, client=None):
    """Return a request for a second world, which waits for its ranks, and that world."""
    monkeypatch.setattr(worlds, "_CHECK_INTERVAL", 0.001)
    monkeypatch.setattr(World, "complete_starts", 0)
    scaling = asyncio.ensure_future(cluster.worlds.scale(4, client))
    await asyncio.sleep(0)
    world = cluster.worlds.get(1)
    await world.started.wait()
    return scaling, world


@pytest.mark.parametrize("reason", ["its client has disconnected", "scale(2) was requested"])
async def test_a_world_that_is_not_ready_is_withdrawn_by_the_loss_of_its_client_and_by_fewer_ranks(
    cluster, monkeypatch, reason
):
    client = Client()
    async with asyncio.timeout(DEADLINE):
        scaling, world = await growing(cluster, monkeypatch, client)
        if "client" in reason:
            client.lost = True
        else:
            await cluster.worlds.scale(2)
        with pytest.raises(StartError, match=rf"^world 1 was withdrawn .*, because {re.escape(reason)}"):
            await scaling
    assert not world.runs
    assert [each.index for each in cluster.worlds] == [0]


async def test_a_second_change_is_refused_and_names_the_first_and_what_that_waits_for(cluster, monkeypatch):
    async with asyncio.timeout(DEADLINE):
        scaling, world = await growing(cluster, monkeypatch)
        world.waiting = "world 1: job 34 QUEUED: waiting for resources"
        for change in (lambda: cluster.worlds.scale(6), cluster.worlds.restart):
            with pytest.raises(
                InvalidRequest, match=r"is not possible while scale\(4\) is in progress \(world 1: job 34 QUEUED"
            ):
                await change()
        await cluster.worlds.scale(2)
        await asyncio.gather(scaling, return_exceptions=True)


async def test_a_restart_whose_client_is_lost_leaves_no_request_behind(cluster, monkeypatch):
    client = Client()
    async with asyncio.timeout(DEADLINE):
        monkeypatch.setattr(worlds, "_CHECK_INTERVAL", 0.001)
        await cluster.worlds.scale(4)
        first = cluster.worlds.get(0)
        first.complete_starts = 2
        cluster.tasks.append(asyncio.ensure_future(cluster.worlds.keep_first(DEADLINE)))
        restarting = asyncio.ensure_future(cluster.worlds.restart(client))
        await asyncio.sleep(0)
        client.lost = True
        with raises(StartError, kind="StartError", ranks=()):
            await restarting
        await first.complete()
        cluster.scheduler.moved.set()
        await cluster.worlds.scale(2)
    assert [each.index for each in cluster.worlds] == [0]

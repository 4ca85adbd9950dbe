"""The world of a cluster starts again, and moves to other ranks, whatever happens to its processes meanwhile."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace

import pytest
from support.patience import DEADLINE
from support.raised import raises

from workbench.collective.operation import CallQueue
from workbench.deploy.record import Record
from workbench.deploy.world import MPIWorld
from workbench.errors import InvalidRequest, StartError, StartTimeout
from workbench.head import cluster_world
from workbench.launch.mpi_library import MPI
from workbench.launch.options import Resources

OPENMPI = MPI("openmpi", (5, 0), "", "mpiexec")


class World(MPIWorld):
    """A world without processes, whose ranks register immediately in its first `complete_starts` starts, then never."""

    complete_starts = 1
    error = None
    """Raised by later starts."""

    def __init__(self, record, mpi, index, ranks):
        super().__init__(record, mpi, index, ranks)
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
    """What the world needs of Dask's scheduler."""

    address, workers = "tls://127.0.0.1:1", {}

    def __init__(self):
        self.losing, self.log, self.awaited = set(), [], {}

    def pin_again(self, ranks):
        self.awaited.clear()
        return 0

    def loses(self, world):
        return world in self.losing

    async def drain_workers(self, addresses):
        self.log.append("drain")

    async def resume_workers(self, addresses):
        self.log.append("resume")

    def take_over(self, world, former, ranks):
        self.log.append(f"world {world}")


@pytest.fixture
async def cluster(monkeypatch, request):
    """Return the world of a cluster, its scheduler and its messages; a parameter has fields of the record."""
    monkeypatch.setattr(cluster_world, "WorldProcess", World)
    monkeypatch.setattr(cluster_world, "_CHECK_INTERVAL", 0.001)
    record = Record(name="a", ranks=2, **getattr(request, "param", {}))
    its = SimpleNamespace(scheduler=Scheduler(), messages=[], tasks=[], queue=CallQueue(), moving=asyncio.Event())
    its.moved = asyncio.Event()
    its.moved.set()

    async def moved(*_):
        its.moving.set()
        await its.moved.wait()
        return ""

    def run(coroutine):
        its.tasks.append(asyncio.ensure_future(coroutine))
        return its.tasks[-1]

    monkeypatch.setattr(cluster_world, "moved", moved)
    its.first = World(record, OPENMPI, 0, 2)
    its.first.send_address = lambda _: None
    await its.first.start(1, "")
    its.current = cluster_world.ClusterWorld(
        record,
        its.first,
        its.scheduler,
        queues=lambda: (its.queue,),
        report=lambda message, **_: its.messages.append(message),
        changed=lambda: None,
        replaced=lambda: None,
        run=run,
        is_ending=lambda: False,
    )
    its.current.keep_first(DEADLINE)
    (its.keeping,) = its.tasks
    await asyncio.sleep(0)
    yield its
    for task in its.tasks:
        task.cancel()
    await asyncio.gather(*its.tasks, return_exceptions=True)


async def test_a_world_of_any_number_of_ranks_replaces_the_former_one_which_ends(cluster):
    async with asyncio.timeout(DEADLINE):
        for index, ranks in enumerate((5, 3, 7), start=1):
            former = cluster.current.world
            await cluster.current.move(ranks)
            assert (cluster.current.world.index, cluster.current.world.ranks) == (index, ranks)
            assert cluster.current.world.runs
            assert not former.runs
            assert cluster.current.next is None
        await cluster.current.move(7)
        assert cluster.scheduler.log == ["drain", "world 1", "drain", "world 2", "drain", "world 3"]
        assert cluster.current.world.index == 3, "the same number changes nothing"
        cluster.current.left(3, 6)
        cluster.scheduler.log.clear()
        await cluster.current.move(7)
        assert (cluster.current.world.index, cluster.current.world.missing()) == (4, []), "but replaces a lost rank"
    assert cluster.scheduler.log == ["drain", "world 4"]
    assert cluster.messages[-1] == "the cluster has 7 ranks now"


async def test_a_world_that_has_replaced_the_first_one_starts_again_after_its_loss(cluster):
    async with asyncio.timeout(DEADLINE):
        await cluster.current.move(4)
        world = cluster.current.world
        world.complete_starts = 2
        world.started.clear()
        world.lose()
        await world.started.wait()
        await world.complete()
    assert cluster.current.world is world
    assert world.starts == 2
    assert not cluster.first.runs


async def test_a_move_waits_for_the_calls_before_it_and_those_after_it_wait_for_the_move(cluster):
    order = []

    async def call(name, ends):
        async with cluster.queue.turn(name, asyncio.get_running_loop().time() + DEADLINE).held():
            order.append(f"{name} on {'former' if cluster.first.stopping else 'present'} ranks")
            await ends.wait()

    async with asyncio.timeout(DEADLINE):
        end, cluster_moving = asyncio.Event(), cluster.moving
        before = asyncio.ensure_future(call("before", end))
        await asyncio.sleep(0)
        moving = asyncio.ensure_future(cluster.current.move(4))
        while not (cluster.current.next and cluster.current.next.ready):  # noqa: ASYNC110
            await asyncio.sleep(0)
        cluster.moved.clear()
        assert not cluster_moving.is_set()
        end.set()
        await cluster_moving.wait()
        after = asyncio.ensure_future(call("after", end))
        await asyncio.sleep(0)
        cluster.moved.set()
        await asyncio.gather(before, moving, after)
    assert order == ["before on present ranks", "after on former ranks"]


async def test_results_that_cannot_be_sent_leave_the_ranks_as_they_were(cluster, monkeypatch):
    async def fail(*_):
        raise StartError("1 result could not be sent to the new ranks.")

    monkeypatch.setattr(cluster_world, "moved", fail)
    async with asyncio.timeout(DEADLINE):
        with raises(StartError):
            await cluster.current.move(4)
    assert cluster.scheduler.log == ["drain", "resume"]
    assert cluster.current.world is cluster.first
    assert cluster.first.runs
    assert cluster.current.next is None
    assert "the ranks are as before" in cluster.messages[-1]


async def test_new_ranks_that_are_lost_before_they_replace_the_former_ones_do_not_start_again(cluster):
    end = asyncio.Event()

    async def call():
        async with cluster.queue.turn("client", asyncio.get_running_loop().time() + DEADLINE).held():
            await end.wait()

    async with asyncio.timeout(DEADLINE):
        calling = asyncio.ensure_future(call())
        await asyncio.sleep(0)
        moving = asyncio.ensure_future(cluster.current.move(4))
        while not (cluster.current.next and cluster.current.next.ready):  # noqa: ASYNC110
            await asyncio.sleep(0)
        world = cluster.current.next
        world.lose()
        with raises(StartError):
            await moving
        end.set()
        await calling
    assert world.starts == 1
    assert cluster.current.world is cluster.first
    assert cluster.first.runs


@pytest.mark.parametrize("survives", [True, False])
async def test_only_the_rank_that_was_lost_first_has_ended_its_world_and_its_tasks(cluster, monkeypatch, survives):
    monkeypatch.setattr(cluster_world, "survives_a_lost_rank", lambda *_, **__: survives)
    first, second = ({"world": 0, "rank": rank, "pid": 7, "host": "n1"} for rank in (0, 1))
    assert not cluster.current.ends(first)
    cluster.scheduler.losing.add(0)  # the cause of the first loss is being read
    assert cluster.current.ends(second) is not survives
    cluster.scheduler.losing.clear()
    cluster.current.left(0, 0, ", as the system has killed a process of this host for lack of memory")
    assert " was lost, as the system has killed a process of this host for lack of memory; " in cluster.messages[-1]
    assert cluster.current.ends(second) is not survives
    cluster.first.stopping = True
    assert cluster.current.ends(second)
    assert cluster.current.ends({"world": 9, "rank": 0}), "a world that was replaced"


async def test_the_head_ends_a_world_that_its_launcher_leaves_without_a_rank_and_starts_it_again(cluster, monkeypatch):
    monkeypatch.setattr(cluster_world, "_LAUNCHER_TIMEOUT", 0.01)
    world = cluster.first
    async with asyncio.timeout(DEADLINE):
        world.complete_starts = 2
        monkeypatch.setattr(cluster_world, "survives_a_lost_rank", lambda *_, **__: True)
        cluster.current.left(0, 0)
        assert len(cluster.tasks) == 1, "the others go on"
        monkeypatch.setattr(cluster_world, "survives_a_lost_rank", lambda *_, **__: False)
        world.joined(0, {"threads": "multiple"})
        world.lost.clear()
        world.started.clear()
        cluster.current.left(0, 0)
        await world.started.wait()
    assert any("has not ended it within 0.01 s" in message for message in cluster.messages)
    assert any("the world was lost: it was stopped; its 2 ranks are started again" in each for each in cluster.messages)
    assert (world.starts, world.stopping) == (2, False)


async def test_a_restart_has_a_deadline(cluster, monkeypatch):
    monkeypatch.setattr(cluster_world, "_EXTRA_TIMEOUT", -cluster.first.record.ready_within)
    async with asyncio.timeout(DEADLINE):
        with pytest.raises(StartTimeout):
            await cluster.current.restart()


async def test_a_restart_waits_for_a_world_that_is_started_after_a_loss(cluster):
    async with asyncio.timeout(DEADLINE):
        cluster.first.started.clear()
        cluster.first.lose()
        await cluster.first.started.wait()
        restarting = asyncio.ensure_future(cluster.current.restart())
        await asyncio.sleep(0)
        assert not restarting.done()
        for rank in range(2):
            cluster.current.joined(0, rank, {"threads": "multiple"})
        await restarting
    assert cluster.first.starts == 2


async def test_a_restart_that_ends_with_lost_ranks_is_an_error(cluster):
    async with asyncio.timeout(DEADLINE):
        cluster.first.complete_starts = 2
        cluster.first.started.clear()
        restarting = asyncio.ensure_future(cluster.current.restart())
        await cluster.first.started.wait()
        cluster.current.left(0, 1)
        with raises(StartError, ranks=(1,)):
            await restarting


@pytest.mark.parametrize("error", [StartError("srun found no controller."), OSError("no space left on device")])
async def test_a_failed_start_of_a_restart_uses_up_a_restart(cluster, monkeypatch, error):
    monkeypatch.setattr(cluster_world, "_PAUSES", (0.01, 0.02))
    reason, first = str(error).rstrip("."), cluster.first
    first.error = error
    async with asyncio.timeout(DEADLINE):
        restarting = asyncio.ensure_future(cluster.current.restart())
        while first.starts < 3:
            first.started.clear()
            await first.started.wait()
        first.error = None
        first.complete_starts = 4
        await restarting
    failed = [message for message in cluster.messages if "the world did not start again" in message]
    assert failed == [
        f"the world did not start again: {reason}; its 2 ranks are started again in 0.01 s, 2 more restarts left",
        f"the world did not start again: {reason}; its 2 ranks are started again in 0.02 s, 1 more restart left",
    ]
    assert not cluster.keeping.done()
    assert first.starts == 4


async def test_a_world_that_never_starts_again_is_given_up_when_the_restarts_are_used_up(cluster, monkeypatch):
    monkeypatch.setattr(cluster_world, "_PAUSES", (0.0,))
    cluster.first.error = StartError("srun found no controller.")
    async with asyncio.timeout(DEADLINE):
        cluster.first.lose()
        with pytest.raises(StartError):
            await cluster.keeping
    assert cluster.first.starts == 4


def _on_nodes(nodes, ready_within):
    return {"spread": True, "resources": Resources(nodes=nodes), "ready_within": ready_within}


async def growing(cluster, monkeypatch, client=None):
    """Return a request for a world of 4 ranks, which waits for its ranks, and that world."""
    monkeypatch.setattr(World, "complete_starts", 0)
    moving = asyncio.ensure_future(cluster.current.move(4, client))
    while cluster.current.next is None:  # noqa: ASYNC110
        await asyncio.sleep(0)
    world = cluster.current.next
    await world.started.wait()
    return moving, world


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
    async with asyncio.timeout(DEADLINE):
        moving, world = await growing(cluster, monkeypatch)
        if kind is StartError:
            world.lose()
        with pytest.raises(kind) as caught:
            await moving
    assert ("a firewall must leave the ports between nodes open" in str(caught.value)) is told
    assert world.starts == 1, "a first start that fails is not repeated"
    assert cluster.first.runs


class Client:
    """The connection of a client, until it is lost."""

    lost = False

    def closed(self):
        return self.lost


@pytest.mark.parametrize("reason", ["its client has disconnected", "scale(2) was requested"])
async def test_ranks_that_are_not_ready_are_withdrawn_by_the_loss_of_their_client_and_by_another_number(
    cluster, monkeypatch, reason
):
    client = Client()
    async with asyncio.timeout(DEADLINE):
        moving, world = await growing(cluster, monkeypatch, client)
        if "client" in reason:
            client.lost = True
        else:
            await cluster.current.move(2)
        with raises(StartError) as caught:
            await moving
    assert str(caught.value).startswith(f"scale(4) was withdrawn, because {reason}")
    assert not world.runs
    assert cluster.current.world is cluster.first


async def test_a_second_change_is_refused_and_names_the_first_and_what_that_waits_for(cluster, monkeypatch):
    async with asyncio.timeout(DEADLINE):
        moving, world = await growing(cluster, monkeypatch)
        world.waiting = "job 34 QUEUED: waiting for resources"
        with pytest.raises(InvalidRequest, match=r"is not possible while scale\(4\) is in progress \(job 34 QUEUED"):
            await cluster.current.restart()
        await cluster.current.move(2)
        await asyncio.gather(moving, return_exceptions=True)


async def test_a_restart_whose_client_is_lost_leaves_no_request_behind(cluster):
    client = Client()
    async with asyncio.timeout(DEADLINE):
        restarting = asyncio.ensure_future(cluster.current.restart(client))
        await asyncio.sleep(0)
        client.lost = True
        with raises(StartError, kind="StartError", ranks=()):
            await restarting
        for rank in range(2):
            cluster.current.joined(0, rank, {"threads": "multiple"})
        await cluster.current.move(4)
    assert cluster.current.world.ranks == 4

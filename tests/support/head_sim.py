"""The world of a head with a scheduler that is slow, silent, late and wrong, in virtual time and from a seed."""

from __future__ import annotations

import asyncio
import heapq
import os
import random
from collections import Counter
from types import SimpleNamespace

from workbench.collective.operation import CallQueue
from workbench.deploy import job as job_module
from workbench.deploy.folder import ClusterFolder
from workbench.deploy.job import ClusterJob
from workbench.deploy.record import Record
from workbench.deploy.world import MPIWorld
from workbench.errors import JobRejected, LaunchError, SchedulerTimeout, StartError, WorkbenchError
from workbench.head import cluster_world, job_world
from workbench.launch.interface import UNKNOWN, JobState, JobStatus
from workbench.launch.mpi_library import MPI

OPENMPI = MPI("openmpi", (5, 0), "", "mpiexec")
# Seconds of virtual time: for a request whose client is lost or replaced, and for everything at the end.
PROMPT, LONG = 120.0, 4000.0
# Seconds since the epoch from which on a time is not of the virtual clock.
REAL = 1e9


class VirtualLoop(asyncio.SelectorEventLoop):
    """An event loop whose clock jumps to the next timer when there is nothing to do."""

    now = 1e6

    def time(self):
        return self.now

    def _run_once(self):
        while self._scheduled and self._scheduled[0]._cancelled:
            self._timer_cancelled_count -= 1
            timer = heapq.heappop(self._scheduled)
            timer._scheduled = False
        if not self._ready:
            assert self._scheduled, "all coroutines wait for each other"
            self.now = max(self.now, self._scheduled[0]._when)
        super()._run_once()


class Job:
    """A job, with the ranks of one start of one world."""

    def __init__(self, number, spec, world, start, now):
        self.id, self.spec, self.world, self.start, self.since = str(number), spec, world, start, now
        self.states = [(now, JobState.QUEUED)]

    @property
    def state(self):
        return self.states[-1][1]


class Scheduler:
    """A batch scheduler with ill answers, which are drawn from `draw`; `healthy` ends them."""

    batch, name = True, "slurm"

    def __init__(self, sim, draw):
        self.sim, self.draw, self.jobs, self.healthy = sim, draw, {}, False

    def ill(self, share):
        return not self.healthy and self.draw.random() < share

    def submit(self, spec):
        self.sim.counts["submissions"] += 1
        if self.ill(0.05):
            raise JobRejected("the queue is closed.")
        spec.receipt.write_text("")
        if self.ill(0.1):
            if self.draw.random() < 0.5:
                self.sim.later(self.draw.uniform(0, 10), lambda: self._accept(spec))
            raise SchedulerTimeout("the scheduler does not answer.")
        job = self._accept(spec)
        spec.receipt.write_text(job.id)
        return job.id

    def _accept(self, spec):
        _, world, start = spec.receipt.stem.split("-")
        job = Job(len(self.jobs) + 1, spec, int(world), int(start), self.sim.loop.time())
        self.jobs[job.id] = job
        if self.draw.random() < 0.85:  # else the machine is full
            self.sim.later(self.draw.expovariate(1 / 10), lambda: self.sim.begin(job))
        return job

    def set(self, job, state):
        if not job.state.ended:
            job.states.append((self.sim.loop.time(), state))

    def statuses(self, ids):
        self.sim.counts["queries"] += 1
        for receipt in ClusterFolder.of(self.sim.record).path.glob("*.job"):
            if receipt.stat().st_mtime > REAL:  # written since the last query
                os.utime(receipt, (self.sim.loop.time(),) * 2)
        if self.ill(0.1):
            self.sim.counts["silent answers"] += 1
            return dict.fromkeys(ids, JobStatus(JobState.UNKNOWN, "the scheduler does not answer"))
        return {number: self._status(number) for number in ids}

    def _status(self, number):
        job = self.jobs.get(number)
        if job is None:
            return JobStatus(JobState.UNKNOWN, unknown_to_scheduler=True)
        age = self.sim.loop.time() - job.since
        if age < 3 and self.ill(0.1):
            self.sim.counts["wrong answers"] += 1
            return JobStatus(JobState.UNKNOWN, unknown_to_scheduler=True)
        if self.ill(0.02):
            return UNKNOWN
        # A cache of the site may be some seconds old.
        at = self.sim.loop.time() - (self.draw.uniform(0, 5) if self.ill(0.2) else 0)
        state = [state for when, state in job.states if when <= at or when == job.since][-1]
        return JobStatus(state, label=f"workbench:{self.sim.record.id}:x")

    def cancel(self, number):
        self.sim.counts["cancels"] += 1
        job = self.jobs[number]
        self.sim.check_cancel(job)
        if self.ill(0.1):
            raise SchedulerTimeout("the scheduler does not answer.")
        self.sim.end(job, self.draw.uniform(0, 6), JobState.CANCELLED)
        if self.ill(0.05):
            raise LaunchError("the scheduler reports an error, and cancels the job all the same.")

    def find(self, identity, name):
        if self.ill(0.1):
            raise SchedulerTimeout("the scheduler does not answer.")
        return next((job.id for job in self.jobs.values() if job.spec.identity == identity), None)

    def system(self):
        return ""

    def receipt(self, text):
        return text.strip() or None


class HomeWorld(MPIWorld):
    """A world whose processes are children of the head; one start in five after the first fails."""

    sim = end = None

    def send_address(self, address):
        pass

    async def start(self, timeout, address):
        self.begin()
        self.end = asyncio.get_running_loop().create_future()
        start, draw = self.starts, self.sim.draw
        if start > 1 and draw.random() < 0.2:
            self.sim.later(draw.uniform(0, 2), lambda: self.over("srun found no controller"))
        else:
            for rank in range(self.ranks):
                self.sim.later(draw.uniform(0.5, 3), lambda rank=rank: self.register(start, rank))

    def register(self, start, rank):
        if start == self.starts and not self.end.done():
            self.sim.register(self.index, start, rank)

    def over(self, how):
        if not self.end.done():
            self.end.set_result(how)
            self.sim.unregister(self.index, self.starts)

    async def exited(self):
        return await asyncio.shield(self.end)

    async def stop(self, request_end):
        self.stopping, end = True, self.end
        if end is None:
            return
        await asyncio.sleep(self.sim.draw.uniform(0, 3))
        if end is self.end:
            self.over("stopped")


class DaskScheduler:
    """What the world needs of Dask's scheduler."""

    address = "tls://127.0.0.1:1"

    def __init__(self, sim):
        self.sim, self.workers, self.awaited = sim, {}, {}

    async def drain_workers(self, addresses):
        await asyncio.sleep(self.sim.draw.choice((0.0, 0.0, self.sim.draw.uniform(0, 60))))  # tasks run

    async def resume_workers(self, addresses):
        await asyncio.sleep(self.sim.draw.uniform(0, 1))

    def pin_again(self, ranks):
        again, self.awaited = len(self.awaited), {}
        return again

    def take_over(self, world, former, ranks):
        pass

    async def remove_worker(self, address, **_):
        self.sim.remove(address)

    async def broadcast(self, msg, workers, on_error):
        if self.sim.draw.random() < 0.1:
            await asyncio.sleep(1e5)  # a rank hangs
        for address in workers:
            _, world, start, _ = address.split(":")
            for job in self.sim.scheduler.jobs.values():
                if (job.world, job.start) == (int(world), int(start)):
                    self.sim.end(job, self.sim.draw.uniform(0.5, 15), JobState.DONE)
        await asyncio.sleep(self.sim.draw.uniform(0, 1))


class Client:
    """The connection of a client, which Ctrl-C ends."""

    lost_at = None

    def closed(self):
        return self.lost_at is not None


class Simulation:
    """One cluster, from its start to its end; `faults` lists the broken promises, `counts` the operations."""

    def __init__(self, seed, loop, folder):
        self.draw, self.loop, self.counts, self.faults = random.Random(seed), loop, Counter(), []
        self.record = Record(name=f"s{seed}", ranks=2, scheduler="slurm", id=f"{seed:032x}", job="0")
        ClusterFolder.of(self.record).path.mkdir(parents=True)
        (ClusterFolder.of(self.record).path / "record.json").write_text("{}")
        self.scheduler, self.dask, self.ending, self.tasks = Scheduler(self, self.draw), DaskScheduler(self), False, []
        self.first, queue = HomeWorld(self.record, OPENMPI, 0, 2), CallQueue()
        self.current = cluster_world.ClusterWorld(
            self.record, self.first, self.dask, queues=lambda: (queue,), report=lambda *_, **__: None,
            changed=lambda: None, replaced=lambda: None, run=self.run, is_ending=lambda: self.ending,
        )  # fmt: skip

    async def moved(self, *_):
        await asyncio.sleep(self.draw.uniform(0, 5))
        if self.draw.random() < 0.1:
            raise StartError("1 result could not be sent.")
        return ""

    def later(self, seconds, function):
        self.loop.call_later(seconds, function)

    def run(self, coroutine):
        self.tasks.append(asyncio.ensure_future(coroutine))
        return self.tasks[-1]

    async def to_thread(self, function, *arguments, **options):
        """As `asyncio.to_thread`: a call that has begun is made, whether or not its caller waits for it."""

        async def call():
            slow = self.draw.random() < 0.1 and not self.scheduler.healthy
            await asyncio.sleep(self.draw.uniform(0, 10 if slow else 0.3))
            result = function(*arguments, **options)
            await asyncio.sleep(self.draw.uniform(0, 10 if slow else 0.3))
            return result

        made = asyncio.ensure_future(call())
        made.add_done_callback(lambda future: future.cancelled() or future.exception())
        return await asyncio.shield(made)

    # -- ranks and jobs ----------------------------------------------------------------------------------------

    def begin(self, job):
        if job.state is not JobState.QUEUED:
            return
        self.scheduler.set(job, JobState.RUNNING)
        if self.draw.random() < 0.1:
            self.end(job, self.draw.uniform(0, 4), JobState.FAILED)
        ranks = job.spec.ranks
        for rank in range(ranks):
            self.later(self.draw.uniform(0.5, 4), lambda rank=rank: self.register(job.world, job.start, rank, job))

    def register(self, index, start, rank, job=None):
        if job is not None and job.state is not JobState.RUNNING:
            return
        name = (index, rank)
        if any((facts["world"], facts["rank"]) == name for facts in self.facts()):
            self.counts["ranks refused for their name"] += 1  # as Dask does
            return
        address = f"mpi:{index}:{start}:{rank}"
        facts = {"world": index, "rank": rank, "threads": "multiple"}
        self.dask.workers[address] = SimpleNamespace(extra={"workbench": facts})
        self.current.joined(index, rank, facts)

    def facts(self):
        return [worker.extra["workbench"] for worker in self.dask.workers.values()]

    def remove(self, address):
        if worker := self.dask.workers.pop(address, None):
            facts = worker.extra["workbench"]
            if self.current.returns(facts):
                self.counts["ranks that are awaited"] += 1
                self.dask.awaited[address] = facts["rank"]
            self.current.left(facts["world"], facts["rank"])

    def unregister(self, index, start):
        for address in [each for each in self.dask.workers if each.startswith(f"mpi:{index}:{start}:")]:
            self.remove(address)

    def end(self, job, seconds, state):
        self.later(seconds / 2, lambda: self.unregister(job.world, job.start))
        self.later(seconds / 2, lambda: self.scheduler.set(job, JobState.COMPLETING))
        self.later(seconds, lambda: self.scheduler.set(job, state))

    # -- promises ----------------------------------------------------------------------------------------------

    def check_cancel(self, job):
        world = next((each for each in self.current if each.index == job.world), None)
        if not self.ending and world is not None and job.start == world.starts and not world.stopping:
            self.faults.append(f"job {job.id} of start {job.start} of world {job.world} is wanted, and was canceled")

    def check_known(self):
        live = {job.id for job in self.scheduler.jobs.values() if not job.state.ended}
        ill, self.scheduler.healthy = self.scheduler.healthy, True
        if lost := live - set(ClusterJob(self.record).all_jobs(certain=True)):
            self.faults.append(f"jobs {sorted(lost)} are lost")
        self.scheduler.healthy = ill

    # -- the life of the cluster -------------------------------------------------------------------------------

    async def request(self, what, change, client):
        self.counts[what] += 1
        began = self.loop.time()
        try:
            await change
            self.counts[f"{what}: done"] += 1
        except WorkbenchError as error:
            self.counts[f"{what}: {type(error).__name__}"] += 1
        if client.lost_at is not None and self.loop.time() - max(began, client.lost_at) > PROMPT:
            self.faults.append(f"{what} outlived its client by {self.loop.time() - client.lost_at:.0f} s")

    async def live(self):
        draw = self.draw
        await self.first.start(0, "")
        self.current.keep_first(60.0)
        requests = []
        for _ in range(draw.randint(2, 8)):
            await asyncio.sleep(draw.choice((0.0, draw.uniform(0, 2), draw.expovariate(1 / 30), 60.0)))
            if self.failed():
                break
            self.act(draw.choice(("grow", "grow", "shrink", "restart", "restart", "ctrl-c", "kill")), requests)
            self.check_known()
        if requests and draw.random() < 0.7:
            await self.rest(requests)
        if error := self.failed():
            self.counts["clusters without restarts left"] += 1
            assert isinstance(error, StartError), repr(error)
        await self.stop()

    def failed(self):
        """Return the error of a background task of the head, which ends the cluster."""
        ended = [task for task in self.tasks if task.done() and not task.cancelled()]
        return next((task.exception() for task in ended if task.exception()), None)

    def act(self, what, requests):
        """Do what a user, or a person at the scheduler, may do."""
        client, ranks = Client(), self.current.world.ranks
        if what == "ctrl-c":
            self.counts["Ctrl-C"] += 1
            for _, each in requests:
                each.lost_at = each.lost_at or self.loop.time()
        elif what == "kill":
            for job in [job for job in self.scheduler.jobs.values() if job.state is JobState.RUNNING][:1]:
                self.counts["jobs killed by others"] += 1
                self.end(job, 1.0, JobState.FAILED)
        else:
            change = {
                "grow": lambda: self.current.move(ranks + self.draw.randint(1, 3), client),
                "shrink": lambda: self.current.move(self.draw.randint(1, ranks), client),
                "restart": lambda: self.current.restart(client),
            }[what]()
            requests.append((asyncio.ensure_future(self.request(change.__name__, change, client)), client))

    async def rest(self, requests):
        """Wait for all requests, and then for the jobs of worlds that were replaced."""
        done, late = await asyncio.wait([task for task, _ in requests], timeout=LONG)
        for task in done:
            task.result()  # raises unexpected errors
        self.faults += [f"{len(late)} requests have no deadline"] if late else []
        await asyncio.sleep(300)
        world = self.current.world  # while it is not ready, its ranks are about to start
        if self.dask.awaited and world.ready and not world.lost and not self.failed():
            self.faults.append(f"tasks of {sorted(self.dask.awaited)} wait for ever")
        # Not those of earlier starts that the scheduler has taken after it answered that they do not exist.
        wanted = {world.index for world in self.current}
        for job in self.scheduler.jobs.values():
            if not job.state.ended and job.world not in wanted:
                self.faults.append(f"job {job.id} of start {job.start} of world {job.world} is not wanted")

    async def stop(self):
        """End the cluster as the head does, and then the next process that lists clusters."""
        self.counts["stop"] += 1
        self.check_known()
        self.ending = True
        for task in self.tasks:
            task.cancel()
        async with asyncio.timeout(LONG):
            await self.current.stop()
        await asyncio.sleep(20)
        self.scheduler.healthy = True
        self.check_known()
        ClusterJob(self.record).cancel(later=True)
        await asyncio.sleep(30)
        left = [job.id for job in self.scheduler.jobs.values() if not job.state.ended]
        self.faults += [f"jobs {left} are left"] if left else []


def simulate(seed, folder, monkeypatch):
    """Run one cluster; return its broken promises and the counts of its operations."""
    loop = VirtualLoop()
    monkeypatch.setenv("JUPYTER_DATA_DIR", str(folder))
    sim = Simulation(seed, loop, folder)
    clock = SimpleNamespace(monotonic=loop.time, time=loop.time)
    for module in (cluster_world, job_world, job_module):
        monkeypatch.setattr(module, "time", clock)
        monkeypatch.setattr(module, "launcher", lambda _: sim.scheduler)
    monkeypatch.setattr(HomeWorld, "sim", sim)
    monkeypatch.setattr(cluster_world, "WorldProcess", HomeWorld)
    monkeypatch.setattr(cluster_world, "moved", sim.moved)
    monkeypatch.setattr(asyncio, "to_thread", sim.to_thread)
    asyncio.set_event_loop(loop)
    try:
        loop.run_until_complete(sim.live())
        rest = asyncio.all_tasks(loop)
        for task in rest:
            task.cancel()
        loop.run_until_complete(asyncio.gather(*rest, return_exceptions=True))
    finally:
        monkeypatch.undo()
        asyncio.set_event_loop(None)
        loop.close()
    return sim.faults, sim.counts

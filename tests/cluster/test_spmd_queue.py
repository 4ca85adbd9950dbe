"""Calls of several clients among ordinary tasks: each has its turn, in its order, and none waits for ever."""

from __future__ import annotations

import os
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from distributed import Client, Event, wait
from support.processes import DEADLINE, until
from support.spmd import doing, hang, note, noted, total

from workbench import run_on_ranks, spmd
from workbench.errors import CollectiveTimeout

# All of it takes minutes: `make test-long`.
CYCLES = int(os.environ.get("WORKBENCH_CYCLES", "2"))
CLIENTS = 4
# For 50 cycles: 250 calls of each client, and 10,000 tasks.
CALLS, TASKS = 5 * CYCLES, 200 * CYCLES // CLIENTS
LONG = DEADLINE + 10 * CYCLES


@pytest.mark.mpi_flavor
def test_calls_of_several_clients_among_many_tasks_all_finish_in_their_order(cluster4, client4, record_property):
    client4.run(noted)
    start = threading.Barrier(CLIENTS)

    def use(which):
        with Client(cluster4) as client:
            call = spmd(client=client)(note)
            start.wait(DEADLINE)
            tasks = client.map(lambda x: x + 1, range(TASKS), pure=False)
            calls = [call.submit(which, number) for number in range(CALLS)]
            assert [its.result(LONG) for its in calls] == [[4 * number] * 4 for number in range(CALLS)]
            assert sum(client.gather(tasks)) == TASKS * (TASKS + 1) // 2

    with ThreadPoolExecutor(CLIENTS) as threads:
        seconds = until_done([threads.submit(use, which) for which in range(CLIENTS)])
    record_property("seconds", seconds)

    logs = dict(client4.run(noted).values())
    assert logs[0] == logs[1] == logs[2] == logs[3]
    for which in range(CLIENTS):
        assert [number for client, number in logs[0] if client == which] == list(range(CALLS))
    # They took turns.
    assert [client for client, _ in logs[0]] != sorted(client for client, _ in logs[0])


def until_done(futures):
    """Wait for futures, raise what they raised, and return how long it took."""
    return until(
        "all clients to be done", lambda: [its.result() for its in futures if its.done()] == [None] * len(futures), LONG
    )


def test_tasks_that_keep_every_rank_busy_hold_no_call_up(client4):
    busy = client4.map(lambda _: Event("end of busy").wait(DEADLINE), range(8), pure=False)
    until("all ranks to be busy", lambda: sum(map(len, client4.processing().values())) >= 4)
    assert run_on_ranks(total, client=client4, timeout=DEADLINE) == [6] * 4
    Event("end of busy", client=client4).set()
    client4.gather(busy)


def test_tasks_run_while_a_call_does(client4, tmp_path):
    go = tmp_path / "go"
    future = spmd(client=client4)(hang).submit("Allreduce", 1, str(go))
    until("all ranks to be in it", lambda: all(what != "" for _, what in client4.run(doing).values()))
    assert client4.gather(client4.map(lambda x: x + 1, range(100), pure=False)) == list(range(1, 101))
    assert not future.done()
    go.touch()
    future.result(DEADLINE)


def test_tasks_of_all_ranks_make_calls_and_none_waits_for_ever(client4):
    def ask():
        return run_on_ranks(total, timeout="1 minute")

    tasks = [client4.submit(ask, pure=False, workers=[rank]) for rank in range(4)]
    wait(tasks, DEADLINE)
    assert client4.gather(tasks) == [[6] * 4] * 4


def test_what_waits_can_be_cancelled_or_be_late_and_the_others_keep_their_order(client4, tmp_path):
    client4.run(noted)
    go = tmp_path / "go"
    first = spmd(client=client4)(hang).submit("Allreduce", 1, str(go))
    calls = [spmd(client=client4)(note).submit(0, number) for number in range(4)]
    until("the first to run", lambda: all(what != "" for _, what in client4.run(doing).values()))
    assert calls[1].cancel()

    with (
        Client(client4.scheduler.address, security=client4.security) as other,
        pytest.raises(CollectiveTimeout),
    ):
        run_on_ranks(total, client=other, timeout="0.2 s")
    go.touch()

    assert [its.result(DEADLINE)[0] for its in (calls[0], calls[2], calls[3])] == [0, 8, 12]
    first.result(DEADLINE)
    assert [log for _, log in client4.run(noted).values()] == [[(0, 0), (0, 2), (0, 3)]] * 4


def test_a_client_that_closes_ends_its_calls_wherever_they_are(cluster4, client4):
    with Client(cluster4) as gone:
        futures = [spmd(client=gone)(hang).submit("Recv", 1, "/never") for _ in range(3)]
        until("the first to run", lambda: all(what != "" for _, what in client4.run(doing).values()))
    until("it to end", lambda: all(what == "" for _, what in client4.run(doing).values()))
    assert run_on_ranks(total, client=client4, timeout=DEADLINE) == [6] * 4
    for future in futures:
        assert future.cancelled() or isinstance(future.exception(DEADLINE), OSError | RuntimeError)

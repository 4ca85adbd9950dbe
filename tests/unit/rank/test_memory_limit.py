"""A task that brings its rank near the limit of memory is ended, in its thread and once."""

from __future__ import annotations

import pickle
import threading
from types import SimpleNamespace

import pytest
from support.patience import DEADLINE

from workbench.errors import MemoryLimitReached
from workbench.rank import memory_limit
from workbench.rank.memory_limit import MemoryLimit


def worker(limit: int, **threads: int) -> SimpleNamespace:
    return SimpleNamespace(
        memory_manager=SimpleNamespace(memory_limit=limit),
        active_threads_lock=threading.Lock(),
        active_threads={thread: key for key, thread in threads.items()},
        state=SimpleNamespace(tasks={key: SimpleNamespace(state="executing") for key in threads}),
    )


@pytest.fixture
def raised(monkeypatch):
    """Return the threads in which an error was raised; the process is far above each limit."""
    threads: list[int] = []
    monkeypatch.setattr(memory_limit, "own_memory", lambda: 1 << 40)
    monkeypatch.setattr(memory_limit, "_raise_in", lambda thread, _: threads.append(thread))
    return threads


def test_the_task_that_has_run_longest_is_ended_once_and_one_that_waits_for_others_is_not(raised, monkeypatch):
    guarded = worker(1 << 30, waits=1, first=2, second=3)
    guarded.state.tasks["waits"].state = "long-running"
    limit = MemoryLimit(guarded, "rank 1")
    limit._end_task()
    limit._end_task()
    assert raised == [2], "it has some time to release its memory"

    monkeypatch.setattr(memory_limit, "_RELEASE_TIME", 0.0)
    limit._not_before = 0.0
    limit._end_task()
    assert raised == [2, 3]


def test_no_thread_watches_a_rank_without_a_limit():
    before = threading.active_count()
    MemoryLimit(worker(0), "rank 1").start()
    assert threading.active_count() == before


def test_the_error_in_the_thread_has_the_words_and_survives_the_way_to_the_notebook(monkeypatch):
    stop, caught = threading.Event(), []

    def task():
        try:
            while not stop.is_set():
                stop.wait(0.001)
        except MemoryError as error:
            caught.append(error)

    thread = threading.Thread(target=task)
    thread.start()
    monkeypatch.setattr(memory_limit, "own_memory", lambda: 1 << 30)
    MemoryLimit(worker(1 << 30, f=thread.ident), "rank 1")._end_task()
    thread.join(DEADLINE)
    stop.set()
    error = pickle.loads(pickle.dumps(caught[0]))  # noqa: S301  (made by this test)
    assert isinstance(error, MemoryLimitReached)
    assert error.message.startswith("the task 'f' was ended because rank 1 uses 1.00 GiB of its limit of 1.00 GiB")
    assert "--memory" in str(error)


def test_files_in_the_memory_of_a_process_are_not_counted(tmp_path):
    import mmap

    file = tmp_path / "file"
    file.write_bytes(bytes(64 << 20))
    before = memory_limit.own_memory()
    with open(file, "rb") as source, mmap.mmap(source.fileno(), 0, access=mmap.ACCESS_READ) as mapped:
        assert not sum(mapped[::4096])
        assert memory_limit.own_memory() < before + (32 << 20)

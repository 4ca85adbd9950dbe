"""A task that brings its rank near the limit of memory is ended, in its thread and once."""

from __future__ import annotations

import pickle
import threading
import time
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
    """Return the threads in which an error was raised."""
    threads: list[int] = []
    monkeypatch.setattr(memory_limit, "_raise_in", lambda thread, _: threads.append(thread))
    return threads


@pytest.fixture
def use(monkeypatch):
    """Return a function that measures while the process uses some percent of 1 GiB."""

    def measure(limit: MemoryLimit, percent: int) -> None:
        monkeypatch.setattr(memory_limit, "own_memory", lambda: (percent << 30) // 100)
        limit.measure()

    return measure


def test_the_task_that_has_run_longest_is_ended_once_and_one_that_waits_for_others_is_not(raised, use, monkeypatch):
    guarded = worker(1 << 30, waits=1, first=2, second=3)
    guarded.state.tasks["waits"].state = "long-running"
    limit = MemoryLimit(guarded, "rank 1")
    use(limit, 50)
    use(limit, 96)
    use(limit, 96)
    assert raised == [2], "it has some time to release its memory"

    later = time.monotonic() + 60.0
    monkeypatch.setattr(memory_limit, "time", SimpleNamespace(monotonic=lambda: later))
    use(limit, 96)
    assert raised == [2, 3]


def test_tasks_are_not_ended_for_memory_that_was_in_use_before_they_began(raised, use):
    guarded = worker(1 << 30)
    limit = MemoryLimit(guarded, "rank 1")
    use(limit, 96)
    guarded.active_threads |= {1: "small", 2: "idle"}
    guarded.state.tasks |= {key: SimpleNamespace(state="executing") for key in ("small", "idle")}
    for percent in (97, 99, 105):
        use(limit, percent)
    assert raised == []


def test_a_task_that_fills_memory_above_that_of_blocks_is_ended_and_the_next_in_its_thread_is_not(
    raised, use, monkeypatch
):
    monkeypatch.setattr(memory_limit, "_RELEASE_TIME", 0.0)
    guarded = worker(1 << 30, fills=1)
    limit = MemoryLimit(guarded, "rank 1")
    use(limit, 90)
    use(limit, 101)
    assert raised == [1]
    guarded.active_threads[1] = "next"
    guarded.state.tasks["next"] = SimpleNamespace(state="executing")
    use(limit, 102)
    assert raised == [1]


def test_memory_that_is_free_again_counts_for_a_task_that_began_above_the_threshold(raised, use):
    limit = MemoryLimit(worker(1 << 30, f=1), "rank 1")
    for percent in (97, 20, 96):
        use(limit, percent)
    assert raised == [1]


def test_a_task_that_fills_memory_between_two_measurements_is_ended(raised, use):
    guarded = worker(1 << 30)
    limit = MemoryLimit(guarded, "rank 1")
    use(limit, 20)
    guarded.active_threads[1] = "f"
    guarded.state.tasks["f"] = SimpleNamespace(state="executing")
    use(limit, 97)
    assert raised == [1]


def test_no_thread_watches_a_rank_without_a_limit():
    before = threading.active_count()
    MemoryLimit(worker(0), "rank 1").start()
    assert threading.active_count() == before


def test_the_error_in_the_thread_has_the_words_and_survives_the_way_to_the_notebook(use):
    stop, caught = threading.Event(), []

    def task():
        try:
            while not stop.is_set():
                stop.wait(0.001)
        except MemoryError as error:
            caught.append(error)

    thread = threading.Thread(target=task)
    thread.start()
    limit = MemoryLimit(worker(1 << 30, f=thread.ident), "rank 1")
    use(limit, 50)
    use(limit, 100)
    thread.join(DEADLINE)
    stop.set()
    error = pickle.loads(pickle.dumps(caught[0]))  # noqa: S301  (made by this test)
    assert isinstance(error, MemoryLimitReached)
    assert error.message.startswith(
        "the task 'f' was ended because rank 1 uses 1.00 GiB of its limit of 1.00 GiB (--memory, or its share of the "
        "node), 512.00 MiB of it since the task began."
    )
    assert "--memory" in str(error)


def test_files_in_the_memory_of_a_process_are_not_counted(tmp_path):
    import mmap

    file = tmp_path / "file"
    file.write_bytes(bytes(64 << 20))
    before = memory_limit.own_memory()
    with open(file, "rb") as source, mmap.mmap(source.fileno(), 0, access=mmap.ACCESS_READ) as mapped:
        assert not sum(mapped[::4096])
        assert memory_limit.own_memory() < before + (32 << 20)

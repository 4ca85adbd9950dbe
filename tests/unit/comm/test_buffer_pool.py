"""Receive memory is aligned, bounded, used again, and never while anything can see it."""

from __future__ import annotations

import copy
import ctypes
import gc
import itertools
import os
import pickle
import queue
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import sparse
from support.patience import DEADLINE

from workbench.comm import buffer_pool
from workbench.comm.buffer_pool import HUGE, Pool, aligned, slab_size

MIB = 1 << 20
SIZES = [0, 1, 63, 64, 4096, 4097, MIB - 1, MIB, 2 * MIB - 1, 2 * MIB, 2 * MIB + 1, 5 * MIB + 17, 64 * MIB]


def address(memory):
    return np.frombuffer(memory, np.uint8).ctypes.data


def filled(pool, nbytes, value):
    memory = pool.take(nbytes)
    np.frombuffer(memory, np.uint8)[:] = value
    return memory


def received(pool, thing):
    """Take a pickled thing through the pool, as a message of several frames would be."""
    frames = []
    body = pickle.dumps(thing, protocol=5, buffer_callback=frames.append)
    buffers = []
    for frame in frames:
        memory = pool.take(frame.raw().nbytes)
        memory[:] = frame.raw()
        buffers.append(memory)
    return pickle.loads(body, buffers=buffers)  # noqa: S301


def visible(thing):
    """Return all bytes that can be seen through a thing."""
    match thing:
        case tuple() | list():
            return b"".join(visible(part) for part in thing)
        case pd.DataFrame():
            return thing.to_numpy().tobytes()
        case sparse.csr_matrix():
            return visible((thing.data, thing.indices, thing.indptr))
        case pickle.PickleBuffer():
            return bytes(thing)
        case _:
            return thing.tobytes()


def csr(data):
    return sparse.csr_matrix((data, np.arange(len(data)) % 7, np.array([0, len(data)])), shape=(1, 7))


def views(array):
    return array[::2], array[3:90], array[::-1], array[-1:]


def frozen(array):
    array.flags.writeable = False
    return array


def matrix(array, order="C"):
    return np.ndarray((len(array) // 64, 8), np.float64, buffer=array.data, order=order)


def chain(array):
    return array[: len(array) // 64 * 64].view(np.float32).reshape(-1, 16)[1:].T[::2].reshape(2, 4, -1).swapaxes(0, 2)


# From filled memory to what a user might hold in the end.
BUILT = {
    "memoryview": lambda memory: memory,
    "slices of the memoryview": lambda memory: (memory[5:70], memory[128:256].cast("d")[2:], memory.toreadonly()[9:]),
    # of an array: CPython 3.11 crashes when it collects a cycle with one of a memoryview, whosever memory it is
    "pickle buffer": lambda memory: pickle.PickleBuffer(np.frombuffer(memory, np.uint8)),
    "plain array": lambda memory: np.ndarray(memory.nbytes, np.uint8, buffer=memory),
    "array of a slice": lambda memory: np.frombuffer(memory[64:640], np.int32),
    "array of an interface": np.asarray,
    "array of ctypes": lambda memory: np.ctypeslib.as_array((ctypes.c_uint8 * memory.nbytes).from_buffer(memory)),
    "tuple of views": lambda memory: views(np.frombuffer(memory, np.uint8)),
    "read-only array": lambda memory: frozen(np.frombuffer(memory, np.uint8)),
    "array of read-only memory": lambda memory: np.frombuffer(memory.toreadonly(), np.uint8)[7:],
    "Fortran order": lambda memory: matrix(np.frombuffer(memory, np.uint8), "F"),
    "chain of views": lambda memory: chain(np.frombuffer(memory, np.uint8)),
    "records": lambda memory: np.frombuffer(memory, np.uint8)[:64].view([("a", "i4"), ("b", "f4")]).view(np.recarray).b,
    "masked array": lambda memory: np.ma.array(np.frombuffer(memory, np.uint8), copy=False).data[3:],
    "strided": lambda memory: np.lib.stride_tricks.sliding_window_view(np.frombuffer(memory, np.uint8)[:99], 5)[::3],
    "CSR": lambda memory: csr(np.frombuffer(memory, np.uint8)),
    "DataFrame": lambda memory: pd.DataFrame(matrix(np.frombuffer(memory, np.uint8)), copy=False),
    "columns of a DataFrame": lambda memory: pd.DataFrame(matrix(np.frombuffer(memory, np.uint8)), copy=False)[[1, 3]],
}
# From an array to what is sent; views of one array are separate frames.
PICKLED = {
    "array": np.copy,
    "tuple": views,
    "read-only": lambda array: frozen(array.copy()),
    "Fortran": lambda array: np.asfortranarray(matrix(array)),
    "CSR": csr,
    "DataFrame": lambda array: pd.DataFrame(matrix(array)),
}


def view_of(thing):
    match thing:
        case tuple() | list():
            return view_of(thing[0])
        case pd.DataFrame():
            return thing.iloc[1:]
        case sparse.csr_matrix():
            return thing.data[1:]
        case pickle.PickleBuffer():
            return thing.raw()
        case _:
            return thing[len(thing) // 2 :]


class Holder:
    """Holds what was built on memory of a pool, and what was visible through it at first."""

    def __init__(self):
        self.pool = Pool(64 * MIB)
        self.values = itertools.cycle(range(1, 256))
        self.things = []

    def hold(self, thing):
        self.things.append((thing, visible(thing)))

    def look(self):
        for thing, at_first in self.things:
            assert visible(thing) == at_first

    def choose(self, which):
        return self.things.pop(which % len(self.things))[0]

    def build(self, kind, nbytes):
        self.hold(BUILT[kind](filled(self.pool, nbytes, next(self.values))))

    def receive(self, kind, nbytes):
        self.hold(received(self.pool, PICKLED[kind](np.full(nbytes, next(self.values), np.uint8))))

    def drop(self, which):
        self.choose(which)

    def keep_a_view(self, which):
        self.hold(view_of(self.choose(which)))

    def share_a_view(self, which):
        self.hold(view_of(self.things[which % len(self.things)][0]))

    def duplicate(self, which):
        view = view_of(self.choose(which))
        self.hold(view[1:] if isinstance(view, memoryview) else copy.copy(view))

    def tie(self, which):
        loop = [self.choose(which)]
        loop.append(loop)

    def collect(self, which):
        gc.collect()

    def trim(self, which):
        self.pool.trim()


LENGTHS = st.sampled_from([1000, 3000, 4096, 5000])
NEW = st.one_of(
    st.tuples(st.just(Holder.build), st.sampled_from(list(BUILT)), LENGTHS),
    st.tuples(st.just(Holder.receive), st.sampled_from(list(PICKLED)), LENGTHS),
)
OLD = [Holder.drop, Holder.keep_a_view, Holder.share_a_view, Holder.duplicate, Holder.tie, Holder.collect, Holder.trim]
STEPS = st.lists(NEW | st.tuples(st.sampled_from(OLD), st.integers(0, 99)), min_size=5, max_size=60)


@pytest.fixture(scope="module")
def _little_to_search_for_garbage():
    # Not undone, because what the collection of the tests has made is frozen, too.
    gc.collect()
    gc.freeze()


@pytest.mark.usefixtures("_little_to_search_for_garbage")
@settings(max_examples=300)
@given(STEPS)
def test_no_slab_is_used_again_while_anything_can_see_it(steps):
    holder = Holder()

    for step, *what in steps:
        if holder.things or len(what) == 2:
            step(holder, *what)
        holder.look()

    holder.things.clear()
    gc.collect()
    assert holder.pool.statistics().leased == 0


@pytest.mark.parametrize("nbytes", SIZES)
def test_memory_of_every_size_is_writable_bytes_at_an_aligned_address(nbytes):
    pool = Pool(256 * MIB)

    for memory in (pool.take(nbytes), pool.take(nbytes), aligned(nbytes)):
        assert (memory.nbytes, memory.format, memory.ndim, memory.readonly) == (nbytes, "B", 1, False)
        assert memory.c_contiguous
        if nbytes:
            memory[0] = memory[-1] = 7
            assert address(memory) % 64 == 0

    if nbytes >= HUGE:
        assert address(pool.take(nbytes)) % HUGE == 0


def test_long_memory_asks_for_huge_pages_where_the_kernel_has_them():
    memory = Pool(0).take(8 * MIB)
    middle = address(memory) + 4 * MIB
    ours = False

    for line in Path("/proc/self/smaps").read_text(encoding="ascii").splitlines():
        if "-" in (span := line.split()[0]):
            start, _, stop = span.partition("-")
            ours = int(start, 16) <= middle < int(stop, 16)
        elif ours and line.startswith("VmFlags"):
            flags = line.split()

    assert ("hg" in flags) == Path("/sys/kernel/mm/transparent_hugepage").exists()


@given(st.integers(32 << 10, 1 << 40), st.integers(0, 1 << 40))
def test_a_slab_holds_its_message_and_at_most_a_quarter_more(nbytes, other):
    assert nbytes <= slab_size(nbytes) <= nbytes * 1.25
    assert slab_size(slab_size(other)) == slab_size(other)


def test_there_are_four_sizes_of_slabs_for_each_doubling():
    assert len({slab_size(nbytes) for nbytes in range(MIB + 1, 2 * MIB + 1, 64)}) == 4


def test_memory_that_nothing_sees_is_taken_again():
    pool = Pool(MIB)
    memory = pool.take(100_000)
    first = address(memory)
    del memory

    # of a similar length
    again = pool.take(99_000)

    assert address(again) == first
    assert (pool.statistics().taken, pool.statistics().reused) == (2, 1)


def test_the_memory_used_last_is_taken_first():
    pool = Pool(MIB)
    one, two = pool.take(5000), pool.take(5000)
    last = address(one)
    del two
    del one

    assert address(pool.take(5000)) == last


def test_memory_lives_on_without_its_memoryview_and_without_its_pool():
    pool = Pool(MIB)
    memory = filled(pool, 5000, 3)
    array = np.ndarray(5000, np.uint8, buffer=memory)

    memory.release()
    assert pool.statistics().leased_slabs == 1
    del pool
    gc.collect()

    assert (array == 3).all()


def test_the_chain_of_bases_of_a_view_ends_at_the_lease():
    memory = Pool(MIB).take(5000)

    base = np.ndarray(5000, np.uint8, buffer=memory)[3:][4:].view(np.recarray)
    while isinstance(base, np.ndarray):
        base = base.base

    assert base is memory.obj


@pytest.mark.parametrize("kind", BUILT)
def test_memory_in_a_reference_cycle_returns_when_the_cycle_is_collected(kind):
    pool = Pool(MIB)
    loop = [BUILT[kind](filled(pool, 5000, 1))]
    loop.append(loop)
    del loop
    gc.collect()

    assert pool.statistics().leased == 0


def test_memory_that_a_finalizer_brings_back_to_life_is_not_taken_again():
    pool = Pool(MIB)
    saved = []

    class Saving:
        def __init__(self, memory):
            self.memory = memory
            self.myself = self

        def __del__(self):
            saved.append(self.memory)

    Saving(filled(pool, 5000, 1))
    gc.collect()
    filled(pool, 5000, 2)

    assert saved[0].tobytes() == b"\1" * 5000
    saved.clear()
    gc.collect()
    assert pool.statistics().leased == 0


def test_memory_that_dies_while_the_pool_is_at_work_does_not_block():
    pool = Pool(MIB)
    memory = pool.take(5000)

    with pool._lock:
        del memory

    assert pool.statistics().idle == slab_size(5000)


def test_memory_that_dies_in_another_thread_is_taken_again():
    pool = Pool(MIB)
    hand_over = queue.SimpleQueue()
    memory = pool.take(5000)
    first = address(memory)
    hand_over.put(memory)
    del memory

    thread = threading.Thread(target=hand_over.get)
    thread.start()
    thread.join(DEADLINE)

    assert address(pool.take(5000)) == first


def test_threads_take_and_drop_at_once_and_never_see_each_other():
    pool = Pool(8 * slab_size(5000))
    others = queue.SimpleQueue()

    def work(value):
        kept = []
        for turn in range(1500):
            array = np.frombuffer(filled(pool, 5000 + turn % 3 * 4000, value), np.uint8)[turn % 7 :]
            kept.append(array.view(np.recarray) if turn % 2 else array)
            if turn % 5 == 0:
                # dies in whichever thread
                others.put((value, kept.pop(0)))
                owner, array = others.get()
                assert (array == owner).all()
            if turn % 11 == 0:
                pool.trim(slab_size(5000))
            if len(kept) > 4:
                assert all((array == value).all() for array in kept)
                kept.clear()

    with ThreadPoolExecutor(8) as threads:
        for done in [threads.submit(work, value) for value in range(1, 9)]:
            done.result(DEADLINE)

    del done
    statistics = pool.statistics()
    assert (statistics.leased, statistics.taken) == (0, 8 * 1500)
    assert statistics.reused > 0
    assert statistics.idle <= pool.limit


@given(st.lists(st.tuples(st.integers(0, 300_000), st.booleans()), max_size=40), st.integers(0, 500_000))
def test_what_is_idle_never_exceeds_the_limit_and_every_byte_is_accounted_for(takes, limit):
    pool = Pool(limit)
    kept = []
    fresh = 0
    for nbytes, keep in takes:
        before = pool.statistics()
        memory = pool.take(nbytes)
        fresh += slab_size(nbytes) * (pool.statistics().reused == before.reused)
        if keep:
            kept.append(memory)
        del memory

        now = pool.statistics()

        assert now.idle <= limit
        assert now.leased == sum(slab_size(memory.nbytes) for memory in kept)
        assert now.leased_slabs == len(kept)
        assert now.leased + now.idle + now.given_back == fresh


def test_the_slab_that_was_idle_longest_goes_back_first_and_of_equals_the_largest():
    pool = Pool(MIB)
    small, large, late = pool.take(4096), pool.take(8192), pool.take(65536)
    del small, large
    pool.statistics()
    del late

    assert [pool.trim(pool.statistics().idle - 1) for _ in range(3)] == [8192, 4096, 65536]


def test_a_slab_beyond_the_limit_goes_back_at_once_and_not_at_the_cost_of_others():
    pool = Pool(20_000)
    pool.take(8192)
    array = np.frombuffer(filled(pool, MIB, 5), np.uint8)
    assert (array == 5).all()
    del array

    statistics = pool.statistics()

    assert (statistics.leased, statistics.idle, statistics.idle_slabs, statistics.given_back) == (0, 8192, 1, MIB)


def test_only_slabs_that_have_been_idle_for_long_go_back_by_age(monkeypatch):
    now = 0.0
    monkeypatch.setattr(buffer_pool, "time", SimpleNamespace(monotonic=lambda: now))
    pool = Pool(MIB)
    old, young = pool.take(4096), pool.take(8192)
    del old
    assert pool.trim_older(3600) == 0
    now = 3600.0
    del young

    assert pool.trim_older(1800) == 4096
    assert pool.trim_older(0) == 8192


def test_trimmed_memory_is_the_systems_again():
    def resident():
        return int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1]) * os.sysconf("SC_PAGESIZE")

    pool = Pool(256 * MIB)
    before = resident()
    filled(pool, 128 * MIB, 1)
    assert resident() - before > 120 * MIB

    assert pool.trim() == 128 * MIB

    assert resident() - before < 8 * MIB


def test_fewer_than_no_bytes_are_refused():
    with pytest.raises(ValueError, match="-1 bytes of receive memory"):
        Pool(MIB).take(-1)


@pytest.mark.parametrize("nbytes", [1 << 60, 1 << 80])
def test_memory_that_the_system_refuses_is_an_error_that_says_how_much(nbytes):
    pool = Pool(MIB)
    pool.take(4096)

    with pytest.raises(MemoryError, match=f"refused {nbytes} bytes .* 0 bytes are in use"):
        pool.take(nbytes)

    assert pool.statistics().idle == 0


def test_idle_memory_makes_room_before_memory_is_refused():
    program = f"""
import resource
from pathlib import Path
from workbench.comm.buffer_pool import Pool

pool = Pool({1024 * MIB})
pages = int(Path("/proc/self/statm").read_text().split()[0])
limit = pages * resource.getpagesize() + {300 * MIB}
resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
pool.take({200 * MIB})
pool.take({256 * MIB})[-1] = 1
print(pool.statistics().given_back)
"""

    ended = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=DEADLINE, check=False
    )

    assert ended.stderr == ""
    assert int(ended.stdout) == slab_size(200 * MIB)

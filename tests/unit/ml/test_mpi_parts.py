"""Steps of a fit over MPI: the messages of a request, from rank 0 to the other ranks; here the ranks are threads."""

from __future__ import annotations

import bisect
import pickle
import queue
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from support.patience import DEADLINE

from workbench.ml.engine.mpi_parts import RankParts, serve


class Pair:
    """A communicator of two threads that broadcast buffers from rank 0, and reduce on rank 0."""

    def __init__(self, rank, inbox, outbox):
        self.rank, self._inbox, self._outbox = rank, inbox, outbox
        self.calls = []

    def Bcast(self, buffer):  # noqa: N802  (mpi4py's name)
        self.calls.append("Bcast")
        if self.rank == 0:
            self._outbox.put(bytes(buffer))
        else:
            memoryview(buffer).cast("B")[:] = self._inbox.get(timeout=DEADLINE)

    def Reduce(self, sent, received):  # noqa: N802  (mpi4py's name)
        self.calls.append("Reduce")
        if self.rank == 0:
            received[...] = sent + self._inbox.get(timeout=DEADLINE)
        else:
            self._outbox.put(sent)

    def gather(self, value):
        if self.rank == 0:
            return [value, pickle.loads(self._inbox.get(timeout=DEADLINE))]  # noqa: S301  (sent by this test)
        self._outbox.put(pickle.dumps(value))
        return None


class Part:
    """A part that keeps its arguments."""

    def __init__(self, number):
        self.number, self.received = number, []

    def step(self, array):
        self.received.append(array)
        return array * self.number

    def measure(self, data):
        return len(data)

    def name(self, function):
        return function(self.number)

    def refuse(self):
        if self.number == 1:
            raise LookupError("this part has no such rows")
        return 0.0


@pytest.fixture
def pair():
    return pair_of_ranks()


def pair_of_ranks():
    """Return the communicators, and the parts, of two ranks."""
    up, down = queue.SimpleQueue(), queue.SimpleQueue()
    return (Pair(0, up, down), Pair(1, down, up)), (Part(0), Part(1))


def fitted(pair, algorithm):
    """Return the result of an algorithm on rank 0, once the other rank has ended."""
    (comm, other), (part, there) = pair
    with ThreadPoolExecutor() as pool:
        served = pool.submit(serve, other, there)
        parts = RankParts(comm, part, print)
        try:
            result = algorithm(parts)
        finally:
            parts.end()
        served.result(timeout=DEADLINE)
    return result


def test_a_step_is_one_broadcast_and_one_reduction(pair):
    fitted(pair, lambda parts: [parts.sum("step", np.ones(100)) for _ in range(3)])

    (comm, other), _ = pair
    assert comm.calls == other.calls == ["Bcast", "Reduce"] * 3 + ["Bcast"]


def test_requests_of_one_size_are_one_broadcast_from_the_second_on(pair):
    arrays = [np.full(1000, float(number)) for number in range(3)]
    sums = fitted(pair, lambda parts: [parts.sum("step", array) for array in arrays])

    (comm, other), (_, there) = pair
    assert comm.calls == other.calls == ["Bcast", "Bcast", "Reduce", *["Bcast", "Reduce"] * 2, "Bcast"]
    np.testing.assert_array_equal(there.received, arrays)
    np.testing.assert_array_equal(sums, arrays)


def test_a_request_that_just_fills_a_message_is_one_broadcast(monkeypatch):
    messages, broadcast = [], Pair.Bcast
    monkeypatch.setattr(Pair, "Bcast", lambda self, buffer: messages.append(buffer) or broadcast(self, buffer))

    def broadcasts(nbytes):
        """Return the number of broadcasts of a request with so many bytes, and the last byte of the first."""
        del messages[:]
        (comm, _), _ = made = pair_of_ranks()
        assert fitted(made, lambda parts: parts.each("measure", bytes(nbytes))) == [nbytes] * 2
        # The last broadcast ends the other rank.
        return comm.calls.count("Bcast") - 1, bytes(messages[0])[-1:]

    most = bisect.bisect_left(range(1 << 16), 2, key=lambda nbytes: broadcasts(nbytes)[0]) - 1
    assert broadcasts(most) == (1, pickle.STOP), "a shorter message is filled with spaces"
    assert broadcasts(most + 1)[0] == 2


def test_the_message_before_and_after_a_large_request_is_small(pair, monkeypatch):
    sizes, broadcast = [], Pair.Bcast
    monkeypatch.setattr(Pair, "Bcast", lambda self, buffer: sizes.append(len(buffer)) or broadcast(self, buffer))
    large, small = np.arange(1e5), np.ones(1)
    sums = fitted(pair, lambda parts: [parts.sum("step", array) for array in (large, large + 1, small)])

    (comm, _), (_, there) = pair
    assert comm.calls == [*["Bcast", "Bcast", "Reduce"] * 2, "Bcast", "Reduce", "Bcast"]
    # Two ranks pass the request to `Bcast`, two times.
    assert sum(sizes) < 4.1 * large.nbytes
    for array, total, received in zip((large, large + 1, small), sums, there.received, strict=True):
        np.testing.assert_array_equal(total, array)
        np.testing.assert_array_equal(received, array)


def test_arguments_of_a_part_keep_their_values_in_later_requests(pair):
    fitted(pair, lambda parts: [parts.sum("step", np.full(4, float(number))) for number in range(3)])

    _, (_, there) = pair
    np.testing.assert_array_equal(there.received, np.arange(3.0)[:, None] + np.zeros(4))


def test_functions_of_a_notebook_are_sent(pair):
    assert fitted(pair, lambda parts: parts.each("name", lambda number: f"part {number}")) == ["part 0", "part 1"]


def test_the_error_of_a_part_ends_its_rank(pair):
    (comm, other), (part, there) = pair
    comm.Reduce = lambda *_: None  # does not wait for the other rank
    RankParts(comm, part, print).sum("refuse")

    with pytest.raises(LookupError):
        serve(other, there)

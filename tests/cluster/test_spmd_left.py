"""What SPMD calls leave behind: requests, references, orders to end that come too early or too late."""

from __future__ import annotations

import gc
import os
from pickle import UnpicklingError

import dask
import numpy as np
import pytest
from distributed import Client, Event
from support import spmd_left as functions
from support import unpacked
from support.batch import Doing
from support.patience import FACTOR
from support.processes import DEADLINE, until
from support.raised import raises
from support.spmd import be_impatient, be_patient

from workbench import run_on_ranks, spmd
from workbench.collective.client import PendingCall
from workbench.collective.request import request
from workbench.errors import CollectiveFailed, CollectiveTimeout, InvalidRequest, PlacementError


def works(client):
    return run_on_ranks(functions.ranks, client=client, timeout=DEADLINE) == [[0, 1, 2, 3]] * 4


@pytest.mark.mpi_flavor
def test_what_a_failed_call_had_posted_does_not_write_into_the_memory_of_the_next(client4):
    with raises(ValueError, args=("rank 1 fails with a request",)):
        run_on_ranks(functions.fail_with_a_request, client=client4)
    assert run_on_ranks(functions.dirty_zeros, client=client4, timeout=DEADLINE) == [0] * 4


@pytest.mark.mpi_flavor
def test_the_buffer_of_a_call_that_fails_is_detached_and_that_of_one_that_returns_stays(client4):
    with raises(ValueError, args=("a call with a buffer",)):
        run_on_ranks(functions.fail_with_a_buffer, client=client4)
    from_before = [3, 0, 1, 2]
    found = run_on_ranks(functions.send_by_a_buffer, client=client4, timeout=DEADLINE)
    assert found == [(rank, True) for rank in from_before]

    found = run_on_ranks(functions.send_by_a_buffer, detaches=False, client=client4, timeout=DEADLINE)
    assert found == [(rank, None) for rank in from_before]
    with raises(ValueError, args=("a call without a buffer",)):
        run_on_ranks(functions.fail, client=client4)
    assert run_on_ranks(functions.detach_the_buffer, client=client4) == [True] * 4


@pytest.mark.mpi_flavor
def test_what_a_call_posted_and_never_waited_for_takes_no_message_of_the_next(client4):
    run_on_ranks(functions.leave_a_request, client=client4)
    assert run_on_ranks(functions.passed_on, client=client4, timeout=DEADLINE) == [3, 0, 1, 2]


@pytest.mark.mpi_flavor
def test_a_thread_that_a_call_left_takes_no_message_of_the_next(client4):
    run_on_ranks(functions.leave_a_thread, client=client4)
    assert run_on_ranks(functions.passed_on, client=client4, timeout=DEADLINE) == [3, 0, 1, 2]
    for by_name in (False, True):
        assert run_on_ranks(functions.leave_a_server, by_name=by_name, client=client4) == [[rank] for rank in range(4)]
        ended = run_on_ranks(functions.wait_for_the_end_of_the_server, client=client4, timeout=DEADLINE)
        assert ended == [(True, rank) for rank in range(4)]


@pytest.mark.mpi_flavor
def test_a_broadcast_that_one_rank_made_alone_does_not_reach_the_next_call(client4):
    run_on_ranks(functions.broadcast_alone, client=client4)
    assert run_on_ranks(functions.broadcast_to_all, client=client4, timeout=DEADLINE) == ["of this call"] * 4


@pytest.mark.mpi_flavor
@pytest.mark.parametrize("way", ["python after mpi", "any error for nothing"])
def test_a_rank_that_misses_the_order_to_end_is_told_again(client4, way):
    with raises(ValueError, args=("rank 1 does not come",)):
        run_on_ranks(functions.miss_the_end, way, client=client4)
    until("all ranks are back", lambda: not any(client4.run(functions.running).values()))
    assert works(client4)


@pytest.mark.mpi_flavor
@pytest.mark.parametrize("way", ["nothing to receive into", "the same array twice"])
def test_a_large_reduction_that_the_root_alone_cannot_make_is_ended_on_all(client4, way):
    with pytest.raises(Exception) as caught:  # noqa: PT011  (of mpi4py, or of the MPI)
        run_on_ranks(functions.reduce_badly, way, client=client4, timeout=DEADLINE)
    assert "cannot be interrupted" not in str(caught.value.__notes__)
    assert works(client4)


@pytest.mark.mpi_flavor
def test_a_large_reduction_in_place_may_be_told_by_none(client4):
    assert run_on_ranks(functions.reduce_in_place, client=client4, timeout=DEADLINE)[0] == (4.0, 4.0)


def test_the_last_call_holds_nothing_once_it_is_over(client4):
    made = run_on_ranks(functions.rows, client=client4, result="blocks")
    assert all(client4.run(functions.held).values())
    del made
    gc.collect()
    until("the blocks are gone", lambda: not any(client4.run(functions.held).values()))


def test_an_order_to_cancel_that_is_faster_than_the_call_counts(client4):
    asked = request(functions.ranks, [], {}, client=client4, result="ranks", limit=None, timeout=None)
    PendingCall(asked)._cancel()
    until("the order is heard", lambda: client4.run_on_scheduler(heard, asked.call))
    with raises(CollectiveFailed, ranks=()):
        PendingCall(asked).result()
    assert works(client4)


def heard(call, dask_scheduler):
    """Return whether the head has received an order to cancel a call that it does not know; orders stay for a while."""
    return call in dask_scheduler.stream_handlers["workbench_spmd_cancel"].__self__._cancelled


def test_masked_arrays_are_no_blocks(client4):
    with pytest.raises(PlacementError):
        run_on_ranks(functions.masked, client=client4, result="blocks")
    assert np.isclose(run_on_ranks(functions.rows, client=client4, result="blocks").sum().compute(), 4 * 1_234_567)


@pytest.mark.mpi_flavor
def test_what_is_freed_leaves_nothing_of_its_reductions(client4):
    assert run_on_ranks(functions.freed, client=client4, timeout=DEADLINE) == [0] * 4


def test_the_time_of_a_call_is_also_that_of_what_it_needs(client4):
    done = Event("needed", client=client4)
    needed = client4.submit(lambda: Event("needed").wait(DEADLINE), pure=False)
    try:
        with pytest.raises(CollectiveTimeout):
            run_on_ranks(functions.ranks, needed, client=client4, timeout=0.2)
    finally:
        done.set()
    assert works(client4)


@pytest.mark.mpi_flavor
def test_a_message_that_nobody_received_does_not_reach_the_next_call(client4):
    run_on_ranks(functions.send_for_nobody, client=client4, timeout=DEADLINE)
    assert run_on_ranks(functions.pass_on, client=client4, timeout=DEADLINE)[1] == "of this call"


@pytest.mark.mpi_flavor
def test_a_persistent_message_that_nobody_received_does_not_reach_the_next_call(client4):
    run_on_ranks(functions.start_for_nobody, client=client4, timeout=DEADLINE)
    assert run_on_ranks(functions.pass_on, client=client4, timeout=DEADLINE)[1] == "of this call"


@pytest.mark.mpi_flavor
def test_a_request_whose_copy_was_freed_ends_no_rank(client4):
    pids = client4.run(os.getpid)
    run_on_ranks(functions.free_a_copy, client=client4, timeout=DEADLINE)
    assert works(client4)
    assert client4.run(os.getpid) == pids


@pytest.mark.mpi_flavor
def test_messages_that_were_looked_for_count_as_received(client4):
    serials = [run_on_ranks(functions.look_for, client=client4, timeout=DEADLINE) for _ in range(3)]
    assert serials == [serials[0]] * 3


@pytest.mark.mpi_flavor
@pytest.mark.parametrize(
    "function", [functions.send_for_nobody, functions.start_for_nobody, functions.cancel_a_receive]
)
def test_a_call_that_succeeds_costs_no_communicator_whatever_it_leaves(client4, function):
    serial = run_on_ranks(functions.look_for, client=client4, timeout=DEADLINE)
    for _ in range(3):
        run_on_ranks(function, client=client4, timeout=DEADLINE)
    assert run_on_ranks(functions.look_for, client=client4, timeout=DEADLINE) == serial
    assert run_on_ranks(functions.pass_on, client=client4, timeout=DEADLINE)[1] == "of this call"


@pytest.mark.mpi_flavor
@pytest.mark.parametrize("way", ["Revoke", "Set_errhandler"])
def test_what_a_call_does_to_its_communicator_does_not_reach_the_next(client4, way):
    run_on_ranks(functions.spoil, way, client=client4, timeout=DEADLINE)
    assert run_on_ranks(functions.survives, client=client4, timeout=DEADLINE) == [True] * 4


@pytest.mark.parametrize(
    ("way", "kind", "words"),
    [("leave", UnpicklingError, "SystemExit: no license"), ("stop", CollectiveFailed, "StopIteration")],
)
def test_an_argument_that_cannot_be_unpacked_is_told_and_costs_nothing(client4, way, kind, words):
    pids = client4.run(os.getpid)
    with pytest.raises(kind, match=words):
        run_on_ranks(unpacked.size, unpacked.Does(getattr(unpacked, way)), client=client4, timeout=DEADLINE)
    assert works(client4)
    assert client4.run(os.getpid) == pids


def test_code_that_runs_before_or_after_the_function_is_ended_too(client4, tmp_path):
    before, after = tmp_path / "before", tmp_path / "after"
    late = ended_by_its_time(client4, before, unpacked.size, unpacked.Does(unpacked.loop, before))
    assert "had not begun" in late
    late = ended_by_its_time(client4, after, unpacked.slow_to_pack, after)
    assert "was ended. Allow more time" in late
    assert works(client4)


def ended_by_its_time(client, begun, function, argument):
    """Make a call that never ends, with more and more time until its code has begun; return its message."""
    seconds = 0.25
    while seconds < DEADLINE:
        with pytest.raises(CollectiveTimeout) as caught:
            run_on_ranks(function, argument, client=client, timeout=seconds)
        if begun.exists():
            return str(caught.value)
        seconds *= 2
    pytest.fail(f"{function} has not begun")


@pytest.mark.mpi_flavor
@pytest.mark.parametrize("ask", [unpacked.ask, unpacked.ask_secretly, unpacked.debug])
def test_who_asks_for_input_is_told_that_there_is_none(client4, ask):
    with pytest.raises(InvalidRequest) as caught:
        run_on_ranks(ask, client=client4, timeout=DEADLINE)
    assert "cannot be interrupted" not in str(caught.value.__notes__)
    assert works(client4)


def test_a_rank_that_sleeps_in_c_is_in_nobodys_way(client4, tmp_path):
    os.mkfifo(tmp_path / "pipe")
    client4.run_on_scheduler(be_impatient)
    try:
        with pytest.raises(CollectiveTimeout, match=r"ranks 0-3 are in user code at .*, and cannot be interrupted"):
            run_on_ranks(functions.sleep_in_c, tmp_path / "pipe", client=client4, timeout=2 * FACTOR)  # to begin in
    finally:
        client4.run_on_scheduler(be_patient)
    assert list(client4.run(functions.traced).values()) == [4950] * 4
    (tmp_path / "pipe").write_text("wake up")
    until("all ranks are back", lambda: not any(client4.run(functions.running).values()))
    assert works(client4)


def test_who_waits_for_the_turn_is_told_for_whom(cluster4, client4, tmp_path, capsys):
    with Client(cluster4) as other, dask.config.set({"workbench.spmd.watchdog": "0.1 s"}):
        first = spmd(client=other)(functions.wait_for).submit(tmp_path / "end")
        until("it runs", lambda: any(client4.run(functions.running).values()))
        second = PendingCall(request(functions.ranks, [], {}, client=client4, result="ranks", limit=None, timeout=None))
        waiting, printed = Doing(second.result), []
        until("the note", lambda: printed.append(capsys.readouterr().out) or "".join(printed).endswith("\n"))
        assert "".join(printed) == "ranks waits for the end of wait_for\n"
        (tmp_path / "end").touch()
        first.result(DEADLINE)
        assert waiting.result() == [[0, 1, 2, 3]] * 4


def test_a_decorated_function_of_a_module_travels_by_its_name(client4):
    assert functions.decorated() == [(False, 4)] * 4


def test_a_rank_that_was_interrupted_runs_traced_code_as_before(client4):
    assert works(client4)
    with raises(ValueError, args=("rank 1 fails",)):
        run_on_ranks(functions.loop_until_ended, client=client4, timeout=DEADLINE)
    assert list(client4.run(functions.traced).values()) == [4950] * 4
    assert works(client4)

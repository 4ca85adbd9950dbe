"""What travels between a client and the ranks of a call."""

from __future__ import annotations

import asyncio
import linecache
import pickle
import re
import threading
import traceback
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from IPython.core.ultratb import FormattedTB
from support.raised import raises

from workbench.collective import serialize
from workbench.collective.serialize import Placeholder
from workbench.errors import CollectiveFailed
from workbench.mpi.call_state import CallCancelled
from workbench.placement import rows

NOTE = "raised on rank 2, in f"


class Odd(Exception):
    """Has other arguments than it is made with."""

    def __init__(self, first, second):
        super().__init__(f"{first} and {second}")


class Locked(Exception):
    """Cannot be pickled."""

    def __init__(self, words):
        super().__init__(words)
        self.lock = threading.Lock()


class Raising:
    """Raises an error when it arrives."""

    def __init__(self, error):
        self.error = error

    def __reduce__(self):
        return throw, (self.error("needs a GPU"), None)


def throw(error, cause):
    raise error from cause


def caught(error, cause=None):
    """Return an error as it is once it was raised."""
    try:
        throw(error, cause)
    except BaseException as its:  # noqa: BLE001
        return its


def journey(error):
    return serialize.unpack_error(serialize.pack_error(error), NOTE)


@pytest.mark.parametrize(
    "thing", [None, 7, "x", [1, (2, {3: 4})], lambda: 7], ids=["none", "number", "text", "nested", "function"]
)
def test_whatever_can_be_pickled_arrives(thing):
    arrived = serialize.loads(serialize.dumps(thing))
    assert arrived() == 7 if callable(thing) else arrived == thing


@pytest.mark.parametrize("error", [SystemExit, GeneratorExit, asyncio.CancelledError, KeyboardInterrupt])
def test_an_object_whose_reading_would_end_an_event_loop_is_an_error(error):
    contents = serialize.dumps(Raising(error))
    with ThreadPoolExecutor() as threads, raises(pickle.UnpicklingError, args=(f"{error.__name__}: needs a GPU",)):
        threads.submit(serialize.loads, contents).result()


@pytest.mark.parametrize("end", [KeyboardInterrupt, CallCancelled])
def test_ctrl_c_and_the_end_of_a_call_end_the_reading_of_an_object(end):
    with pytest.raises(end):
        serialize.loads(serialize.dumps(Raising(end)))


@pytest.mark.parametrize(
    "thing",
    [[np.float64(1.0), 2, "x"], (np.int8(1),), {"a": np.float32(1.0), np.str_("b"): None}],
    ids=["list", "tuple", "dict"],
)
def test_numbers_and_texts_are_not_pickled_for_a_check(thing, monkeypatch):
    monkeypatch.setattr(serialize, "_WriterForRanks", None)

    serialize.check_for_ranks(thing)


@pytest.mark.parametrize(
    "wrap",
    [
        lambda value: [1, value],
        lambda value: {1: value},
        lambda value: {(1, value): 1},
        lambda value: [[np.float64(1.0), value]],
        lambda value: [np.array([(value,)], dtype=[("x", object)])[0]],
    ],
    ids=["list", "dict", "key", "nested", "record"],
)
def test_what_cannot_be_sent_is_found_among_numbers(wrap):
    with pytest.raises(TypeError):
        serialize.check_for_ranks(wrap(threading.Lock()))


def test_arrays_arrive_as_they_were():
    array = np.arange(12.0).reshape(3, 4)[:, ::2]
    np.testing.assert_array_equal(serialize.loads(serialize.dumps(array)), array)


def test_what_cannot_be_pickled_is_an_error():
    with pytest.raises(TypeError):
        serialize.dumps(threading.Lock())


def test_a_function_that_travels_by_value_keeps_its_file_and_lines():
    def outer():
        def inner():
            return traceback.extract_stack(limit=2)

        return inner()

    sent = serialize.loads(serialize.dumps(outer))

    assert sent.__code__ is not outer.__code__
    lines = [(frame.filename, frame.lineno) for frame in sent()]
    assert lines == [(frame.filename, frame.lineno) for frame in outer()]
    assert lines[0][0] == __file__


def test_slots_are_filled_with_the_values_of_their_numbers():
    args, kwargs = serialize.fill(
        [Placeholder(1), "b", Placeholder(0)], {"x": Placeholder(0), "y": 2}, ["first", "second"]
    )
    assert args == ["second", "b", "first"]
    assert kwargs == {"x": "first", "y": 2}


def test_a_slot_within_an_argument_is_no_slot_of_the_call():
    args, kwargs = serialize.fill([[Placeholder(0)]], {}, ["first"])
    assert (args, kwargs) == ([[Placeholder(0)]], {})


def test_an_error_arrives_as_itself_with_its_traceback_its_cause_and_a_note():
    error = journey(caught(KeyError("seven"), caught(ZeroDivisionError("no"))))
    assert type(error) is KeyError
    assert error.args == ("seven",)
    assert error.__notes__ == [NOTE]
    assert isinstance(error.__cause__, ZeroDivisionError)
    assert "in throw" in traceback.format_tb(error.__traceback__)[-1]


def test_notes_that_an_error_has_stay_before_ours():
    error = caught(ValueError("x"))
    error.add_note("of the user")
    assert journey(error).__notes__ == ["of the user", NOTE]


def test_an_error_that_is_made_with_other_arguments_arrives_all_the_same():
    error = journey(caught(Odd("one", "two")))
    assert type(error) is Odd
    assert str(error) == "one and two"


def test_a_group_of_errors_arrives():
    group = journey(caught(ExceptionGroup("several", [ValueError("x"), KeyError("y")])))
    assert [type(error) for error in group.exceptions] == [ValueError, KeyError]


def test_an_error_that_cannot_be_pickled_arrives_in_words():
    error = journey(caught(Locked("seven locks")))
    assert type(error) is CollectiveFailed
    assert str(error) == f"Locked: seven locks, {NOTE}"
    assert "in throw" in error.__notes__[0]
    assert "seven locks" in error.__notes__[0]


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (SystemExit(3), "SystemExit: 3"),
        (SystemExit(), "SystemExit"),
        (KeyboardInterrupt(), "KeyboardInterrupt"),
        (GeneratorExit(), "GeneratorExit"),
        (StopIteration(7), "StopIteration: 7"),
    ],
    ids=repr,
)
def test_what_would_end_or_confuse_an_event_loop_arrives_in_words(error, words):
    arrived = journey(caught(error))
    assert type(arrived) is CollectiveFailed
    assert str(arrived) == f"{words}, {NOTE}"


def test_an_error_whose_parcel_cannot_be_read_here_arrives_in_words():
    told = serialize.pack_error(caught(ValueError("x"))) | {"parcel": b"nonsense"}
    assert str(serialize.unpack_error(told, NOTE)) == f"ValueError: x, {NOTE}"


def test_frames_of_the_package_that_come_first_are_not_shown():
    with raises(ValueError, args=("x",)) as info:
        rows.call_with_aligned(throw, ValueError("x"), None)
    error = info.value.with_traceback(info.value.__traceback__.tb_next)
    assert [frame.name for frame in traceback.extract_tb(error.__traceback__)] == [
        "call_with_aligned",
        "throw",
    ]
    assert [frame.name for frame in traceback.extract_tb(serialize.strip_internal_frames(error).__traceback__)] == [
        "throw"
    ]


CELL = """\
import workbench

def scale(row):
    factor = 2
    if row == 1:
        raise KeyError(row)
    return factor * row

def scale_all(row):
    try:
        scale(row)
    except KeyError as error:
        raise ValueError("bad row") from error
"""


def test_the_traceback_of_a_rank_points_to_the_line_of_the_cell_that_failed():
    name = "ipykernel_1/161.py"
    linecache.cache[name] = len(CELL), None, CELL.splitlines(keepends=True), name
    namespace = {}
    exec(compile(CELL, name, "exec"), namespace)  # noqa: S102
    try:
        namespace["scale_all"](1)
    except ValueError as failed:
        error = journey(failed)

    text = FormattedTB(mode="Context").text(type(error), error, error.__traceback__, context=5)
    shown = re.sub(r"\x1b\[[\d;]*m", "", text)
    assert [line.strip("-> ") for line in shown.splitlines() if line.startswith("-") and "raise" in line] == [
        "6         raise KeyError(row)",
        '13         raise ValueError("bad row") from error',
    ]

"""Parts are joined in rank order, here or on the ranks, always alike."""

from __future__ import annotations

import functools
import operator

import numpy as np
import pytest
from distributed import get_worker, wait
from support.raised import raises

from workbench import map_blocks, place, reduce
from workbench.errors import InvalidRequest, PlacementError

WORDS = np.array(list("abcdefghijklm"))


def join(left, right):
    """Associative and not commutative: it shows the order."""
    return f"{left}{right}"


@pytest.mark.parametrize("on", ["client", "workers"])
def test_parts_are_joined_in_rank_order(client, on):
    parts = map_blocks("".join, place(WORDS))
    assert reduce(join, parts, on=on) == "abcdefghijklm"


@pytest.mark.parametrize("number", range(1, 10))
def test_a_tree_of_any_size_keeps_the_order(client, number):
    parts = [client.submit(str, index, pure=False) for index in range(number)]
    assert reduce(join, parts, on="workers") == "".join(map(str, range(number)))


@pytest.mark.parametrize("on", ["client", "workers"])
def test_sums_of_floats_are_the_same_each_time(client, on):
    X = place(np.random.default_rng(0).normal(size=(1000, 4)))
    sums = {reduce(operator.add, map_blocks(np.sum, X), on=on) for _ in range(5)}
    assert len(sums) == 1


def test_the_client_joins_as_functools_does(client):
    parts = map_blocks(np.sum, place(np.random.default_rng(0).normal(size=1000)))
    assert reduce(operator.add, parts) == functools.reduce(operator.add, client.gather(parts))


def test_joining_happens_where_the_left_part_lies(client):
    def note(left, right):
        return [*left, get_worker().name, *right]

    parts = map_blocks(lambda block: list(block[:0]), place(WORDS))
    # 0 joins 0 with 1, 2 joins 2 with 3, 0 joins both
    assert reduce(note, parts, on="workers") == [0, 0, 2]


def test_parts_that_were_not_pinned_are_joined_where_they_are(client):
    parts = client.scatter([[number] for number in range(3)], hash=False)
    assert reduce(operator.add, parts, on="workers") == [0, 1, 2]


@pytest.mark.parametrize("on", ["client", "workers"])
def test_blocks_of_a_placed_collection_can_be_joined_themselves(client, on):
    X = place(np.ones((8, 2)))
    np.testing.assert_array_equal(reduce(operator.add, X, on=on), np.full((2, 2), 4.0))


def test_values_are_joined_without_a_cluster():
    assert reduce(operator.add, [1, 2, 3]) == 6


@pytest.mark.parametrize("on", ["client", "workers"])
def test_the_error_of_a_part_is_raised(client, on):
    def fail(block):
        raise ArithmeticError(f"no sum of {len(block)}")

    parts = map_blocks(fail, place(np.ones(8)))
    wait(parts)
    with raises(ArithmeticError, args=("no sum of 2",)):
        reduce(operator.add, parts, on=on)


def test_the_error_of_a_part_that_was_not_pinned_is_raised(client):
    with pytest.raises(ZeroDivisionError):
        reduce(operator.add, [client.submit(operator.truediv, 1, 0), client.submit(abs, -1)], on="workers")


@pytest.mark.parametrize(
    ("parts", "on", "words"),
    [
        ([], "client", r"an empty list of parts\. Pass the list that map_blocks returned"),
        ([], "workers", r"an empty list of parts\. Pass the list that map_blocks returned"),
        (3, "client", r"got 3 for parts\. Pass a list of futures"),
    ],
)
def test_what_is_no_list_of_parts_is_refused(parts, on, words):
    with pytest.raises(TypeError, match=words):
        reduce(operator.add, parts, on=on)


def test_values_are_refused_on_the_workers(client):
    with pytest.raises(TypeError, match=r'takes only futures.*Use on="client"'):
        reduce(operator.add, [client.submit(abs, 1), 2], on="workers")


def test_another_place_is_refused():
    with raises(InvalidRequest, option="on", given="worker"):
        reduce(operator.add, [1], on="worker")


def test_a_collection_that_is_not_placed_is_refused(client):
    import dask.array as da

    with pytest.raises(PlacementError):
        reduce(operator.add, da.ones(4))

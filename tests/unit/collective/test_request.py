"""What a request for a call takes along, and what it refuses to."""

from __future__ import annotations

import functools
import tracemalloc

import dask.array as da
import numpy as np
import pytest
from distributed import Client
from distributed.protocol import dumps

from workbench import place, spmd
from workbench.collective import rank_call, serialize
from workbench.collective import request as requests
from workbench.collective.globals import taken_along
from workbench.collective.rank_call import SpmdCall
from workbench.errors import InvalidRequest


def request(function, *args, client):
    return requests.request(function, args, {}, client=client, result="ranks", world=None, limit=None, timeout=None)


def mean_of(table):
    def mean(comm, factor=1):
        return table[comm.rank :: comm.size].mean() * factor

    return mean


def test_a_function_with_a_large_table_is_broadcast_as_the_last_argument(client):
    made = request(mean_of(np.ones(200_000)), 2, client=client)

    contents = made.message["work"]["contents"]
    assert contents is None
    ((number, whole),) = made.large.items()
    assert [len(keys) for keys in made.keys] == [number + 1]
    call = SpmdCall("0", "mean", 0, (0,))
    assert call.unpack(contents, [whole]) == {}
    assert call._function(type("Comm", (), {"rank": 0, "size": 1})) == 2


def test_a_call_without_a_client_uses_that_of_its_futures(client, local_cluster):
    with Client(local_cluster, set_as_default=False) as other:
        assert request(len, other.submit(len, []), client=None).client is other


def test_a_small_function_goes_with_the_request(client):
    made = request(mean_of(np.ones(8)), client=client)

    assert (made.large, made.keys) == ({}, [[]])
    assert callable(serialize.loads(made.message["work"]["contents"])[0])


def test_a_function_that_takes_too_much_along_is_refused_with_the_names_and_sizes(client, monkeypatch):
    monkeypatch.setattr(requests, "_TOO_LARGE", 1 << 20)

    with pytest.raises(
        InvalidRequest,
        match=r"^mean and .* have 1\.53 MiB: table \(1\.53 MiB\)\. The limit is 1\.00 MiB\. .* arguments",
    ):
        request(mean_of(np.ones(200_000)), client=client)


def test_a_function_that_takes_too_much_along_is_not_copied(client, monkeypatch):
    monkeypatch.setattr(requests, "_TOO_LARGE", 1 << 20)
    table = np.zeros(25 << 20)
    tracemalloc.start()
    try:
        with pytest.raises(InvalidRequest):
            request(mean_of(table), client=client)
        assert tracemalloc.get_traced_memory()[1] < table.nbytes / 2
    finally:
        tracemalloc.stop()


TABLE = np.ones(1000)


class Model:
    weights = TABLE

    def fit(self, comm):
        return helper(comm)


def helper(comm):
    return TABLE[comm.rank]


def test_what_functions_that_are_called_and_methods_use_is_named_too():
    assert taken_along(functools.partial(helper)) == {"TABLE": 8000}
    assert set(taken_along(Model().fit)) == {"self", "TABLE"}
    assert taken_along(print) == {}


def test_attributes_are_no_variables_and_functions_within_use_some():
    def outer(comm, model, rate=TABLE[:2]):
        return comm.TABLE, [helper(each) for each in model.Model]

    assert taken_along(outer) == {"rate": 16, "TABLE": 8000}
    assert set(taken_along(spmd(outer))) == {"rate", "TABLE"}


def later(comm):
    return PLACED["of later"] if comm.rank else None


PLACED = {}


@pytest.mark.parametrize(
    ("variable", "words"),
    [
        (lambda X, _: X, "the variable given, which is or has a dask.Array"),
        (lambda _, future: future, "the variable given, which is or has a distributed.Future"),
        (lambda X, _: {"rows": [X]}, "the variable given, which is or has a dask.Array"),
    ],
    ids=["collection", "future", "in a dict"],
)
@pytest.mark.parametrize("use", ["closure", "default", "within", "argument"])
def test_what_lies_on_the_ranks_is_refused_as_a_variable(client, variable, words, use):
    given = variable(place(np.ones((8, 2)), client=client), client.submit(len, "abc"))

    def fitted(comm):
        return given

    uses = {
        "closure": fitted,
        "default": lambda _, given=given: given,
        "within": spmd(functools.wraps(fitted)(lambda comm: [fitted(comm)])),
        "argument": lambda comm, objective: objective(comm),
    }
    arguments = [fitted] if use == "argument" else []
    with pytest.raises(InvalidRequest, match=rf"uses {words}\. Pass given as an argument: "):
        request(uses[use], *arguments, client=client)


def test_a_global_of_a_function_that_is_called_is_refused_too(client, monkeypatch):
    monkeypatch.setitem(PLACED, "of later", place(np.ones((8, 2)), client=client))
    with pytest.raises(InvalidRequest, match=r"uses the variable PLACED, which is or has a dask\.Array"):
        request(lambda comm: [later(comm)], client=client)


def test_a_lazy_collection_may_be_a_variable(client):
    lazy = da.ones(8, chunks=2)
    assert request(lambda _: lazy.sum().compute(), client=client).large == {}


def test_what_lies_on_the_ranks_is_refused_at_any_depth(client):
    held = [1, ("a", {"pairs": [{client.submit(len, "abc"), 2}]})]
    held.append(held)
    with pytest.raises(
        InvalidRequest, match=r"a distributed\.Future is inside a list\. Pass placed arrays and futures"
    ):
        request(mean_of(np.ones(8)), held, client=client)


def test_a_large_value_travels_beside_the_message_and_not_within_it():
    told = rank_call._of_value(bytes(2 << 20), None)
    frames = dumps(told)

    assert told["nbytes"] > 2 << 20
    assert max(len(frame) for frame in frames[:2]) < 1000
    assert rank_call._of_value(bytes(2 << 20), 1 << 20) == {"nbytes": told["nbytes"]}
    assert isinstance(rank_call._of_value(b"small", None)["value"], bytes)

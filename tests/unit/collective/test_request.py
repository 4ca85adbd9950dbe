"""What a request for a call takes along, and what it refuses to."""

from __future__ import annotations

import functools
import re
import tracemalloc
from dataclasses import dataclass

import dask.array as da
import numpy as np
import pandas as pd
import pytest
from distributed import Client
from distributed.protocol import dumps
from support.raised import raises

from workbench import place, spmd
from workbench.cells import client as cells_client
from workbench.collective import rank_call, serialize
from workbench.collective import request as requests
from workbench.collective.broadcast import broadcast
from workbench.collective.rank_call import SpmdCall
from workbench.errors import InvalidRequest
from workbench.placement.inside import taken_along


def request(function, *args, client):
    return requests.request(function, args, {}, client=client, result="ranks", limit=None, timeout=None)


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
    assert call.function(type("Comm", (), {"rank": 0, "size": 1})) == 2


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


@dataclass
class Holder:
    value: object

    @spmd
    def fit(self, comm):
        return self.value

    def __call__(self, comm):
        return self.value


def nested(given):
    def fitted(comm):
        return given

    return fitted


# Functions and arguments that take a value along, and the name of the value in the message.
WAYS = {
    "closure": lambda given: ([nested(given)], ", given,"),
    "default": lambda given: ([lambda _, given=given: given], ", given,"),
    "within": lambda given: ([spmd(functools.wraps(nested(given))(lambda comm: [comm]))], ", given,"),
    "argument that is a function": lambda given: ([mean_of, nested(given)], ", given,"),
    "partial": lambda given: ([functools.partial(lambda _, value: value, value=given)], ""),
    "object that is a function": lambda given: ([Holder(given)], ""),
    "attribute of an argument": lambda given: ([mean_of, Holder(given)], ", Holder.value,"),
    "attribute of an attribute": lambda given: ([mean_of, Holder(Holder(given))], ""),
    "attribute of a variable": lambda given: ([nested(Holder(given))], ", given.value,"),
    "method": lambda given: ([Holder(given).fit], ", self.value,"),
    "large argument": lambda given: ([mean_of, Large((given, np.ones(1 << 18)))], ", Large.value,"),
}


class Large(Holder):
    def __sizeof__(self):
        return 1 << 21


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("kind", ["dask.Array", "distributed.Future", "dask.DataFrame"])
def test_what_lies_on_the_ranks_is_refused_wherever_a_call_takes_it_along(client, way, kind):
    given = {
        "dask.Array": lambda: place(np.ones((8, 2)), client=client),
        "distributed.Future": lambda: client.submit(len, "abc"),
        "dask.DataFrame": lambda: place(pd.DataFrame({"a": range(8)}), client=client),
    }[kind]()
    (function, *arguments), path = WAYS[way](given)
    words = rf"uses a {re.escape(kind)}{re.escape(path)} inside of another object or as a variable\. Pass placed"
    with pytest.raises(InvalidRequest, match=words):
        request(function, *arguments, client=client)


def test_a_broadcast_and_a_name_of_a_cell_refuse_what_a_call_refuses(client):
    held = Holder(place(np.ones((8, 2)), client=client))
    words = r"Holder.*cannot be sent to the ranks: ValueOnRanks: a dask\.Array is inside this object\. Pass placed"
    for send in (
        lambda: broadcast(client, held),
        lambda: cells_client.run("held", {"held": held}, client=client),
    ):
        with pytest.raises(InvalidRequest, match=words):
            send()


def test_a_global_of_a_function_that_is_called_is_refused_too(client, monkeypatch):
    monkeypatch.setitem(PLACED, "of later", place(np.ones((8, 2)), client=client))

    def first(comm):
        return [later(comm)]

    for function in (first, later):
        # As in a notebook, whose functions are sent with their globals.
        monkeypatch.setattr(function, "__module__", "__main__")
    with pytest.raises(InvalidRequest, match=r"uses a dask\.Array, PLACED, inside of another object or as a variable"):
        request(first, client=client)


def test_a_lazy_collection_may_be_a_variable(client):
    of_placed = place(np.ones((8, 2)), client=client) + 1
    for lazy in (da.ones(8, chunks=2), of_placed):
        contents = request(lambda _, lazy=lazy: lazy.sum(), client=client).message["work"]["contents"]
        with client.as_current():
            assert serialize.loads(contents)[0](None).compute() == lazy.sum().compute()


def test_what_lies_on_the_ranks_is_refused_at_any_depth(client):
    held = [1, ("a", {"pairs": [{client.submit(len, "abc"), 2}]})]
    held.append(held)
    with raises(InvalidRequest, given="a distributed.Future"):
        request(mean_of(np.ones(8)), held, client=client)


def test_a_large_value_travels_beside_the_message_and_not_within_it():
    told = rank_call.pack_value(bytes(2 << 20), None)
    frames = dumps(told)

    assert told["nbytes"] > 2 << 20
    assert max(len(frame) for frame in frames[:2]) < 1000
    assert rank_call.pack_value(bytes(2 << 20), 1 << 20) == {"nbytes": told["nbytes"]}
    assert isinstance(rank_call.pack_value(b"small", None)["value"], bytes)

"""Whatever is sent arrives as it would by tcp, bit by bit, however its frames travel."""

from __future__ import annotations

import asyncio
import contextlib
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import dask
import numpy as np
import pandas as pd
import scipy.sparse
from distributed.comm import CommClosedError
from distributed.protocol import to_serialize
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from support.ends import DEADLINE, End
from support.world import on_ranks

# Where something else begins: reading in runs, sending in one piece, the pool, tcp's own shards.
BORDERS = (1 << 16, 1 << 17, 1 << 18, 1 << 20)
THRESHOLDS = ("1 B", "1 KiB", "64 KiB", "128 KiB", "1 MiB")

sizes = st.one_of(st.integers(0, 100), st.sampled_from(BORDERS).flatmap(lambda size: st.integers(size - 1, size + 1)))


def noise(size: int, seed: int) -> bytes:
    return np.random.default_rng(seed).bytes(size)


@st.composite
def blobs(draw):
    kind = draw(st.sampled_from([bytes, bytearray, memoryview]))
    return kind(noise(draw(sizes), draw(st.integers(0, 9))))


@st.composite
def large_arrays(draw):
    dtype = draw(st.sampled_from(["u1", "i2", ">i4", "f4", "f8", "c16"]))
    return np.frombuffer(noise(draw(sizes) // 16 * 16, 0), dtype)


@st.composite
def views(draw):
    dtypes = st.one_of(hnp.scalar_dtypes(), hnp.byte_string_dtypes(), hnp.unicode_string_dtypes(), hnp.array_dtypes())
    array = draw(st.one_of(large_arrays(), hnp.arrays(dtypes, hnp.array_shapes(min_dims=0, min_side=0, max_side=6))))
    how = draw(st.sampled_from(["plain", "Fortran", "every second", "backwards", "transposed", "wide", "object"]))
    if how == "Fortran":
        array = np.asfortranarray(array)
    elif how == "every second" and array.ndim:
        array = array[::2]
    elif how == "backwards" and array.ndim:
        array = array[::-1]
    elif how == "transposed":
        array = array.T
    elif how == "wide":
        array = np.broadcast_to(array, (3, *array.shape))
    elif how == "object":
        array = np.array([array, "text", None], dtype=object)
    array.flags.writeable = draw(st.booleans()) and array.flags.writeable
    return array


@st.composite
def tables(draw):
    rows, random = draw(st.integers(0, 3000)), np.random.default_rng(0)
    columns = {"x": random.random(rows), "n": random.integers(0, 9, rows), "text": [f"r{n % 7}" for n in range(rows)]}
    return pd.DataFrame(columns).astype({"text": draw(st.sampled_from(["object", "category", "str"]))})


@st.composite
def sparse(draw):
    shape = draw(st.tuples(st.integers(1, 300), st.integers(1, 300)))
    random = np.random.default_rng(0)
    return scipy.sparse.random(*shape, 0.2, format=draw(st.sampled_from(["csr", "csc", "coo"])), random_state=random)


small = st.one_of(st.none(), st.booleans(), st.integers(-(2**63), 2**63 - 1), st.floats(), st.text(), st.binary())
large = st.one_of(views(), blobs(), tables(), sparse()).map(to_serialize)
many = st.builds(
    lambda count, size: [to_serialize(np.full(size, number % 256, np.uint8)) for number in range(count)],
    st.integers(0, 300),
    st.integers(0, 80),
)
messages = st.dictionaries(
    st.text(max_size=5),
    st.recursive(
        st.one_of(small, large, many),
        lambda inner: st.lists(inner, max_size=5) | st.dictionaries(st.text(max_size=3), inner, max_size=5),
        max_leaves=12,
    ),
    max_size=5,
)


def form(value: Any) -> Any:
    """Return all that can be seen of a value, so that it can be compared."""
    kind = type(value).__name__
    if isinstance(value, np.ndarray):
        content = [form(item) for item in value.flat] if value.dtype.hasobject else value.tobytes()
        return kind, value.dtype.descr, value.shape, value.strides, value.flags.writeable, content
    if isinstance(value, (list, tuple, dict)):
        items = value.items() if isinstance(value, dict) else value
        return kind, [form(item) for item in items]
    if isinstance(value, pd.DataFrame):
        return kind, value.dtypes.to_dict(), value.to_json(double_precision=15)
    if scipy.sparse.issparse(value):
        return kind, value.shape, [form(item) for item in vars(value).values() if isinstance(item, np.ndarray)]
    return kind, bytes(value) if isinstance(value, (bytes, bytearray, memoryview)) else repr(value)


def arrays_in(value: Any) -> list[np.ndarray]:
    """Return the arrays whose memory is a frame."""
    if isinstance(value, np.ndarray):
        return [] if value.dtype.hasobject or not value.size else [value]
    if isinstance(value, dict):
        value = list(value.values())
    return [array for item in value for array in arrays_in(item)] if isinstance(value, (list, tuple)) else []


async def echo(comm: Any) -> None:
    with contextlib.suppress(CommClosedError):
        while True:
            await comm.write(await comm.read())
    await comm.close()


@on_ranks
async def test_any_message_arrives_as_by_tcp(end: End):
    if end.rank > 1:
        return  # what one pair draws is enough
    comms = {"tcp": await end.pair(end.plain_scheme, left=end.plain_scheme, deserialize=end.left)}
    for threshold in THRESHOLDS:
        with dask.config.set({"workbench.comm.threshold": threshold}):
            comms[threshold] = await end.pair(deserialize=end.left)
    if not end.left:
        await asyncio.gather(*map(echo, comms.values()))
        return
    loop = asyncio.get_running_loop()

    async def there_and_back(comm, message):
        await comm.write(message)
        return await comm.read()

    def exchange(by, message):
        return asyncio.run_coroutine_threadsafe(there_and_back(comms[by], message), loop).result(DEADLINE)

    @settings(max_examples=25, deadline=None, database=None, suppress_health_check=list(HealthCheck))
    @given(messages, st.sampled_from(THRESHOLDS))
    def compare(message, threshold):
        expected, received = exchange("tcp", message), exchange(threshold, message)
        assert form(received) == form(expected)
        for array in arrays_in(received):
            assert array.ctypes.data % 64 == 0, (array.dtype, array.shape, array.strides)

    with ThreadPoolExecutor(1) as thread:
        await loop.run_in_executor(thread, compare)
    for comm in comms.values():
        await comm.close()

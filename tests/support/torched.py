"""What tests of `workbench.torch` run on ranks, which import this file by its name: functions import PyTorch."""

from __future__ import annotations

import contextlib
import os
import sys
import time
from functools import reduce
from pathlib import Path
from types import SimpleNamespace
from unittest import mock

import numpy as np

from workbench.errors import CollectiveFailed, WorkbenchError
from workbench.torch import average, batches, distributed, tensor

DTYPES = ["float64", "float32", "int64", "int32", "int16", "int8", "uint8", "bfloat16", "float16", "bool", "complex128"]
# Those of `workbench.bench.torch_operations`, whose import loads MPI.
OPERATIONS = ("all_reduce", "broadcast", "all_gather", "reduce_scatter", "all_to_all")


def of_part(comm, size, function, *args, device="cpu"):
    """Call a function on parts of the ranks, of this size each; what the function makes is on the device."""
    import torch

    part = comm.Split(comm.rank // size)
    with torch.device(device):
        return function(part, *args)


def _values(rank, dtype, shape=(5, 3)):
    """Return a tensor of a rank: small whole numbers, which every type holds, and the same as NumPy has them."""
    import torch

    numbers = np.random.default_rng(rank).integers(0, 2 if dtype == "bool" else 4, size=shape)
    return torch.from_numpy(numbers).to(torch.get_default_device(), getattr(torch, dtype)), numbers


def _same(tensor, expected):
    import torch

    found = tensor.to(torch.complex128 if tensor.is_complex() else torch.float64).cpu().numpy()
    np.testing.assert_array_equal(found, np.asarray(expected, found.dtype))


def reductions(comm, dtype):
    """Compare each reduction of tensors of a type with NumPy; return the names of the operations."""
    import torch.distributed as dist

    ops = {"SUM": np.add, "PRODUCT": np.multiply, "MAX": np.maximum, "MIN": np.minimum}
    if dtype.startswith(("int", "uint")):
        ops |= {"BAND": np.bitwise_and, "BOR": np.bitwise_or, "BXOR": np.bitwise_xor}
    if dtype == "bool":
        ops = {"SUM": np.maximum, "PRODUCT": np.minimum, "MAX": np.maximum, "MIN": np.minimum, "BXOR": np.bitwise_xor}
    if dtype.startswith("complex"):
        ops = {"SUM": np.add}
    with distributed(comm):
        n, me = comm.size, comm.rank
        parts = [_values(rank, dtype)[1] for rank in range(n)]
        for name, of_two in ops.items():
            op, whole = getattr(dist.ReduceOp, name), reduce(of_two, parts)
            mine = _values(me, dtype)[0]
            dist.all_reduce(mine, op=op)
            _same(mine, whole)
            mine = _values(me, dtype)[0].T  # not contiguous
            dist.all_reduce(mine, op=op)
            _same(mine, whole.T)
            mine = _values(me, dtype)[0]
            dist.reduce(mine, n - 1, op=op)
            _same(mine, whole if me == n - 1 else parts[me])
            if dtype.startswith("complex"):
                continue
            wide = reduce(of_two, [_values(rank, dtype, (n, 2))[1] for rank in range(n)])
            out = mine.new_empty(2)
            dist.reduce_scatter_single(out, _values(me, dtype, (n, 2))[0].flatten(), op=op)
            _same(out, wide[me])
            dist.reduce_scatter(out, list(_values(me, dtype, (n, 2))[0]), op=op)
            _same(out, wide[me])
        if mine.is_floating_point():
            mine = _values(me, dtype)[0]
            dist.all_reduce(mine, op=dist.ReduceOp.AVG)
            np.testing.assert_allclose(mine.double().cpu().numpy(), sum(parts) / n, rtol=1e-2)
    return [*ops]


def collectives(comm, dtype):
    """Compare each collective that moves tensors of a type with NumPy."""
    import torch
    import torch.distributed as dist

    with distributed(comm):
        n, me = comm.size, comm.rank
        mine, parts = _values(me, dtype)[0], [_values(rank, dtype)[1] for rank in range(n)]
        sent = mine.clone()
        dist.broadcast(sent, n - 1)
        _same(sent, parts[n - 1])
        gathered = [torch.empty_like(mine) for _ in range(n)]
        dist.all_gather(gathered, mine)
        _same(torch.stack(gathered), parts)
        one = mine.new_empty(n, *mine.shape)
        dist.all_gather_single(one, mine)
        _same(one, parts)
        gathered = [torch.empty_like(mine) for _ in range(n)] if me == 0 else None
        dist.gather(mine, gathered, 0)
        if me == 0:
            _same(torch.stack(gathered), parts)
        received = torch.empty_like(mine)
        dist.scatter(received, [_values(rank, dtype)[0] for rank in range(n)] if me == n - 1 else None, n - 1)
        _same(received, parts[me])
        table = [_values(10 * me + rank, dtype)[0] for rank in range(n)]
        outputs = [torch.empty_like(mine) for _ in range(n)]
        expected = [_values(10 * rank + me, dtype)[1] for rank in range(n)]
        dist.all_to_all(outputs, table)
        _same(torch.stack(outputs), expected)
        one = torch.empty_like(torch.stack(table))
        dist.all_to_all_single(one, torch.stack(table))
        _same(one, expected)
        # Rank r sends r + 1 rows to each.
        rows = _values(me, dtype, (n * (me + 1), 2))[0]
        out = rows.new_empty(sum(range(1, n + 1)), 2)
        dist.all_to_all_single(out, rows, [rank + 1 for rank in range(n)], [me + 1] * n)
        whole = [_values(rank, dtype, (n * (rank + 1), 2))[1].reshape(n, rank + 1, 2)[me] for rank in range(n)]
        _same(out, np.concatenate(whole))


def large(comm):
    """Return sums of a tensor of several pieces that is in a row and of one that is not, and of a sum that follows."""
    import torch
    import torch.distributed as dist

    with distributed(comm):
        row, columns = torch.arange(3 << 20) % 1000 + comm.rank, torch.ones(1300, 1024).T
        work = dist.all_reduce(row, async_op=True)
        dist.all_reduce(columns)
        work.wait()
        doubled = 2 * row
        row.zero_()
        n = comm.size
        expected = (torch.arange(3 << 20) % 1000 * n + n * (n - 1) // 2) * 2
        assert torch.equal(doubled, expected)
        assert columns.eq(n).all()


def others(comm):
    """Use what else torch.distributed has: messages, objects, groups, coalesced and functional calls."""
    import torch
    import torch.distributed as dist

    with distributed(comm) as world:
        n, me = comm.size, comm.rank
        assert (dist.get_rank(), dist.get_world_size(), dist.get_backend()) == (me, n, "workbench")
        assert torch.get_num_threads() == int(os.environ.get("OMP_NUM_THREADS", "1"))
        dist.barrier()
        _messages(n, me)
        _objects(n, me)
        _coalesced(n, me, world)
        _groups(n, me)
        return torch.__version__


def _messages(n, me):
    import torch
    import torch.distributed as dist

    right, left = (me + 1) % n, (me - 1) % n
    if n > 1:
        back = torch.empty(3)
        sending, receiving = dist.isend(torch.full((3,), float(me)), right, tag=7), dist.irecv(back, left, tag=7)
        sending.wait()
        receiving.wait()
        assert back.tolist() == [left] * 3
        if me == 0:
            assert {dist.recv(back) for _ in range(n - 1)} == set(range(1, n))
        else:
            dist.send(torch.ones(3), 0)
        dist.barrier()
        columns = torch.zeros(2, 3).T
        ops = [dist.P2POp(dist.isend, torch.ones(3, 2) * me, right), dist.P2POp(dist.irecv, columns, left)]
        for work in dist.batch_isend_irecv(ops):
            work.wait()
        assert columns.tolist() == [[left] * 2] * 3


def _objects(n, me):
    import torch.distributed as dist

    found = [None] * n
    dist.all_gather_object(found, {"rank": me})
    assert found == [{"rank": rank} for rank in range(n)]
    found = [me, "x"]
    dist.broadcast_object_list(found, n - 1)
    assert found == [n - 1, "x"]
    found = [None] * n if me == 0 else None
    dist.gather_object(me, found)
    assert found == (list(range(n)) if me == 0 else None)
    found = [None]
    dist.scatter_object_list(found, list(range(n)) if me == 0 else None)
    assert found == [me]


def _coalesced(n, me, world):
    import torch
    import torch.distributed as dist
    import torch.distributed._functional_collectives as functional

    tensors = [torch.full((2,), me), torch.full((3,), 2.0 * me), torch.full((1,), 3.0 * me)]
    # PyTorch has no public name for this context.
    manager = dist.distributed_c10d._coalescing_manager
    with manager(async_ops=True) as coalesced:
        for tensor in tensors:
            dist.all_reduce(tensor)
    coalesced.wait()
    total = n * (n - 1) / 2
    assert [tensor[0].item() for tensor in tensors] == [total, 2 * total, 3 * total]
    work = dist.all_reduce(tensor := torch.ones(4), async_op=True)
    work.wait()
    assert work.is_completed()
    assert tensor.tolist() == [n] * 4
    scattered, gathered = [torch.empty(1), torch.empty(2)], [torch.empty(n), torch.empty(2 * n)]
    with manager():
        for out, length in zip(scattered, (1, 2), strict=True):
            dist.reduce_scatter_single(out, torch.ones(length * n))
    with manager():
        for out, part in zip(gathered, scattered, strict=True):
            dist.all_gather_single(out, part)
    assert [out.tolist() for out in gathered] == [[n] * n, [n] * 2 * n]
    summed = functional.all_reduce(torch.ones(3), "sum", world)
    assert functional.wait_tensor(summed).tolist() == [n] * 3
    sparse = torch.sparse_coo_tensor([[me, n]], [1.0, 2.0], (n + 1,))
    dist.all_reduce(sparse)
    assert sparse.to_dense().tolist() == [1.0] * n + [2.0 * n]


def _groups(n, me):
    import torch
    import torch.distributed as dist

    low, all_again = dist.new_group(list(range((n + 1) // 2))), dist.new_group(list(range(n)))
    ones = torch.ones(2)
    dist.all_reduce(ones, group=all_again)
    if me < (n + 1) // 2:
        dist.all_reduce(ones, group=low)
        own = dist.new_group(list(range((n + 1) // 2)), use_local_synchronization=True)
        dist.barrier(own)
    assert ones.tolist() == [n * ((n + 1) // 2 if me < (n + 1) // 2 else 1)] * 2
    pairs, _ = dist.new_subgroups(1)
    dist.barrier(pairs)
    if n == 4:
        mesh = dist.device_mesh.init_device_mesh("cpu", (2, 2), mesh_dim_names=("replica", "stage"))
        number = torch.tensor([float(me)])
        dist.all_reduce(number, group=mesh.get_group("stage"))
        assert number.item() == [1, 1, 5, 5][me]


def net(seed=0, dtype="float64"):
    import torch

    torch.manual_seed(seed)
    layers = torch.nn.Linear(6, 16), torch.nn.Tanh(), torch.nn.Linear(16, 16), torch.nn.ReLU(), torch.nn.Linear(16, 3)
    return torch.nn.Sequential(*layers).to(getattr(torch, dtype))


def _rows(dtype):
    import torch

    source = np.random.default_rng(5)
    device = torch.get_default_device()
    X = torch.from_numpy(source.normal(size=(32, 6))).to(device, getattr(torch, dtype))
    return X, torch.from_numpy(source.integers(0, 3, size=32)).to(device)


def train(model, part, steps, *, each=lambda _: None):
    """Return the losses of a training on rows, a part of each step's batch."""
    import torch

    X, y = _rows(str(next(model.parameters()).dtype).partition(".")[2])
    optimizer, losses = torch.optim.Adam(model.parameters(), 1e-2), []
    for step in range(steps):
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(model(X[part]), y[part])
        each(step)
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    return torch.stack(losses)


def ddp(comm, dtype, steps=30):
    """Return the losses of data-parallel training, and those of one process."""
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel

    rows = 32 // comm.size
    with distributed(comm):
        losses = train(
            DistributedDataParallel(net(dtype=dtype)), slice(comm.rank * rows, (comm.rank + 1) * rows), steps
        )
        dist.all_reduce(losses, op=dist.ReduceOp.AVG)
    return losses.tolist(), train(net(dtype=dtype), slice(None), steps).tolist()


def two_models(comm):
    """Train two models in each step, each in a separate group, and return the losses beside those of one process."""
    import torch
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel

    rows = 32 // comm.size
    X, y = _rows("float64")
    curves = []
    for part in (slice(comm.rank * rows, (comm.rank + 1) * rows), slice(None)):
        with distributed(comm):
            models = [net(seed) for seed in (1, 2)]
            if part != slice(None):
                groups = [dist.new_group(list(range(comm.size))) for _ in models]
                models = [
                    DistributedDataParallel(model, process_group=group)
                    for model, group in zip(models, groups, strict=True)
                ]
            optimizers, losses = [torch.optim.SGD(model.parameters(), 0.1) for model in models], []
            for _ in range(5):
                first, second = (model(X[part]) for model in models)
                loss = torch.nn.functional.cross_entropy(first + second.tanh(), y[part])
                for optimizer in optimizers:
                    optimizer.zero_grad()
                loss.backward()
                for optimizer in optimizers:
                    optimizer.step()
                losses.append(loss.detach())
            mean = torch.stack(losses)
            dist.all_reduce(mean, op=dist.ReduceOp.AVG)
            curves.append(mean.tolist())
    return curves


def train_until(comm, way, which, path):
    """Train for ever, until a rank does something in the middle of backward."""
    from torch.nn.parallel import DistributedDataParallel

    def fail(_):
        if way == "raises":
            raise ValueError("a bad gradient", time.time())
        os.kill(os.getpid(), 9)

    model = net()

    def each(step):
        if step == 10:
            Path(f"{path}.{comm.rank}").touch()
            if comm.rank == which:
                model[2].weight.register_hook(fail)

    with distributed(comm):
        train(DistributedDataParallel(model), slice(None), 10**9, each=each)


def set_up_for_ever(comm, path):
    """Set torch.distributed up again and again."""
    while True:
        with distributed(comm):
            Path(f"{path}.{comm.rank}").touch()


def set_up_late(comm, which, path):
    """Set torch.distributed up on all ranks but one, which never comes."""
    Path(f"{path}.{comm.rank}").touch()
    while comm.rank == which:
        time.sleep(0.001)
    with distributed(comm):
        pass


def of_rank(comm, X, y, ranks):
    """Return the block of a rank, without its rows unless the rank is one of these."""
    rows = slice(None) if comm.rank in ranks else slice(0)
    return X[rows], y[rows]


def listening(comm):
    """Return how many sockets listen on this rank before a training and in it."""
    import psutil
    import torch
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel

    def count():
        return sum(one.status == psutil.CONN_LISTEN for one in psutil.Process().net_connections("all"))

    before = count()
    with distributed(comm):
        train(DistributedDataParallel(net()), slice(None), 2)
        dist.all_reduce(torch.ones(1))
        return before, count()


def measured(comm, sizes):
    """Return the rows of the collectives bench."""
    from workbench.bench import torch_operations

    return torch_operations.rows(comm, comm, sizes, 1e-3)


def large_mean(comm):
    """Return the mean of numbers whose sum their type does not have."""
    import torch
    import torch.distributed as dist

    with distributed(comm):
        large = torch.full((3,), 60_000, dtype=torch.float16)
        dist.all_reduce(large, op=dist.ReduceOp.AVG)
    return large.tolist()


def fewer_rows_than_ranks(comm):
    """Return how many rows of two this rank has in the one batch of an epoch."""
    rows = np.ones((int(comm.rank < 2), 3))
    [batch] = batches(comm, rows, size=comm.size, drop_last=False)
    return len(batch)


def threads_after(comm):
    """Return torch's number of threads after a training that had another one."""
    import torch

    torch.set_num_threads(3)
    with distributed(comm):
        pass
    return torch.get_num_threads()


def refused(comm, what):
    """Do what cannot be, and return the words of the error."""
    import torch
    import torch.distributed as dist

    class Model:
        def fit(self):
            return "a separate model"

    with contextlib.ExitStack() as stack:
        stack.enter_context(mock.patch.dict(sys.modules, keras=SimpleNamespace(Model=Model)))
        group = stack.enter_context(distributed(comm))
        ways = {
            "fit of Keras": Model().fit,
            "twice": lambda: stack.enter_context(distributed(comm)),
            "average of integers": lambda: dist.all_reduce(torch.ones(2, dtype=torch.int64), op=dist.ReduceOp.AVG),
            "sum of short complex numbers": lambda: dist.reduce_scatter_tensor(
                torch.ones(1, dtype=torch.complex32), torch.ones(comm.size, dtype=torch.complex32)
            ),
            "bits of real numbers": lambda: dist.all_reduce(torch.ones(2), op=dist.ReduceOp.BAND),
            "another memory": lambda: dist.all_reduce(torch.ones(2, device="meta")),
            "sizes": lambda: dist.all_gather_single(torch.ones(3 * comm.size), torch.ones(2)),
            "monitored": dist.monitored_barrier,
            "split": lambda: dist.split_group(split_ranks=[list(range(comm.size))]),
            "gloo": lambda: dist.new_group(backend="gloo"),
            "shrink": lambda: dist.shrink_group([comm.size - 1]),
            "over": lambda: (stack.close(), group.barrier()),
        }
        try:
            ways[what]()
        except (ValueError, RuntimeError, WorkbenchError) as error:
            return f"{type(error).__name__}: {error}"
    return None


def unfitting(comm):
    """Return the words of the errors of collectives whose tensors do not fit; the root of two of them is this rank."""
    import torch
    import torch.distributed as dist

    part = comm.Split(comm.rank)

    def ones(*lengths, dtype=torch.float32):
        return [torch.ones(length, dtype=dtype) for length in lengths]

    ways = {
        "all_gather": lambda: dist.all_gather(ones(*[3] * n), *ones(2)),
        "all_gather of more": lambda: dist.all_gather(ones(*[2] * (n + 1)), *ones(2)),
        "all_gather_single": lambda: dist.all_gather_single(*ones(2 * n, dtype=torch.float64), *ones(2)),
        "reduce_scatter_single": lambda: dist.reduce_scatter_single(*ones(2), *ones(2 * n, dtype=torch.bfloat16)),
        "all_to_all": lambda: dist.all_to_all(ones(*[3] * n), ones(*[2] * n)),
        "equal": lambda: dist.all_to_all_single(*ones(n + 1), *ones(n + 1)),
        "sizes": lambda: dist.all_to_all_single(*ones(4 * n), *ones(2 * n)),
        "large splits": lambda: dist.all_to_all_single(*ones(4), *ones(4), [4] * n, [4] * n),
        "few splits": lambda: dist.all_to_all_single(*ones(4), *ones(4), [4], [4]),
    }

    def swap(sent, received):
        message = dist.isend(sent, n - 1 - ranks.rank)
        try:
            dist.recv(received, n - 1 - ranks.rank)
        finally:
            message.wait()

    ways["recv"] = lambda: swap(*ones(2, dtype=torch.bfloat16), *ones(2))
    alone = {
        "gather": lambda: dist.gather(*ones(2), ones(3)),
        "gather of more": lambda: dist.gather(*ones(2), ones(1, 1)),
        "scatter": lambda: dist.scatter(*ones(1), ones(2)),
        "scatter of more": lambda: dist.scatter(*ones(2), ones(1, 1)),
    }
    said = {}
    for ranks, some in ((comm, ways), (part, alone)):
        with distributed(ranks):
            n = ranks.size
            for name, way in some.items():
                try:
                    way()
                except WorkbenchError as error:
                    said[name] = str(error)
    return said


def to_itself(comm):
    """Return what ranks have after an exchange whose output is its input."""
    import torch
    import torch.distributed as dist

    with distributed(comm):
        numbers = 10 * comm.rank + torch.arange(comm.size)
        dist.all_to_all_single(numbers, numbers)
    return numbers.tolist()


def unawaited(comm):
    """Send a large tensor on a communicator of mpi4py, and forget it; return the different numbers that arrive."""
    import torch
    import torch.distributed as dist
    from mpi4py import MPI

    other, received = comm.rank ^ 1, torch.zeros(1 << 20)
    with distributed(MPI.Intracomm(comm)):
        for sender in (0, 1):
            if comm.rank % 2 == sender:
                dist.isend(torch.full_like(received, 7), other)
                dist.barrier()
            else:
                dist.barrier()
                dist.recv(received, other)
        # The sender is done when the other rank is.
        dist.barrier()
    return received.unique().tolist()


def destroyed(comm):
    """Destroy a group, and then the default group, as programs for torchrun do at their end; and begin again."""
    import torch
    import torch.distributed as dist

    total = torch.ones(2)
    for _ in range(2):
        with distributed(comm):
            for _ in range(2):
                group = dist.new_group()
                dist.all_reduce(total, group=group)
                dist.destroy_process_group(group)
            dist.all_reduce(total)
            dist.destroy_process_group()
    return total.tolist()


def slow_message(comm):
    """Wait for a message that comes too late, and return the words of the error."""
    from datetime import timedelta

    import torch
    import torch.distributed as dist

    with distributed(comm):
        said, began = "", time.monotonic()
        if comm.rank == 0:
            receiving = dist.irecv(torch.ones(1), comm.size - 1)
            try:
                receiving.wait(timedelta(milliseconds=20))
            except CollectiveFailed as error:
                said = str(error)
        dist.barrier()
        if comm.rank == comm.size - 1:
            dist.send(torch.ones(1), 0)
        elif comm.rank == 0:
            receiving.wait()
        return said, time.monotonic() - began


class OfAnotherLibrary:
    """An array of a library that has DLPack and the array API standard, and whose arrays are no NumPy's.

    With a GPU the array is exported only as a copy in the memory of the host, as by CuPy.
    """

    def __init__(self, array, device=(1, 0)):
        self._array, self.dtype, self.device = array, array.dtype, device

    def __dlpack__(self, dl_device=None, **options):
        if self.device != (1, 0) != dl_device:
            raise BufferError("this array is in the memory of a GPU")
        return self._array.__dlpack__(**options)

    def __dlpack_device__(self):
        return self.device

    def __array_namespace__(self):
        class Namespace:
            @staticmethod
            def asarray(array, dtype, device):
                return OfAnotherLibrary(array.astype(dtype), device)

        return Namespace


def averaged(comm):
    """Return means of arrays of several libraries and types, as NumPy has them, and the number of Allreduce calls."""
    import torch

    me = comm.rank
    given = {
        "numpy": np.full((2, 3), me, np.float32),
        "double": np.full(4, me, np.float64),
        "half": np.full(3, me, np.float16),
        "torch": torch.full((3, 1), float(me), requires_grad=True),
        "bfloat16": torch.full((2,), me, dtype=torch.bfloat16),
        "negative": torch.full((2,), -1j * me).conj().imag,
        "other": OfAnotherLibrary(np.full(5, me, np.float32)),
        "on a GPU": OfAnotherLibrary(np.full(6, me, np.float32), (2, 1)),
    }
    before = comm.watch.count
    means = average(comm, given)
    calls = comm.watch.count - before
    assert [type(mean) for mean in means.values()] == [type(array) for array in given.values()]
    assert [mean.dtype for mean in means.values()] == [array.dtype for array in given.values()]
    assert [mean.device for mean in means.values()] == [array.device for array in given.values()]
    assert float(average(comm, np.ones(1))[0]) == 1
    numbers = [getattr(mean, "_array", mean) for mean in means.values()]
    return {float(value) for mean in numbers for value in mean.reshape(-1)}, calls


def not_averaged(comm, kind):
    average(comm, {"shapes": np.ones(1 + comm.rank // 3), "integers": np.ones(2, int), "list": [[1.0]]}[kind])


def batched(comm, X, y, epochs, **options):
    """Return for each epoch and batch the numbers of the rows of all ranks, after a look whether y goes with them."""
    found = []
    for epoch in range(epochs):
        mine = []
        for rows, labels in batches(comm, X, y, seed=epoch, **options):
            np.testing.assert_array_equal(rows[:, 0].long().numpy(), labels.numpy())
            mine.append(labels.tolist())
        of_all = comm.allgather(mine)
        found.append([[row for part in parts for row in part] for parts in zip(*of_all, strict=True)])
    return found


def batched_on_part(comm, size, rows):
    X = np.arange(rows, dtype=np.float32)[:, None] + np.zeros(3, np.float32)
    starts = [0, *(rows * (rank + 1) ** 2 // size**2 for rank in range(size))]  # blocks of different lengths
    mine = slice(starts[comm.rank], starts[comm.rank + 1])
    return batched(comm, X[mine], np.arange(rows)[mine], 2, size=8)


def addresses(comm, X):
    """Return whether tensors have the memory of their block, also of one that is read-only."""
    fixed = X.view()
    fixed.flags.writeable = False
    return [tensor(block).data_ptr() == X.ctypes.data for block in (X, fixed)]


def cross_entropy(outputs, labels):
    import torch

    return torch.nn.functional.cross_entropy(outputs, labels)


def still(weights):
    """Return an optimizer that changes nothing."""
    import torch

    return torch.optim.SGD(weights, lr=0.0)


def shrinking(optimizer):
    import torch

    return torch.optim.lr_scheduler.StepLR(optimizer, 1)


def blobs(rows=240):
    """Return rows around three points, and which point each is near."""
    source = np.random.default_rng(2)
    labels = source.integers(0, 3, size=rows)
    return source.normal(size=(rows, 6)) + 3 * np.eye(6)[labels], labels


def losses_of_one_process(epochs, size):
    """Return the losses of the training that `workbench.torch.fit` makes of `net` and `blobs`."""
    import torch

    X, y = (torch.from_numpy(part) for part in blobs())
    model, losses = net(), []
    optimizer = torch.optim.Adam(model.parameters())
    for epoch in range(epochs):
        order = np.random.default_rng(hash((0, epoch)) % 2**32).permutation(len(X)).reshape(-1, size)
        total = 0.0
        for rows in order:
            optimizer.zero_grad()
            loss = torch.nn.functional.cross_entropy(model(X[rows]), y[rows])
            loss.backward()
            optimizer.step()
            total += loss.item()
        losses.append(total / len(order))
    return losses


def resumed(comm, path, epochs):
    """Continue a fit of `net` and `blobs` on half of the ranks; return the records of all epochs."""
    from workbench.torch.epochs import Plan
    from workbench.torch.epochs import train as train_on_ranks

    part = comm.Split(comm.rank // 2)
    if comm.rank // 2:
        return None
    X, y = (np.array_split(rows, 2)[part.rank] for rows in blobs())
    plan = Plan(cross_entropy, epochs, 24, None, None, None, None, path, 0, "exchange", "resumed")
    return train_on_ranks(part, net(), plan, X, y)[1]

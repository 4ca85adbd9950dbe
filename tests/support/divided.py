"""What tests of divided models run on ranks, which import this file by its name: functions import PyTorch."""

from __future__ import annotations

import ctypes
import gc
import os
from pathlib import Path

from support import torched
from workbench.torch import distributed, load_sharded, materialize, save_sharded

WIDTH, BLOCKS = 256, 8


def net(width=WIDTH, blocks=BLOCKS):
    """Make a model of equal blocks; a block ends with a function that returns no view, of which FSDP warns."""
    from torch.nn import Linear, ReLU, Sequential

    return Sequential(*(Sequential(Linear(width, width), ReLU(), Linear(width, width), ReLU()) for _ in range(blocks)))


def divide(model, way, ranks):
    """Divide a model among ranks; return the module to train."""
    import torch
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
    from torch.nn.parallel import DistributedDataParallel

    if way == "ddp":
        return DistributedDataParallel(model)
    sizes = {"fsdp": (ranks, 1), "tp": (1, ranks), "both": (ranks // 2, 2)}[way]
    mesh = init_device_mesh(torch.get_default_device().type, sizes, mesh_dim_names=("fsdp", "tp"))
    for block in model:
        if way != "fsdp":
            parallelize_module(block, mesh["tp"], {"0": ColwiseParallel(), "2": RowwiseParallel()})
        if way != "tp":
            fully_shard(block, mesh=mesh["fsdp"])
    return model if way == "tp" else fully_shard(model, mesh=mesh["fsdp"])


def rows_of(comm, way, width=WIDTH):
    """Return the rows of this rank: ranks that divide the layers train on the same rows."""
    import torch

    source = torch.Generator("cpu").manual_seed(3)
    rows = torch.randn(32, width, generator=source, device="cpu").to(torch.get_default_device())
    labels = torch.randint(0, width, (32,), generator=source, device="cpu").to(rows.device)
    parts, part = {"tp": (1, 0), "both": (comm.size // 2, comm.rank // 2)}.get(way, (comm.size, comm.rank))
    return rows.chunk(parts)[part], labels.chunk(parts)[part]


def losses(comm, way, model, optimizer, steps):
    """Train, and return the mean loss of each step."""
    import torch

    rows, labels = rows_of(comm, way)
    found = []
    for _ in range(steps):
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(model(rows), labels)
        loss.backward()
        optimizer.step()
        found.append(comm.allreduce(loss.item()) / comm.size)
    return found


def nbytes(tensors):
    """Return the bytes of the memory of tensors on this rank; several may have parts of one memory."""
    parts = [getattr(tensor, "_local_tensor", tensor).untyped_storage() for tensor in tensors]
    return sum({part.data_ptr(): part.nbytes() for part in parts}.values())


def trained(comm, way):
    """Train; return the losses, and the bytes of weights, gradients and states of Adam on this rank."""
    import torch

    with distributed(comm):
        if way == "ddp":
            torch.manual_seed(0)
            with torch.device("cpu"):  # a GPU draws other numbers
                model = net()
            model = divide(model.to(torch.get_default_device()), way, comm.size)
        else:
            with torch.device("meta"):
                model = net()
            model = divide(model, way, comm.size)
            materialize(model)
        optimizer = torch.optim.Adam(model.parameters(), 1e-3)
        curve = losses(comm, way, model, optimizer, 4)
        weights = [*model.parameters()]
        states = [state for weight in weights for state in optimizer.state[weight].values() if state.ndim]
        return curve, [nbytes(weights), nbytes(weight.grad for weight in weights), nbytes(states)]


def tied(comm):
    """Train a divided model with a shared weight; return its first value, and whether it is shared before and after."""
    import torch
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    with distributed(comm):
        with torch.device("meta"):
            model = torch.nn.Sequential(torch.nn.Embedding(5, 3), torch.nn.Tanh(), torch.nn.Linear(3, 5))
            model[2].weight = model[0].weight
        fully_shard(model, mesh=init_device_mesh("cpu", (comm.size,)))
        materialize(model, seed=3)
        first, shared = model[0].weight.full_tensor().detach().numpy(), [model[0].weight is model[2].weight]
        optimizer = torch.optim.Adam(model.parameters(), 0.1)
        model(torch.arange(5)).square().mean().backward()
        optimizer.step()
        shared += [model[0].weight is model[2].weight]
        return first, shared, abs(model[2].weight.full_tensor().detach().numpy() - first).min()


def peaks(comm):
    """Return the bytes that a model of some MiB adds to the largest memory of a rank: divided, and in full."""
    import torch

    def peak(make):
        gc.collect()
        ctypes.CDLL(None).malloc_trim(0)  # memory that the process has kept would be used again unseen
        Path("/proc/self/clear_refs").write_text("5")
        before = of_process("VmRSS")
        kept = make()  # noqa: F841  (measured while it exists)
        return of_process("VmHWM") - before

    def of_process(field):
        lines = Path("/proc/self/status").read_text().splitlines()
        return 1024 * int(next(line for line in lines if line.startswith(f"{field}:")).split()[1])

    def divided(blocks):
        with torch.device("meta"):
            model = net(512, blocks)
        model = divide(model, "fsdp", comm.size)
        materialize(model)
        return model

    with distributed(comm):
        divided(1)  # imports what is needed
        return peak(lambda: divided(32)), peak(lambda: net(512, 32))


def continued(comm, ranks, way, path, steps, *, fails=None):
    """Train on some ranks from the checkpoint in a folder, if there is one, and save; return values and losses."""
    import torch

    part = comm.Split(comm.rank // ranks)
    if comm.rank // ranks:
        return None
    with distributed(part):
        torch.manual_seed(0)
        model = divide(net(), way, ranks)
        optimizer = torch.optim.Adam(model.parameters(), 1e-3)
        values = load_sharded(path, model, optimizer) if Path(path, "manifest.json").exists() else {"steps": 0}
        found = losses(part, way, model, optimizer, steps)
        if fails is not None and part.rank == fails:
            os.fsync, fsync = full_disk, os.fsync
        try:
            save_sharded(path, model, optimizer, steps=values["steps"] + steps)
        finally:
            if fails is not None and part.rank == fails:
                os.fsync = fsync
    return values, found


def full_disk(_):
    """Fail as a write to a full disk."""
    raise OSError(28, "No space left on device")


def killed(comm, path):
    """Save a checkpoint, and then another in which a rank is killed when it has written its part."""
    import torch

    with distributed(comm):
        model = divide(torched.net(1), "ddp", comm.size)
        save_sharded(path, model, epoch=1)
        if comm.rank == 1:
            os.fsync = lambda _: os.kill(os.getpid(), 9)
        torch.nn.init.zeros_(model.module[0].weight)
        save_sharded(path, model, epoch=2)

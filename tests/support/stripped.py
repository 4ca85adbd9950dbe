"""What tests of `workbench.torch.strips` run on ranks, which import this file by its name: functions import PyTorch."""

from __future__ import annotations

import copy
import os
import random
import time
from pathlib import Path

from benchmarks import images
from workbench.bench import measuring
from workbench.torch import distributed, strips


def compared(comm, net, images, loss):
    """Return how far result, loss and gradients on strips are from those of one process with the whole images.

    Parameters
    ----------
    net
        Module in double precision, the same on all ranks.
    images
        Whole images, of which the rank passes its rows.
    loss
        Function of the result.
    """
    twin, whole = copy.deepcopy(net), images.clone().requires_grad_()
    expected = twin(whole)
    of_one = loss(expected)
    of_one.backward()
    model = strips(net, comm)
    rows = model.rows(images.shape[2])
    mine = images[:, :, rows].clone().requires_grad_()
    found = model(mine)
    of_many = loss(found)
    of_many.backward()
    pairs = [(expected, found.full_tensor() if hasattr(found, "full_tensor") else found), (of_one, of_many)]
    pairs += [(whole.grad[:, :, rows], mine.grad), *zip(twin.buffers(), net.buffers(), strict=True)]
    pairs += [(one.grad, other.grad) for one, other in zip(twin.parameters(), net.parameters(), strict=True)]
    return max(_apart(one, other) for one, other in pairs)


def in_half(comm):
    """Return how far result and gradients of nets in `torch.autocast` are from those of one process, and the types."""
    import torch
    from torch import nn

    class Scaled(nn.Module):
        def __init__(self, pool):
            super().__init__()
            self.first, self.up = nn.Conv3d(3, 8, 3, padding=1), nn.ConvTranspose3d(8, 8, 2, stride=2)
            self.factors, self.last, self.pool = nn.Linear(8, 8), nn.Conv3d(8, 2, 1), pool

        def forward(self, x):
            x = self.pool(self.up(self.first(x).relu()))
            return self.last(x * self.factors(x.mean((2, 3, 4)))[:, :, None, None, None])

    torch.manual_seed(4)
    volumes, found = torch.randn(2, 3, 9, 4, 4), {}
    for pool in (nn.MaxPool3d(2), nn.AvgPool3d(2)):
        net = Scaled(pool)
        twin = copy.deepcopy(net)
        model = strips(net, comm)
        with torch.autocast(torch.get_default_device().type, torch.bfloat16):
            expected, result = twin(volumes), model(volumes[:, :, model.rows(9)])
            of_one, of_many = squares(expected.float()), squares(result.float())
        of_one.backward()
        of_many.backward()
        pairs = [(expected.float(), result.full_tensor().float())]
        pairs += [(one.grad, other.grad) for one, other in zip(twin.parameters(), net.parameters(), strict=True)]
        types = expected.dtype, result.dtype, model.module.first.weight.grad.dtype
        found[type(pool).__name__] = max(_apart(*pair) for pair in pairs), [*map(str, types)]
    return found


def _apart(one, other):
    assert (one is None) == (other is None)
    if one is None or not one.numel():
        return 0.0
    assert one.shape == other.shape
    return ((one - other).abs() / (1 + one.abs())).max().item()


def squares(result):
    """Return a loss that every element changes in its own way."""
    import torch

    return (result * result).mean() + torch.sigmoid(result).sum() / 50


def functions():
    """Return functions of images of shape (2, 4, 11, 6), by name, that random nets do not have."""
    import torch
    from torch.nn import functional as F  # noqa: N812

    torch.manual_seed(3)
    labels = torch.randint(0, 4, (2, 11, 6))
    ignored = labels.clone()
    ignored[:, :3] = -100
    shares, factors = torch.rand(2, 4, 11, 6).double().softmax(1), torch.rand(2, 4, 11, 6).double()
    weight, row = torch.tensor([0.5, 1.0, 2.0, 0.1]).double(), torch.rand(11, 1).double()
    return {
        "mean of rows and columns": lambda x: x.mean((2, 3)),
        "mean of all": lambda x: x.mean(),
        "mean of columns": lambda x: x.mean(3, keepdim=True),
        "sum of channels and rows": lambda x: x.sum((1, 2), keepdim=True),
        "sum of channels": lambda x: x.sum(1),
        "squeeze-and-excitation": lambda x: x * torch.sigmoid(F.adaptive_avg_pool2d(x, 1)),
        "with a whole tensor": lambda x: factors - x / 2 + row * x,
        "with numbers": lambda x: 2 - x * 3 + 1 / (x * x + 1) - (-x) ** 2,
        "a whole tensor in cat": lambda x: torch.cat([factors, x.relu(), x], 1),
        "pyramid": lambda x: torch.cat([x, F.interpolate(F.adaptive_avg_pool2d(x, 3), size=x.shape[2:])], 1),
        "index": lambda x: x[:, 1] + x[0, :1] + x[:, 0, :, :],
        "chunks": lambda x: x.chunk(2, 1)[0] * x.split([1, 3], 1)[1][:, 1:],
        "chunks by keywords": lambda x: (
            torch.chunk(x, chunks=2, dim=1)[0] * torch.split(x, split_size_or_sections=2, dim=1)[1]
        ),
        "axes by NumPy's name": lambda x: torch.cat([x, x], axis=1).mean(axis=(1, 3)) + x.amax(axis=1).sum(axis=(0, 2)),
        "sum of no axes": lambda x: x.sum(()),
        "remainders, powers and bits": lambda x: x % 2 + 2**x + x.detach() // 3 + ((x > 0) ^ (x < 1)),
        "squeeze": lambda x: x[:, :1].squeeze(1).unsqueeze(1) + x.unsqueeze(0).squeeze(0),
        "argmax": lambda x: x * x.argmax(1).unsqueeze(1),
        "largest channel": lambda x: x.amax(1) - x.amin(1, keepdim=True).squeeze(1),
        "glu": lambda x: F.glu(x, 1) + F.normalize(x)[:, :2],
        "where": lambda x: torch.where(x > 0, x, x.exp()) + x.masked_fill(x.isnan(), 0.0).clamp(-1, 1),
        "pixel_shuffle": lambda x: F.pixel_shuffle(x, 2),
        "padding by reflection": lambda x: F.pad(x, (1, 2, 3, 4), mode="reflect"),
        "padding by repetition": lambda x: F.pad(x, (0, 0, 2, 0), mode="replicate"),
        "cropping": lambda x: F.pad(x, (0, -1, -3, -2)),
        "resizing to a size": lambda x: F.interpolate(x, size=(5, 9), mode="bilinear", align_corners=True),
        "global maximum": lambda x: F.adaptive_max_pool2d(x, 1),
        "mean of each row": lambda x: F.adaptive_avg_pool2d(x, (None, 1)),
        "dropout in evaluation": lambda x: F.dropout2d(x, training=False) + F.dropout(x, training=False),
        "batch norm in evaluation": lambda x: F.batch_norm(x, weight, weight),
        "conversion": lambda x: x.float().double().contiguous().to(torch.float64),
        "cross entropy": lambda x: F.cross_entropy(x, _rows(x, labels)),
        "cross entropy of no class in the first rows": lambda x: F.cross_entropy(x, _rows(x, ignored)),
        "sum of cross entropies": lambda x: F.cross_entropy(x, _rows(x, labels), reduction="sum"),
        "cross entropies": lambda x: F.cross_entropy(x, _rows(x, labels), weight, reduction="none"),
        "weighted cross entropy": lambda x: F.cross_entropy(
            x, _rows(x, labels), weight, ignore_index=2, label_smoothing=0.2
        ),
        "cross entropy of shares": lambda x: F.cross_entropy(x, shares),
        "likelihood": lambda x: F.nll_loss(F.log_softmax(x, 1), _rows(x, labels), weight),
        "weighted cross entropy of sequences": lambda x: F.cross_entropy(x.mean(3), _rows(x, labels)[..., 0], weight),
        "mean of more elements than float16 counts": lambda x: F.mse_loss(
            F.pad(0 * x, (0, 1200)).half(), F.pad(0 * x + 2, (0, 1200), value=2.0).half()
        ),
        "mean of more than float16 adds": lambda x: F.pad(0 * x + 2, (0, 1200), value=2.0).half().mean(),
        "squared error": lambda x: F.mse_loss(x, factors) + F.l1_loss(x, factors * 0, reduction="sum"),
        "binary cross entropy": lambda x: F.binary_cross_entropy_with_logits(x, shares, pos_weight=1 + row[:1]),
        "Dice": lambda x: 1 - 2 * (x.sigmoid() * shares).sum() / (x.sigmoid().sum() + shares.sum()),
    }  # fmt: skip


def _rows(strip, labels):
    """Return the rows of the rank of labels, as a program has them."""
    return labels[:, strip.rows] if hasattr(strip, "rows") else labels


def compared_functions(comm):
    """Return how far each of `functions` on strips is from the one of whole images."""
    import torch

    class Net(torch.nn.Module):
        def __init__(self, function):
            super().__init__()
            self.forward = function

    x = torch.randn(2, 4, 11, 6, dtype=torch.float64, device="cpu")
    comm.Bcast(x.numpy())
    x = x.to(torch.get_default_device())
    return {name: compared(comm, Net(function), x, squares) for name, function in functions().items()}


def compared_small(comm):
    """Return how far layers on strips of small images, of which ranks have no row, are from those of whole images."""
    import torch
    from torch import nn

    torch.manual_seed(4)
    change = nn.ReLU(inplace=True)
    layers = {
        "reflect": nn.Conv2d(4, 2, (1, 3), padding=(0, 1), padding_mode="reflect"),
        "replicate": nn.Conv2d(4, 2, (1, 3), padding=(0, 1), padding_mode="replicate"),
        "ReflectionPad2d": nn.Sequential(nn.Conv2d(4, 4, 1), nn.ReflectionPad2d((2, 1, 0, 0))),
        "ReplicationPad2d": nn.Sequential(nn.Conv2d(4, 4, 1), nn.ReplicationPad2d(1)),
        "PixelShuffle": nn.Sequential(nn.Conv2d(4, 4, 1), nn.PixelShuffle(2), change),
        "AvgPool1d": nn.Sequential(nn.Conv1d(4, 4, 1), nn.AvgPool1d(1), change),
    }
    found = {}
    for height in range(1, 6):
        x = torch.sin(torch.arange(2.0 * 4 * height * 6).double()).view(2, 4, height, 6)
        for name, net in layers.items():
            images = x[..., 0] if name == "AvgPool1d" else x
            found[name, height] = compared(comm, copy.deepcopy(net).double(), images, squares)
    return found


def changed_in_place(comm):
    """Return whether the input of a layer stays as it is when its result is changed."""
    import torch

    class Net(torch.nn.Module):
        def forward(self, image):
            image = image * 2
            torch.nn.functional.pad(image, (0, 0, -1, 0)).relu_()
            return image

    model = strips(Net(), comm)
    with torch.inference_mode():
        x = -torch.ones(1, 1, 5, 2)[:, :, model.rows(5)]
        return torch.equal(model(x).to_local(), x * 2)


def in_other_parts(comm):
    """Return how far the result is from that of one process where ranks pass other rows than `rows`."""
    import torch

    net = torch.nn.Conv2d(2, 2, 5, padding=2).double()
    model = strips(net, comm)
    x = torch.sin(torch.arange(2 * 13 * 5, dtype=torch.float64)).view(1, 2, 13, 5)
    ends = [0, *(min(13, 7 + 4 * rank) for rank in range(comm.size - 1)), 13]
    mine = x[:, :, ends[comm.rank] : ends[comm.rank + 1]].clone().requires_grad_()
    found = model(mine)
    found.sum().backward()
    whole = x.clone().requires_grad_()
    net(whole).sum().backward()
    gradient = whole.grad[:, :, ends[comm.rank] : ends[comm.rank + 1]]
    return max(_apart(net(x), found.full_tensor()), _apart(gradient, mine.grad))


REFUSED = {
    "Flatten": lambda nn: nn.Flatten(),
    "Linear": lambda nn: nn.Linear(6, 2),
    "LayerNorm": lambda nn: nn.LayerNorm([4, 11, 6]),
    "MaxPool2d": lambda nn: nn.MaxPool2d(2, return_indices=True),
    "Upsample": lambda nn: nn.Upsample(scale_factor=2, mode="bicubic"),
    "Conv2d": lambda nn: nn.Conv2d(4, 2, 3, padding=1, padding_mode="circular"),
    "AvgPool2d": lambda nn: nn.AvgPool2d(12, 1),
    "Softmax": lambda nn: nn.Softmax(2),
    "Unfold": lambda nn: nn.Unfold(2),
}


def refused(comm, kind):
    """Return what is said of a layer that cannot be split."""
    import torch

    layers = torch.nn.Sequential(torch.nn.Conv2d(4, 4, 3, padding=1), torch.nn.Sequential(REFUSED[kind](torch.nn)))
    model = strips(layers, comm)
    try:
        model(torch.zeros(2, 4, 11, 6)[:, :, model.rows(11)])
    except ValueError as error:
        return f"{type(error).__name__}: {error}"
    return "nothing"


def refused_values(comm):
    """Return what is said of tensors that do not fit strips."""
    import torch

    model = strips(torch.nn.Identity(), comm)
    strip = model(torch.zeros(2, 4, 11, 6)[:, :, model.rows(11)])
    said = []
    for attempt in (
        lambda: model(torch.zeros(3, 3)),
        lambda: strip + torch.zeros(7, 6),
        lambda: strip + torch.nn.functional.interpolate(strip, scale_factor=2),
        lambda: strip[:, :, 2:3],
        lambda: torch.cat([strip, strip], 2),
    ):
        try:
            attempt()
        except ValueError as error:
            said.append(str(error))
    return said


def losses(comm, size, steps, *, checkpointed=False, dtype="float64"):
    """Return the losses of a U-Net on strips, and those of one process."""
    import torch

    pixels, labels = (part.to(torch.get_default_device()) for part in images.image(slice(0, size), size, dtype))
    curves = []
    for alone in (False, True):
        net = images.unet(3, 2, 2, checkpointed=checkpointed and not alone).to(getattr(torch, dtype))
        model = net if alone else strips(net, comm)
        rows = slice(None) if alone else model.rows(size)
        curve = []
        for _ in range(steps):
            net.zero_grad()
            loss = torch.nn.functional.cross_entropy(model(pixels[:, :, rows]), labels[:, rows])
            loss.backward()
            with torch.no_grad():
                for weight in net.parameters():
                    weight.sub_(weight.grad, alpha=0.1)
            curve.append(loss.item())
        curves.append(curve)
    return curves


def replicas(comm):
    """Return how far gradients are from those of one process, where each of two replicas has strips of its images."""
    import torch
    from torch.nn.parallel import DistributedDataParallel

    x = torch.sin(torch.arange(2 * 2 * 9 * 5, dtype=torch.float64)).view(2, 2, 9, 5)
    net = torch.nn.Sequential(torch.nn.Conv2d(2, 3, 3, padding=1), torch.nn.AdaptiveAvgPool2d(2), torch.nn.Flatten())
    net = net.append(torch.nn.Linear(12, 1)).double()
    part = comm.Split(comm.rank // 2)
    with distributed(comm):
        model = strips(net, part)
        trained = DistributedDataParallel(model)
        replica = comm.rank // 2
        squares(trained(x[replica : replica + 1, :, model.rows(9)])).backward()
    twin = copy.deepcopy(net)
    twin.zero_grad()
    ((squares(twin(x[:1])) + squares(twin(x[1:]))) / 2).backward()
    return max(_apart(a.grad, b.grad) for a, b in zip(twin.parameters(), net.parameters(), strict=True))


def dropped_channels(comm):
    """Return which channels of each image have rows of this rank, after a dropout of channels."""
    import torch

    torch.manual_seed(comm.rank)
    model = strips(torch.nn.Dropout2d(), comm)
    found = model(torch.ones(2, 16, 2, 3)).to_local()
    return (found != 0).all((2, 3)).tolist(), sorted(set(found.flatten().tolist()))


def random_numbers(comm):
    """Return what random functions make of the first two rows of this rank, and of a whole tensor afterwards."""
    import torch
    from torch.nn import functional as F  # noqa: N812

    torch.manual_seed(5)
    model = strips(torch.nn.Identity(), comm)
    strip = model(-torch.ones(1, 1, 11, 16)[:, :, model.rows(11)])
    found = [F.dropout(strip), F.alpha_dropout(strip, training=True), F.rrelu(strip, training=True)]
    found += [torch.rand_like(strip), torch.randn_like(strip)]
    return [each.to_local()[:, :, :2].flatten().tolist() for each in found], F.dropout(torch.ones(64)).tolist()


def evaluated_dropout(comm):
    """Return whether a dropout in evaluation leaves the generator as it is."""
    import torch

    before = torch.get_rng_state()
    model = strips(torch.nn.Sequential(torch.nn.Dropout(), torch.nn.RReLU()).eval(), comm)
    model(torch.ones(1, 1, 2, 3))
    return torch.equal(before, torch.get_rng_state())


def without_gradients(comm):
    """Return whether weights without gradients and evaluation without a graph work."""
    import torch

    net = torch.nn.Sequential(torch.nn.Conv2d(1, 2, 3), torch.nn.Conv2d(2, 1, 3))
    net[0].requires_grad_(False)
    model = strips(net, comm)
    x = torch.ones(1, 1, 3, 6)
    model(x).mean().backward()
    with torch.no_grad():
        alone = not model(x).requires_grad
    return alone, net[0].weight.grad is None, net[1].weight.grad is not None


def written(path, size):
    """Write an image and its classes to Zarr, a few rows at a time."""
    import zarr

    pixels = zarr.create_array(f"{path}/pixels", shape=(3, size, size), chunks=(3, 32, size), dtype="float32")
    labels = zarr.create_array(f"{path}/labels", shape=(size, size), chunks=(32, size), dtype="int64")
    for row in range(0, size, 32):
        rows = slice(row, min(size, row + 32))
        some, classes = images.image(rows, size, "float32")
        pixels[:, rows], labels[rows] = some[0].numpy(), classes[0].numpy()


def trained_from_zarr(comm, path, nbytes, *, alone):
    """Train on an image in Zarr, within a limit of memory if there is one.

    Returns the loss, or "out of memory", and the largest additional memory of this process; None on ranks without work.
    """
    import torch
    import zarr

    if alone and comm.rank:
        return None
    found = []

    def train():
        pixels, labels = zarr.open_array(f"{path}/pixels", mode="r"), zarr.open_array(f"{path}/labels", mode="r")
        net = images.unet(3, 8, 2)
        model = net if alone else strips(net, comm)
        rows = slice(None) if alone else model.rows(pixels.shape[1])
        image, classes = torch.from_numpy(pixels[:, rows])[None], torch.from_numpy(labels[rows][None])
        loss = torch.nn.functional.cross_entropy(model(image), classes)
        loss.backward()
        found.append(loss.item())

    watch = measuring.Watch()
    if nbytes is None:
        train()
    else:
        with images.limited(nbytes):
            if not images.is_enough(train):
                found.append("out of memory")
    return found[0], watch.end().nbytes


def train_until(comm, way, which, path):
    """Train on strips for ever, until a rank does something in the middle of backward."""
    import torch

    def fail(_):
        if way == "raises":
            raise ValueError("a bad gradient", time.time())
        os.kill(os.getpid(), 9)

    net = images.unet(3, 2, 2)
    model = strips(net, comm)
    pixels, labels = images.image(model.rows(16), 16, "float32")
    for step in range(10**9):
        torch.nn.functional.cross_entropy(model(pixels), labels).backward()
        if step == 3:
            Path(f"{path}.{comm.rank}").touch()
            if comm.rank == which:
                net.up.weight.register_hook(fail)


def random_nets(comm, seeds):
    """Return for each seed how far a random net on strips is from one process, and what it is."""
    found = []
    for seed in seeds:
        net, images = random_net(seed)
        # A window of a pooling that covers padding only is -inf in one process, too, and has no gradient to compare.
        if not copy.deepcopy(net)(images).isfinite().all():
            continue
        found.append((compared(comm, net, images, squares), f"{seed}: {tuple(images.shape)} {net}"))
    return found


def random_net(seed):
    """Return a random stack of layers in double precision, and images for it."""
    import torch
    from torch import nn

    draw = random.Random(seed)
    torch.manual_seed(seed)
    dims = draw.choice([1, 2, 2, 2, 3])
    channels = first = draw.choice([2, 4])
    sizes = height = [draw.randint(3, 23), *(draw.randint(5, 8) for _ in range(dims - 1))]
    layers = []
    for _ in range(draw.randint(2, 6)):
        for _ in range(50):
            layer = _random_layer(draw, dims, channels, sizes).double()
            try:
                shape = layer(torch.zeros(2, channels, *sizes, dtype=torch.float64)).shape
            except (RuntimeError, ValueError):
                continue  # the images are too small for it
            if 1 < shape[2:].numel() < 10_000 and 0 < shape[1] <= 16 and not _moves_gradients(layer, sizes):
                layers.append(layer)
                channels, sizes = shape[1], list(shape[2:])
                break
    if draw.random() < 0.4:
        rows = [draw.randint(1, 3) for _ in range(dims)]
        pool = getattr(nn, f"Adaptive{draw.choice(['Avg', 'Max'])}Pool{dims}d")(rows)
        layers += [pool, nn.Flatten(), nn.Linear(channels * torch.Size(rows).numel(), 3).double()]
    return nn.Sequential(*layers), torch.randn(2, first, *height, dtype=torch.float64)


def _moves_gradients(layer, sizes):
    """Return whether PyTorch adds the gradient of a resizing to other elements than it copied.

    The kernels for CUDA do so with "nearest-exact" from 18 to 3 rows, for example, since their backward pass rounds in
    another way; those for the CPU from 14 to 23.
    """
    import torch

    if getattr(layer, "mode", "") != "nearest-exact":
        return False
    count = torch.Size(sizes).numel()
    elements = torch.arange(count, dtype=torch.float64).view(1, 1, *sizes).requires_grad_()
    copied = layer(elements)
    copied.sum().backward()
    counts = torch.bincount(copied.detach().flatten().long(), minlength=count)
    return not torch.equal(counts, elements.grad.flatten().long())


def _random_layer(draw, dims, channels, sizes):  # noqa: C901  (a function for each kind)
    import torch
    from torch import nn

    class Joined(nn.Module):
        def __init__(self, layer, how):
            super().__init__()
            self.layer, self.how = layer, how

        def forward(self, image):
            other = self.layer(image)
            return image + other if self.how == "add" else torch.cat([image, other], 1)

    def layer(name):
        return getattr(nn, f"{name}{dims}d")

    def convolution():
        kernel = draw.choice([1, 2, 3, 5])
        padding, mode = draw.randint(0, kernel), draw.choice(["zeros", "zeros", "reflect", "replicate"])
        options = {
            "stride": draw.choice([1, 1, 2, 3]),
            "dilation": draw.choice([1, 1, 2]),
            "groups": draw.choice([1, 2]),
        }
        padding = padding if mode == "zeros" else min(padding, min(sizes) - 1)
        bias = draw.random() < 0.7
        return layer("Conv")(
            channels, draw.choice([2, 4]), kernel, padding=padding, padding_mode=mode, bias=bias, **options
        )

    def transposed():
        stride, dilation = draw.choice([1, 2, 3]), draw.choice([1, 2])
        options = {"padding": draw.randint(0, 1), "output_padding": draw.randint(0, max(stride, dilation) - 1)}
        return layer("ConvTranspose")(
            channels, draw.choice([2, 4]), draw.choice([1, 2, 3, 4]), stride, dilation=dilation, **options
        )

    def pooling():
        kernel = draw.choice([2, 3])
        options = {"stride": draw.choice([None, 1, 2, 3]), "padding": draw.randint(0, kernel // 2)}
        options |= {"ceil_mode": draw.random() < 0.5}
        if draw.random() < 0.5:
            return layer("MaxPool")(kernel, dilation=draw.choice([1, 2]), **options)
        return layer("AvgPool")(kernel, count_include_pad=draw.random() < 0.5, **options)

    def resizing():
        linear = {1: "linear", 2: "bilinear", 3: "trilinear"}[dims]
        mode = draw.choice(["nearest", "nearest-exact", linear])
        options = {"mode": mode, "align_corners": draw.choice([None, True, False]) if mode == linear else None}
        if draw.random() < 0.5:
            return nn.Upsample(size=[draw.randint(2, 17) for _ in range(dims)], **options)
        return nn.Upsample(scale_factor=draw.choice([0.7, 1.5, 2, 3]), **options)

    def normalizing():
        own = [layer("BatchNorm")(channels), layer("InstanceNorm")(channels, affine=True), nn.GroupNorm(2, channels)]
        return draw.choice(own)

    def joining():
        same = layer("Conv")(channels, channels, 3, padding="same")
        return Joined(nn.Sequential(same, draw.choice([nn.ReLU(inplace=True), nn.Tanh()])), draw.choice(["add", "cat"]))

    def activating():
        return draw.choice([nn.ReLU(), nn.SiLU(), nn.GELU(), nn.PReLU(channels), nn.Softmax(1), nn.ELU()])

    def padding():
        return layer("ConstantPad")(tuple(draw.randint(0, 2) for _ in range(2 * dims)), 0.5)

    kinds = [convolution, convolution, transposed, pooling, resizing, normalizing, joining, activating, padding]
    return draw.choice(kinds)()

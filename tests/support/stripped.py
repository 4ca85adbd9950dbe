"""What tests of `workbench.torch.strips` run on ranks, which import this file by its name: functions import PyTorch."""

from __future__ import annotations

import copy
import random

from workbench.torch import strips


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


def random_nets(comm, seeds):
    """Return for each seed how far a random net on strips is from one process, and what it is."""
    found = []
    for seed in seeds:
        net, images = random_net(seed)
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
            if 1 < shape[2:].numel() < 10_000 and 0 < shape[1] <= 16:
                layers.append(layer)
                channels, sizes = shape[1], list(shape[2:])
                break
    if draw.random() < 0.4:
        rows = [draw.randint(1, 3) for _ in range(dims)]
        pool = getattr(nn, f"Adaptive{draw.choice(['Avg', 'Max'])}Pool{dims}d")(rows)
        layers += [pool, nn.Flatten(), nn.Linear(channels * torch.Size(rows).numel(), 3).double()]
    return nn.Sequential(*layers), torch.randn(2, first, *height, dtype=torch.float64)


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

"""Deep nets for pipelines: residual nets of any depth, and a small transformer. PyTorch is imported in functions."""

from __future__ import annotations

from typing import Any

CLASSES = 10
"""Outputs of each net."""
# Layers of a block, and widths of the three groups over that of the first layer: He et al. (2016), *Identity Mappings
# in Deep Residual Networks*, tables 1 and 2.
_BLOCK, _GROUPS = 9, 3


def resnet(depth: int = 110, width: int = 16) -> Any:
    """Return a residual net for small images, as ResNet-110 and ResNet-1001 with blocks of three convolutions.

    Parameters
    ----------
    depth : int, default=110
        Number of layers, 9 n + 2.
    width : int, default=16
        Channels of the first layer.

    Returns
    -------
    torch.nn.Sequential
        A net of images of shape (rows, 3, height, width); it returns scores of shape (rows, 10).

    Raises
    ------
    ValueError
        If the depth is not 9 n + 2.

    Notes
    -----
    The normalization precedes the convolutions (He et al., 2016, *Identity Mappings in Deep Residual Networks*).
    """
    from torch import nn

    blocks, rest = divmod(depth - 2, _BLOCK)
    if rest or blocks < 1:
        raise ValueError(f"depth={depth} is not valid: choose 9 n + 2, for example 11, 20, 110 or 1001")
    layers: list[Any] = [nn.Conv2d(3, width, 3, padding=1, bias=False)]
    channels = width
    for group in range(_GROUPS):
        for block in range(blocks):
            stride = 2 if group and not block else 1
            layers.append(_bottleneck(channels, width << group, stride))
            channels = (width << group) * 4
    head = [nn.BatchNorm2d(channels), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, CLASSES)]
    return nn.Sequential(*layers, *head)


def _bottleneck(before: int, width: int, stride: int) -> Any:
    from torch import nn

    class Bottleneck(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.straight = nn.Sequential(
                nn.BatchNorm2d(before),
                nn.ReLU(),
                nn.Conv2d(before, width, 1, bias=False),
                nn.BatchNorm2d(width),
                nn.ReLU(),
                nn.Conv2d(width, width, 3, stride, padding=1, bias=False),
                nn.BatchNorm2d(width),
                nn.ReLU(),
                nn.Conv2d(width, 4 * width, 1, bias=False),
            )
            same = stride == 1 and before == 4 * width
            self.shortcut = nn.Identity() if same else nn.Conv2d(before, 4 * width, 1, stride, bias=False)

        def forward(self, images: Any) -> Any:
            return self.shortcut(images) + self.straight(images)

    return Bottleneck()


def transformer(layers: int = 6, width: int = 32, words: int = 64, length: int = 16) -> Any:
    """Return a transformer that classifies texts: its ``forward`` is traced, since it is no `nn.Sequential`.

    Parameters
    ----------
    layers : int, default=6
        Number of blocks of attention.
    width : int, default=32
        Numbers of a token in the net.
    words : int, default=64
        Number of different tokens.
    length : int, default=16
        Tokens of a text.

    Returns
    -------
    torch.nn.Module
        A net of whole numbers of shape (rows, length); it returns scores of shape (rows, 10).
    """
    import torch
    from torch import nn

    class Transformer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embedding = nn.Embedding(words, width)
            self.positions = nn.Parameter(torch.zeros(length, width))
            block = {"dim_feedforward": 2 * width, "dropout": 0.0, "batch_first": True, "norm_first": True}
            self.blocks = nn.ModuleList([nn.TransformerEncoderLayer(width, 4, **block) for _ in range(layers)])
            self.norm = nn.LayerNorm(width)
            self.scores = nn.Linear(width, CLASSES)

        def forward(self, tokens: Any) -> Any:
            passed = self.embedding(tokens) + self.positions
            for block in self.blocks:
                passed = block(passed)
            return self.scores(self.norm(passed).mean(1))

    return Transformer()

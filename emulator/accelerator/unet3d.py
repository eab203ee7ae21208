"""The 3D U-Net of the MLPerf Training reference, and its loss. Heavy: imports PyTorch.

Channels 32, 64, 128, 256, 320, then a bottleneck of 320; every level is two convolutions of 3 voxels,
each with instance norm (affine) and ReLU; down by stride 2, up by transposed convolutions of 2 voxels,
skips concatenated; three classes. The loss is the mean of Dice loss (without background) and cross
entropy. Written anew from the published description; `filters` makes it smaller for a CPU.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn import functional

CLASSES = 3
_SMOOTH = 1e-6


def _convolved(inputs: int, outputs: int, stride: int = 1) -> nn.Sequential:
    convolution = nn.Conv3d(inputs, outputs, 3, stride=stride, padding=1, bias=False)
    return nn.Sequential(convolution, nn.InstanceNorm3d(outputs, affine=True), nn.ReLU())


def _level(inputs: int, outputs: int, stride: int = 1) -> nn.Sequential:
    return nn.Sequential(_convolved(inputs, outputs, stride), _convolved(outputs, outputs))


class _Up(nn.Module):
    """Twice the resolution, joined with what the way down had at it."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.grow = nn.ConvTranspose3d(inputs, outputs, 2, stride=2)
        self.level = _level(2 * outputs, outputs)

    def forward(self, deep: Tensor, skip: Tensor) -> Tensor:
        joined: Tensor = self.level(torch.cat((self.grow(deep), skip), dim=1))
        return joined


class Unet3D(nn.Module):
    """Image (batch, 1, depth, height, width) -> class scores of the same size.

    Edges must be multiples of 2 to the power of len(filters).
    """

    def __init__(self, filters: Sequence[int]) -> None:
        super().__init__()
        self.enter = _level(1, filters[0])
        downs = [_level(a, b, stride=2) for a, b in pairwise(filters)]
        self.downs = nn.ModuleList([*downs, _level(filters[-1], filters[-1], stride=2)])
        wide = [filters[-1], *reversed(filters)]
        self.ups = nn.ModuleList([_Up(a, b) for a, b in pairwise(wide)])
        self.score = nn.Conv3d(filters[0], CLASSES, 1)

    def forward(self, image: Tensor) -> Tensor:
        levels = [self.enter(image)]
        for down in self.downs:
            levels.append(down(levels[-1]))
        deep = levels.pop()
        for up in self.ups:
            deep = up(deep, levels.pop())
        scores: Tensor = self.score(deep)
        return scores


def dice_and_cross_entropy(scores: Tensor, label: Tensor) -> Tensor:
    """The mean of Dice loss and cross entropy; `label` is (batch, 1, depth, height, width), integers."""
    target = label.squeeze(1).long()
    entropy = functional.cross_entropy(scores, target)
    share = torch.softmax(scores, dim=1)[:, 1:]
    truth = functional.one_hot(target, CLASSES).permute(0, 4, 1, 2, 3)[:, 1:].float()
    voxels = (2, 3, 4)
    common = (share * truth).sum(voxels)
    dice = (2 * common + _SMOOTH) / (truth.sum(voxels) + share.sum(voxels) + _SMOOTH)
    return ((1 - dice).mean() + entropy) / 2

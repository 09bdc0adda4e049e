"""Residual networks (He et al., 2016) without their last layer: the paper's describer (section 4.1), and small ones to train.

Parameters have the names of torchvision, so that its weights of ResNet-18 and ResNet-50 fit (512 and 2048 values). The shape of
a network is read off its tensors: the number of blocks, their kind and width, and the kernel at the input. A kernel of 7 stands
for the input of torchvision, with stride 2 and pooling; a kernel of 3 for small images, which keep their resolution.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from mmdiff.formats.extras import load

STAGES = 4
_LARGE_KERNEL = 7


@dataclass(frozen=True)
class Shape:
    """A network: blocks of each stage, whether they are bottlenecks of three layers, width of the first stage, input kernel."""

    blocks: tuple[int, ...]
    bottleneck: bool
    width: int
    kernel: int

    @property
    def features(self) -> int:
        """The number of values that describe an image."""
        return (self.width << (STAGES - 1)) * (4 if self.bottleneck else 1)

    @property
    def name(self) -> str:
        layers = 2 + sum(self.blocks) * (3 if self.bottleneck else 2)
        return f"ResNet-{layers}"

    @classmethod
    def of(cls, shapes: Mapping[str, Sequence[int]]) -> Shape | None:
        """The network that tensors of these shapes belong to; None where they are of another kind."""
        first = shapes.get("conv1.weight", ())
        if len(first) != 4 or first[1] != 3 or first[2] not in (3, _LARGE_KERNEL) or "layer1.0.conv1.weight" not in shapes:
            return None
        found = [0] * STAGES
        for name in shapes:
            block = re.match(r"layer([1-4])\.(\d{1,3})\.", name)
            if block is not None:
                stage = int(block[1]) - 1
                found[stage] = max(found[stage], int(block[2]) + 1)
        return cls(tuple(found), "layer1.0.conv3.weight" in shapes, int(first[0]), int(first[2])) if all(found) else None


def expected_shapes(shape: Shape) -> dict[str, tuple[int, ...]]:
    """The tensors that the network needs, by name, without those of the last layer."""
    torch = load("torch", "describing images", "images")
    with torch.device("meta"):
        return {name: tuple(value.shape) for name, value in build(shape).state_dict().items()}


def build(shape: Shape) -> Any:
    """The network as a torch module, with random weights: images (n, 3, height, width) to features (n, `shape.features`)."""
    torch = load("torch", "describing images", "images")
    nn = torch.nn

    def convolution(before: int, after: int, kernel: int, stride: int) -> Any:
        return nn.Conv2d(before, after, kernel, stride, kernel // 2, bias=False)

    class Block(nn.Module):  # type: ignore[misc, name-defined]
        """Two layers of 3 x 3, or a bottleneck of 1 x 1, 3 x 3 and 1 x 1, added to the input."""

        def __init__(self, before: int, width: int, stride: int) -> None:
            super().__init__()
            layers = [(before, width, 3, stride), (width, width, 3, 1)]
            if shape.bottleneck:
                layers = [(before, width, 1, 1), (width, width, 3, stride), (width, 4 * width, 1, 1)]
            self.depth, after = len(layers), layers[-1][1]
            for number, layer in enumerate(layers, 1):
                setattr(self, f"conv{number}", convolution(*layer))
                setattr(self, f"bn{number}", nn.BatchNorm2d(layer[1]))
            self.downsample = None
            if stride > 1 or before != after:
                self.downsample = nn.Sequential(convolution(before, after, 1, stride), nn.BatchNorm2d(after))

        def forward(self, x: Any) -> Any:
            out = x
            for number in range(1, self.depth + 1):
                out = getattr(self, f"bn{number}")(getattr(self, f"conv{number}")(out))
                out = torch.relu(out) if number < self.depth else out
            return torch.relu(out + (x if self.downsample is None else self.downsample(x)))

    class ResNet(nn.Module):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            large = shape.kernel == _LARGE_KERNEL
            self.conv1 = convolution(3, shape.width, shape.kernel, 2 if large else 1)
            self.bn1 = nn.BatchNorm2d(shape.width)
            self.pool = nn.MaxPool2d(3, 2, 1) if large else nn.Identity()
            before = shape.width
            for stage, count in enumerate(shape.blocks):
                width, blocks = shape.width * 2**stage, []
                for number in range(count):
                    blocks.append(Block(before, width, 2 if stage > 0 and number == 0 else 1))
                    before = width * (4 if shape.bottleneck else 1)
                setattr(self, f"layer{stage + 1}", nn.Sequential(*blocks))

        def forward(self, images: Any) -> Any:
            x = self.pool(torch.relu(self.bn1(self.conv1(images))))
            for stage in range(1, STAGES + 1):
                x = getattr(self, f"layer{stage}")(x)
            return x.mean((2, 3))

    return ResNet()

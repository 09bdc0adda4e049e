"""Running a network over images: threads decode ahead while the network works on one batch, and batches come in order.

Batches are cut from the images by number, always in the same way, so that a run which continues another computes the same
values. The last batch is filled up where the network wants batches of one size.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mmdiff.describing.decoding import Preprocessing, Unreadable, decode, decoding, white
from mmdiff.describing.listing import Images
from mmdiff.describing.models import Model
from mmdiff.formats.errors import BadOption, Parameter
from mmdiff.formats.extras import load
from mmdiff.formats.sources.limits import reason
from mmdiff.runtime.threads import cores, in_order

# Images that a thread decodes at a time: fewer would cost more in handing over than they take.
_PIECE = 8
# Batches that are decoded ahead of the network.
_AHEAD = 2


@dataclass(frozen=True)
class Described:
    """The features of a batch of images from number `first` on; `unreadable` names those that were replaced, with reasons."""

    first: int
    features: NDArray[np.float32]
    unreadable: dict[int, str]


class Runner:
    """A network with its preprocessing, on a device, with batches of one size."""

    def __init__(self, model: Model, preprocessing: Preprocessing, device: str, batch_size: int) -> None:
        self.model, self.preprocessing, self.device, self.batch_size = model, preprocessing, device, batch_size
        self._torch = load("torch", "describing images", "images")
        tensor = self._torch.tensor
        self._mean = tensor(preprocessing.mean, device=device).mul_(255)[:, None, None]
        self._std = tensor(preprocessing.std, device=device).mul_(255)[:, None, None]

    def width(self) -> int:
        """The number of values that describe an image. Refuses a network that does not make one row of numbers of each."""
        pixels = np.stack([white(self.preprocessing)] * self.batch_size)
        return int(self.features(pixels).shape[1])

    def features(self, pixels: NDArray[np.uint8]) -> NDArray[np.float32]:
        """The output of the network for images of pixels (n, side, side, 3)."""
        torch, given = self._torch, len(pixels)
        if self.model.whole_batches and given < self.batch_size:
            pixels = np.concatenate([pixels, np.repeat(pixels[-1:], self.batch_size - given, axis=0)])
        with torch.inference_mode():
            # The last axis are colours in memory, which is the layout that convolutions work on fastest.
            batch = torch.from_numpy(pixels).to(self.device).permute(0, 3, 1, 2).float()
            try:
                output = self.model.run((batch - self._mean) / self._std)
            except (RuntimeError, TypeError, ValueError, AssertionError, IndexError) as error:
                raise self._failed(error, len(pixels)) from error
            rows = self._checked(output, len(pixels))
            found: NDArray[np.float32] = rows[:given].float().cpu().numpy()
            return found

    def describe(self, images: Images, first: int) -> Iterator[Described]:
        """Describes the images from number `first` on, a multiple of the batch size."""
        starts = range(first, len(images), _PIECE)

        def piece(start: int) -> tuple[list[NDArray[np.uint8]], dict[int, str]]:
            return pixels_of(images, range(start, min(start + _PIECE, len(images))), self.preprocessing)

        pixels: list[NDArray[np.uint8]] = []
        unreadable: dict[int, str] = {}
        threads = cores()
        ahead = max(2 * threads, _AHEAD * self.batch_size // _PIECE)
        with decoding(), torch_threads(self._torch), ThreadPoolExecutor(threads) as pool:
            for decoded, bad in in_order(pool, piece, starts, ahead):
                pixels += decoded
                unreadable |= bad
                while len(pixels) >= self.batch_size or (pixels and first + len(pixels) == len(images)):
                    count = min(self.batch_size, len(pixels))
                    batch, pixels = pixels[:count], pixels[count:]
                    of_batch = {image: why for image, why in unreadable.items() if image < first + count}
                    unreadable = {image: why for image, why in unreadable.items() if image >= first + count}
                    yield Described(first, self.features(np.stack(batch)), of_batch)
                    first += count

    def _checked(self, output: Any, images: int) -> Any:
        torch, name = self._torch, self.model.name
        if not isinstance(output, torch.Tensor):
            raise BadOption(
                Parameter("model", name),
                f": its output is a {type(output).__name__}, expected one tensor (images, values). Export a network "
                "that returns the features alone.",
            )
        if output.ndim != 2 or len(output) != images or not output.shape[1]:
            raise BadOption(
                Parameter("model", name),
                f": its output for {images} images has the shape {tuple(output.shape)}, expected 2 dimensions: images x "
                "values. Export the features after pooling, such as torch.flatten(x, 1).",
            )
        if not output.is_floating_point():
            raise BadOption(
                Parameter("model", name),
                f": its output is of type {output.dtype}, expected floating-point features. Export those.",
            )
        return output

    def _failed(self, error: Exception, images: int) -> BadOption:
        side = self.preprocessing.crop
        return BadOption(
            Parameter("model", self.model.name),
            f": fails on {images} images of {side} x {side} pixels ({reason(error)}). Give the size that it takes with ",
            Parameter("crop"),
            ", and for an exported program the number of images with ",
            Parameter("batch_size"),
            ".",
        )


def pixels_of(images: Images, numbers: range, preprocessing: Preprocessing) -> tuple[list[NDArray[np.uint8]], dict[int, str]]:
    """The pixels of images; a white image in place of each that cannot be read, whose reason is returned by its number."""
    pixels, unreadable = [], {}
    for number in numbers:
        try:
            pixels.append(decode(images.read(number), preprocessing))
        except (Unreadable, OSError, ValueError) as error:
            unreadable[number] = (error.strerror if isinstance(error, OSError) and error.strerror else reason(error)).rstrip(
                "."
            )
            pixels.append(white(preprocessing))
    return pixels, unreadable


@contextmanager
def torch_threads(torch: Any) -> Iterator[None]:
    """As many threads for torch as this process may use."""
    before = torch.get_num_threads()
    torch.set_num_threads(cores())
    try:
        yield
    finally:
        torch.set_num_threads(before)

"""Images as a network takes them: decoded with Pillow, upright, in RGB, resized and cut to a square.

Pixels that let the background through lie on white; of an animation the first frame is taken. The square is cut out of the
original and resized in one step, so that no image, however long and narrow, grows beyond what the network takes. JPEG files
much larger than that are decoded at a half, a quarter or an eighth of their size, as the format allows.
"""

from __future__ import annotations

import io
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal
from warnings import catch_warnings, simplefilter

import numpy as np
from numpy.typing import NDArray

from mmdiff.formats.extras import load
from mmdiff.formats.sources.limits import reason
from mmdiff.formats.store.manifest import Json

# Image formats whose readers are part of Pillow. Others, such as EPS, would start programs.
FORMATS = ("JPEG", "MPO", "PNG", "GIF", "BMP", "DIB", "TIFF", "WEBP", "AVIF", "JPEG2000", "PPM")

# More pixels than any camera has: a small file may claim to hold billions of them, which would fill the memory.
MOST_PIXELS = 200_000_000

_WHITE = 255
Interpolation = Literal["bilinear", "bicubic"]


class Unreadable(Exception):
    """An image that cannot be decoded, with the reason."""


@dataclass(frozen=True)
class Preprocessing:
    """The shorter side is resized to `resize`, a square of `crop` is cut from the middle, and colours are standardised.

    `mean` and `std` are of the red, green and blue of images between 0 and 1; the defaults are those of ImageNet.
    """

    resize: int = 256
    crop: int = 224
    mean: tuple[float, float, float] = (0.485, 0.456, 0.406)
    std: tuple[float, float, float] = (0.229, 0.224, 0.225)
    interpolation: Interpolation = "bilinear"

    def to_json(self) -> Json:
        return {**vars(self), "mean": list(self.mean), "std": list(self.std)}


@contextmanager
def decoding() -> Iterator[None]:
    """Within, Pillow warns of nothing: what it cannot decode is reported by us. Threads share it."""
    # Readers of formats are loaded before threads look for them.
    load("PIL.Image", "reading images", "images").init()
    with catch_warnings():
        simplefilter("ignore")
        yield


def decode(content: bytes, preprocessing: Preprocessing) -> NDArray[np.uint8]:
    """The pixels (crop, crop, 3) of an image. Raises Unreadable."""
    pil, operations = load("PIL.Image", "reading images", "images"), load("PIL.ImageOps", "reading images", "images")
    side = preprocessing.crop
    try:
        with pil.open(io.BytesIO(content), formats=[name for name in FORMATS if name in pil.OPEN]) as image:
            width, height = image.size
            if width * height > MOST_PIXELS:
                raise Unreadable(f"it claims {width:,} x {height:,} pixels, and at most {MOST_PIXELS:,} are decoded")
            image.draft("RGB", (2 * preprocessing.resize, 2 * preprocessing.resize))
            upright = _rgb(pil, operations.exif_transpose(image))
        short = min(upright.size)
        # The square in pixels of the original.
        cut = short * side / preprocessing.resize
        left, top = ((length - cut) / 2 for length in upright.size)
        method = pil.Resampling[preprocessing.interpolation.upper()]
        resized = upright.resize((side, side), method, box=(left, top, left + cut, top + cut))
        return np.asarray(resized, np.uint8)
    except Unreadable:
        raise
    except pil.UnidentifiedImageError:
        raise Unreadable("not an image of a format that is read") from None
    # Damaged files raise whatever the reader of their format stumbles over.
    except Exception as error:
        # Addresses of objects differ from run to run.
        raise Unreadable(re.sub(r" ?<[^<>]*>", "", reason(error))) from None


def white(preprocessing: Preprocessing) -> NDArray[np.uint8]:
    """The uniform image that takes the place of one that cannot be read."""
    return np.full((preprocessing.crop, preprocessing.crop, 3), _WHITE, np.uint8)


def _rgb(pil: Any, image: Any) -> Any:
    """An image of any mode as RGB."""
    if image.mode == "F":
        raise Unreadable("its pixels are fractions, whose range is unknown. Convert them to 8 bits")
    if image.mode == "I" or image.mode.startswith("I;"):
        values = np.asarray(image).astype(np.int64)
        if values.min() < 0 or values.max() > 0xFFFF:
            raise Unreadable("its pixels have 32 bits. Convert them to 8 or 16")
        return pil.fromarray((values >> 8).astype(np.uint8)).convert("RGB")
    if image.mode in ("RGBA", "LA", "PA", "La", "RGBa") or "transparency" in image.info:
        layer = image.convert("RGBA")
        canvas = pil.new("RGBA", layer.size, (_WHITE, _WHITE, _WHITE, _WHITE))
        canvas.alpha_composite(layer)
        return canvas.convert("RGB")
    return image.convert("RGB")

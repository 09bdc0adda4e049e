"""Pictures of rows, from files on this machine: in a folder, named by id, or at a path with `{id}` or `{row}` in it.

Ids come from the user's data, and may be anything. A picture is only ever read from below the folder: the path that an id leads
to is resolved, links included, and compared. What is read must be a picture as Pillow sees it, of bounded size.
"""

from __future__ import annotations

import os
import re
import stat
import threading
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from mmdiff.explain.nodes import ENDINGS
from mmdiff.formats.errors import BadOption, Parameter
from mmdiff.formats.extras import load

MOST_BYTES = 64 << 20
MOST_PIXELS = 100_000_000

# Pictures of more bytes, or more pixels on a side, are sent as smaller copies.
_SENT_BYTES = 1 << 20
_SENT_SIDE = 1280
_QUALITY = 85

_TYPES = {"JPEG": "image/jpeg", "PNG": "image/png", "WEBP": "image/webp", "GIF": "image/gif", "BMP": "image/bmp"}


# Pictures that are decoded at a time: each takes up to three bytes a pixel.
_decoding = threading.BoundedSemaphore(2)


class NotAPicture(Exception):
    """A file that is not sent: the reason is its text."""


@dataclass(frozen=True)
class Pictures:
    """The places of pictures: templates with `{id}`, `{row}` and `{role}`, all below a folder."""

    folder: Path
    templates: tuple[str, ...]
    endings: tuple[str, ...]

    @classmethod
    def of(cls, given: str) -> Pictures:
        """From a folder, or a path with `{id}` or `{row}` in it."""
        named = Parameter("images", given)
        if urlsplit(given).scheme in ("http", "https"):
            raise BadOption(named, ": an address. The page shows pictures of this machine: name a folder, or a path.")
        _pillow()
        folder, templates, endings = Path(given), [f"{given}/{{role}}/{{id}}", f"{given}/{{id}}"], list(ENDINGS)
        if "{id}" in given or "{row}" in given:
            before = given[: min(place for place in map(given.find, ("{id}", "{row}", "{role}")) if place >= 0)]
            folder, templates, endings = Path(before[: before.rfind("/") + 1] or "."), [given], [""]
        if "\0" in given or not folder.is_dir():
            raise BadOption(named, ": no such folder. Name one with a file for each id, or a path with {id} in it.")
        return cls(folder.resolve(), tuple(templates), tuple(endings))

    def find(self, role: str, identity: int | str, row: int) -> Path | None:
        """The file of a row, below the folder with all links resolved; None where there is none."""
        values = {"{id}": str(identity), "{row}": str(row), "{role}": role}
        if "\0" in values["{id}"]:
            return None
        for template in self.templates:
            base = _filled(template, values)
            for ending in self.endings:
                if (found := self._inside(base + ending)) is not None:
                    return found
        return None

    def _inside(self, path: str) -> Path | None:
        # Names that are too long, or go through a file, lead nowhere.
        try:
            resolved = Path(os.path.realpath(path, strict=True))
            return resolved if resolved.is_relative_to(self.folder) and resolved.is_file() else None
        except (OSError, ValueError):
            return None

    def read(self, file: Path) -> tuple[bytes, str]:
        """The bytes of a picture and their type: as they are, or of a smaller copy. Raises NotAPicture."""
        content = _content(file)
        with _decoding:
            return _checked(content)


def _filled(template: str, values: dict[str, str]) -> str:
    """A template with its placeholders replaced, once: an id may contain "{row}"."""
    return re.sub(r"\{(?:id|row|role)\}", lambda found: values[found[0]], template)


def _content(file: Path) -> bytes:
    """The bytes of a regular file that is no link now, of bounded size."""
    try:
        descriptor = os.open(file, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        with os.fdopen(descriptor, "rb") as stream:
            status = os.fstat(stream.fileno())
            if not stat.S_ISREG(status.st_mode):
                raise NotAPicture("This is not a file.")
            if status.st_size > MOST_BYTES:
                raise NotAPicture(f"The file has {status.st_size:,} bytes; pictures of up to {MOST_BYTES:,} are shown.")
            return stream.read(MOST_BYTES + 1)
    except OSError as error:
        raise NotAPicture(f"The file cannot be read ({error.strerror}).") from None


def _checked(content: bytes) -> tuple[bytes, str]:
    image_module, image_ops = _pillow()
    try:
        with image_module.open(BytesIO(content), formats=list(_TYPES)) as opened:
            width, height = opened.size
            if width * height > MOST_PIXELS:
                raise NotAPicture(f"The picture has {width:,} x {height:,} pixels; up to {MOST_PIXELS:,} are shown.")
            kind = _TYPES[opened.format]
            if len(content) <= _SENT_BYTES and max(width, height) <= 2 * _SENT_SIDE:
                # All of it is decoded: what is damaged is said here, and not by the browser.
                opened.load()
                return content, kind
            opened.draft("RGB", (_SENT_SIDE, _SENT_SIDE))
            small = image_ops.exif_transpose(opened).convert("RGB")
            small.thumbnail((_SENT_SIDE, _SENT_SIDE))
            stream = BytesIO()
            small.save(stream, "JPEG", quality=_QUALITY)
            return stream.getvalue(), "image/jpeg"
    except image_module.UnidentifiedImageError:
        raise NotAPicture("The file is not a picture (JPEG, PNG, WebP, GIF or BMP).") from None
    except (image_module.DecompressionBombError, image_module.DecompressionBombWarning):
        raise NotAPicture(f"The picture has too many pixels; up to {MOST_PIXELS:,} are shown.") from None
    # Pillow raises many kinds of errors for a damaged picture.
    except (OSError, ValueError, SyntaxError, MemoryError, EOFError, ArithmeticError, LookupError, TypeError) as error:
        raise NotAPicture(f"The picture is damaged ({type(error).__name__}).") from None


def _pillow() -> tuple[Any, Any]:
    return load("PIL.Image", "showing pictures"), load("PIL.ImageOps", "showing pictures")

"""The images behind ids: a folder with a file for each id, or a template in which `{id}` (and `{role}`) stand for them.

What cannot be found or read is None, for a placeholder: one broken image must not cost the user the rest.
"""

from __future__ import annotations

import base64
from dataclasses import dataclass
from importlib import import_module
from io import BytesIO
from pathlib import Path, PurePosixPath
from typing import Any
from urllib.parse import quote, urlsplit

from mmdiff.explain.nodes import Name
from mmdiff.formats.errors import BadOption, MissingExtra

ENDINGS = ("", ".jpg", ".jpeg", ".JPEG", ".JPG", ".png", ".PNG", ".webp", ".gif", ".bmp")
SIDE = 128
_QUALITY = 82


@dataclass(frozen=True)
class Images:
    """Where the images are: `template` has `{id}` in it. Those of a URL are left where they are, files are embedded."""

    template: str
    is_url: bool
    endings: tuple[str, ...] = ("",)

    @classmethod
    def of(cls, given: str) -> Images:
        """From what the user wrote."""
        is_url = urlsplit(given).scheme in ("http", "https")
        if "{id}" in given:
            return cls(given, is_url)
        if is_url:
            raise BadOption(f"--images {given}: no {{id}} in it, so all images would be one. Write it where the id stands.")
        if not Path(given).is_dir():
            raise BadOption(f"--images {given}: no such folder. Name one with a file for each id, or a template with {{id}}.")
        return cls(f"{given}/{{role}}/{{id}}\0{given}/{{id}}", False, ENDINGS)

    @property
    def host(self) -> str | None:
        """Where the images of a URL come from."""
        return urlsplit(self.template).netloc if self.is_url else None

    def find(self, name: Name) -> str | None:
        """The URL or the file of an image; None where there is no file."""
        if self.is_url:
            return self.template.replace("{role}", name.role).replace("{id}", quote(str(name.id), safe=""))
        if not _stays_inside(str(name.id)):
            return None
        for template in self.template.split("\0"):
            base = template.replace("{role}", name.role).replace("{id}", str(name.id))
            for ending in self.endings:
                if Path(base + ending).is_file():
                    return base + ending
        return None

    def thumbnail(self, name: Name) -> str | None:
        """What an <img> can show: the URL, or a small copy of the file as a data URI."""
        found = self.find(name)
        return found if found is None or self.is_url else _embedded(Path(found))


def _stays_inside(identity: str) -> bool:
    """An id may name a file in a folder further down, but none elsewhere."""
    path = PurePosixPath(identity)
    return "\0" not in identity and not path.is_absolute() and ".." not in path.parts


def _embedded(file: Path) -> str | None:
    image_module, image_ops = _pillow()
    try:
        with image_module.open(file) as opened:
            opened.draft("RGB", (2 * SIDE, 2 * SIDE))
            small = image_ops.exif_transpose(opened).convert("RGB")
            small.thumbnail((SIDE, SIDE))
            stream = BytesIO()
            small.save(stream, "JPEG", quality=_QUALITY)
    # Whatever is wrong with a picture (Pillow raises many kinds of errors for it), it is only a picture.
    except (OSError, ValueError, SyntaxError, MemoryError, image_module.DecompressionBombError):
        return None
    return "data:image/jpeg;base64," + base64.b64encode(stream.getvalue()).decode()


def _pillow() -> tuple[Any, Any]:
    try:
        return import_module("PIL.Image"), import_module("PIL.ImageOps")
    except ImportError as error:
        raise MissingExtra("Pillow", "report", "making thumbnails") from error

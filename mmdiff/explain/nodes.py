"""Nodes and test points by the user's ids and roles, and the images behind these ids.

Images are given as a folder with a file for each id, or as a template in which `{id}` (and `{role}`) are replaced. An image
that cannot be found or read is None and gets a placeholder: a broken image must not end a report.
"""

from __future__ import annotations

import base64
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path, PurePosixPath
from typing import Any
from urllib.parse import quote, urlsplit

import numpy as np
from numpy.typing import NDArray

from mmdiff.formats.errors import BadOption, Parameter
from mmdiff.formats.extras import load
from mmdiff.formats.storage.strings import Strings
from mmdiff.formats.store.store import Store
from mmdiff.graph.graph import NAME as GRAPH
from mmdiff.labels.ids import Ids, ids_of

_SHOWN = 3

# The roles that have another name for a single row.
_CALLED = {"seeds": "seed", "appended": "background"}


@dataclass(frozen=True)
class Name:
    """A row of a role, by the user's id."""

    role: str
    id: int | str

    def __str__(self) -> str:
        return f"{self.role} {self.id}"


class Nodes:
    """The nodes of a store's graph: background, appended rows, seeds, and test points if they are nodes.

    Appended rows are called background too. Rows without ids have numbers.
    """

    def __init__(self, store: Store, order: NDArray[np.uint32] | None) -> None:
        facts = store.open_artifact(GRAPH).manifest.facts
        self._counts = {role: int(facts.get(role, 0)) for role in ("background", "appended", "seeds", "test")}
        self._ids = {role: role_ids(store, role, count) for role, count in self._counts.items()}
        self._order = order

    def name(self, node: int) -> Name:
        row = node
        for role, count in self._counts.items():
            if row < count:
                if role == "background" and self._order is not None:
                    row = int(self._order[row])
                return Name(_CALLED.get(role, role), plain(self._ids[role], row))
            row -= count
        raise IndexError(node)


def role_ids(store: Store, role: str, count: int) -> Ids | range:
    """The ids of a role; row numbers where an imported graph has no descriptors."""
    name = f"descriptors/{role}"
    return range(count) if store.id(name) is None else ids_of(store.open_artifact(name))


def plain(ids: Ids | range, row: int) -> int | str:
    value = ids[row]
    return value if isinstance(value, str) else int(value)


def find_row(ids: Ids | range, wanted: Parameter, what: str) -> int:
    """The row with the id that a parameter asks for; `what` names the rows in messages."""
    rows = _rows(ids, str(wanted.value))
    if len(rows):
        return int(rows[0])
    known = ", ".join(str(plain(ids, row)) for row in range(min(_SHOWN, len(ids))))
    raise BadOption(wanted, f": no {what} has this id. There are {len(ids):,}: {known}, ...")


def _rows(ids: Ids | range, wanted: str) -> NDArray[np.int64]:
    if isinstance(ids, Strings):
        text = np.frombuffer(wanted.encode(errors="surrogateescape"), np.uint8)
        alike = np.flatnonzero(np.diff(ids.offsets) == len(text))
        for place, byte in enumerate(text):
            alike = alike[ids.utf8[ids.offsets[alike] + place] == byte]
        return alike
    try:
        number = int(wanted)
    except ValueError:
        return np.empty(0, np.int64)
    if isinstance(ids, range):
        return np.array([number] if number in ids else [], np.int64)
    return np.flatnonzero(ids == number)


ENDINGS = ("", ".jpg", ".jpeg", ".JPEG", ".JPG", ".png", ".PNG", ".webp", ".gif", ".bmp")
SIDE = 128
_QUALITY = 82


@dataclass(frozen=True)
class Images:
    """The places of images, as templates with `{id}`. Images of a URL are linked, files are embedded."""

    template: str
    is_url: bool
    endings: tuple[str, ...] = ("",)

    @classmethod
    def of(cls, given: str) -> Images:
        """From a folder, or a template with `{id}`."""
        named = Parameter("images", given)
        is_url = urlsplit(given).scheme in ("http", "https")
        if "{id}" in given:
            return cls(given, is_url)
        if is_url:
            raise BadOption(named, ": no {id} in it, so all images would be the same. Write {id} in place of the id.")
        if not Path(given).is_dir():
            raise BadOption(named, ": no such folder. Name one with a file for each id, or a template with {id}.")
        return cls(f"{given}/{{role}}/{{id}}\0{given}/{{id}}", False, ENDINGS)

    @property
    def host(self) -> str | None:
        """The host that images are loaded from; None for files."""
        return urlsplit(self.template).netloc if self.is_url else None

    def find(self, name: Name) -> str | None:
        """The URL or file of an image; None where there is no file."""
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
        """The source of an <img>: the URL, or a small copy of the file as a data URI."""
        found = self.find(name)
        return found if found is None or self.is_url else _embedded(Path(found))


def _stays_inside(identity: str) -> bool:
    """Whether an id names a file below the folder."""
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
    # Pillow raises many kinds of errors for a broken image, which gets a placeholder.
    except (OSError, ValueError, SyntaxError, MemoryError, image_module.DecompressionBombError):
        return None
    return "data:image/jpeg;base64," + base64.b64encode(stream.getvalue()).decode()


def _pillow() -> tuple[Any, Any]:
    return load("PIL.Image", "making thumbnails"), load("PIL.ImageOps", "making thumbnails")

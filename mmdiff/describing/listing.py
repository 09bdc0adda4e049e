"""The images that the user names: a folder, a pattern, a list of paths, or tar shards as webdataset writes them.

Images are numbered in natural order. The path relative to the folder is the id, and its first folder is the class: `cat/7.jpg`
is of class `cat`, and an image that lies in no folder has no class.
"""

from __future__ import annotations

import glob
import hashlib
import os
import re
import tarfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

import numpy as np

from mmdiff.formats.errors import DuplicateIds, Parameter, UnreadableSource
from mmdiff.formats.sources.limits import readable
from mmdiff.formats.sources.opening import IMAGE_ENDINGS
from mmdiff.formats.sources.spec import natural_order
from mmdiff.formats.storage.strings import Strings
from mmdiff.formats.store.manifest import Json

# A file of this size is no image; it would be read as a whole.
MOST_FILE_BYTES = 1 << 30

# The digest of images covers all names and sizes, and the content of so many of them.
_SAMPLED = 2048
_SAMPLE_BYTES = 1 << 16
_COMPRESSED = (".tar.gz", ".tgz", ".tar.bz2", ".tar.xz", ".tar.zst")


@dataclass(frozen=True)
class Place:
    """The bytes of an image: `size` bytes of a file, from `offset` on. A file that is missing has no size."""

    file: str
    size: int
    offset: int = 0


@dataclass(frozen=True)
class Images:
    """Images by number: where they are, and their ids and classes ("" for none). `name` is what the user gave."""

    name: str
    places: Sequence[Place] = field(repr=False)
    ids: Strings = field(repr=False)
    classes: Strings = field(repr=False)

    def __len__(self) -> int:
        return len(self.places)

    @cached_property
    def files(self) -> tuple[Path, ...]:
        """The files that are there, each once."""
        return tuple(Path(file) for file in dict.fromkeys(place.file for place in self.places if place.size))

    def read(self, image: int) -> bytes:
        """The bytes of an image. Raises OSError or ValueError where it has none."""
        place = self.places[image]
        if place.size > MOST_FILE_BYTES:
            raise ValueError(f"a file of {place.size:,} bytes, expected at most {MOST_FILE_BYTES:,}")
        with Path(place.file).open("rb") as stream:
            stream.seek(place.offset)
            content = stream.read(place.size) if place.size else b""
        if not content:
            raise ValueError("an empty file")
        return content

    def locate(self, image: int) -> str:
        return f"{self.name}, {self.ids[image]}"

    @cached_property
    def fingerprint(self) -> Json:
        """Identifies the images by their ids and sizes, and by the content of a sample of them."""
        digest = hashlib.blake2b(digest_size=12)
        digest.update(self.ids.utf8.tobytes())
        digest.update(self.ids.offsets.tobytes())
        sizes = np.array([place.size for place in self.places], np.int64)
        digest.update(sizes.tobytes())
        for image in np.unique(np.linspace(0, len(self) - 1, min(len(self), _SAMPLED)).astype(int)).tolist():
            place = self.places[image]
            try:
                with Path(place.file).open("rb") as stream:
                    stream.seek(place.offset)
                    digest.update(stream.read(min(place.size, _SAMPLE_BYTES)))
            except OSError:
                # It will be found unreadable, unless it is there by then.
                digest.update(b"unreadable")
        return {
            "source": Path(self.name).name,
            "bytes": int(sizes.sum()),
            "files": len(self.files),
            "digest": digest.hexdigest(),
        }


def list_images(spec: str, prefix: str = "") -> Images:
    """The images of a folder and the folders in it, of a pattern, of a list (`.txt`), or of tar shards.

    Every id begins with the prefix.
    """
    path = Path(spec)
    found: Sequence[tuple[str, str, Place]]
    if path.is_dir():
        found = sorted(_in_folder(path, "", ()), key=lambda entry: natural_order(entry[0]))
    elif path.is_file():
        found = _in_file(path)
    else:
        found = _matching(spec)
    if not found:
        raise UnreadableSource(f"{spec}: no images in it. Images are files that end in {', '.join(IMAGE_ENDINGS)}, or in .tar.")
    ids = [prefix + _unicode(name) for name, _, _ in found]
    if len(set(ids)) < len(ids):
        seen: set[str] = set()
        twice = next(name for name in ids if name in seen or seen.add(name))  # type: ignore[func-returns-value]
        raise DuplicateIds(f"{spec}: {twice} is named twice. The path of an image is its id: name each once.")
    classes = [_unicode(folder) for _, folder, _ in found]
    return Images(spec, [place for _, _, place in found], Strings.of(ids), Strings.of(classes))


def _unicode(name: str) -> str:
    """A path as text; bytes of it that are not UTF-8 become escapes."""
    return os.fsencode(name).decode("utf-8", "backslashreplace")


def _is_image(name: str) -> bool:
    return not name.startswith(".") and os.path.splitext(name)[1].lower() in IMAGE_ENDINGS  # noqa: PTH122


def _first_folder(name: str) -> str:
    """The first folder of a relative path; "" where there is none."""
    folder, separator, _ = name.partition("/")
    return folder if separator else ""


def _in_folder(folder: Path, relative: str, above: tuple[tuple[int, int], ...]) -> Iterator[tuple[str, str, Place]]:
    """The images of a folder. Links to folders are followed, unless they lead to one that is `above`."""
    try:
        status = folder.stat()
        entries = list(os.scandir(folder))
    except OSError as error:
        raise UnreadableSource(f"{folder}: cannot be read ({error.strerror}). Check the folder and its permissions.") from None
    here = (status.st_dev, status.st_ino)
    if here in above:
        return
    for entry in entries:
        name = f"{relative}{entry.name}"
        if entry.name.startswith("."):
            continue
        if entry.is_dir():
            yield from _in_folder(Path(entry.path), f"{name}/", (*above, here))
        elif _is_image(entry.name):
            yield name, _first_folder(name), _place_of(entry.path)


def _place_of(path: str) -> Place:
    """A file as a whole; one that is missing, or is no regular file, has no size."""
    try:
        file = Path(path)
        return Place(path, file.stat().st_size if file.is_file() else 0)
    except (OSError, ValueError):
        return Place(path, 0)


def _in_file(path: Path) -> Sequence[tuple[str, str, Place]]:
    """The images of a list or of a tar file, or the one image that a file is."""
    name = path.name.lower()
    if name.endswith(_COMPRESSED):
        raise UnreadableSource(
            f"{path}: a compressed tar file, in which images cannot be found by their place. Unpack it to .tar."
        )
    if name.endswith(".tar"):
        return list(_in_tar(path))
    if name.endswith(".txt"):
        return _in_list(path)
    if _is_image(path.name):
        return [(path.name, "", _place_of(str(path)))]
    raise UnreadableSource(
        f"{path}: neither a folder, nor a list of paths (.txt), nor a tar file (.tar), nor an image. Images are files that "
        f"end in {', '.join(IMAGE_ENDINGS)}."
    )


def _in_list(path: Path) -> Sequence[tuple[str, str, Place]]:
    """The images of a list of paths, one in a line. A path is relative to the folder of the list; its folder is the class."""
    try:
        lines = path.read_text(encoding="utf-8", errors="surrogateescape").splitlines()
    except OSError as error:
        raise UnreadableSource(f"{path}: cannot be read ({error.strerror}). Check the file and its permissions.") from None
    names = [line.strip() for line in lines if line.strip()]
    return [(name, Path(name).parent.name, _place_of(os.path.join(path.parent, name))) for name in names]  # noqa: PTH118


def _in_tar(path: Path) -> Iterator[tuple[str, str, Place]]:
    """The images of a tar file, in their order. An id begins with the name of the file, since shards repeat those within."""
    size = path.stat().st_size
    with readable(str(path), "a tar file"), tarfile.open(path, "r:") as archive:
        for member in archive:
            name = member.name.removeprefix("./")
            if member.isreg() and not member.issparse() and _is_image(name.rpartition("/")[2]):
                if member.offset_data + member.size > size:
                    raise ValueError(f"{name} goes beyond the end of the file")
                yield f"{path.stem}/{name}", _first_folder(name), Place(str(path), member.size, member.offset_data)


def _matching(spec: str) -> Sequence[tuple[str, str, Place]]:
    """The images and the tar files that match a pattern, such as `photos/*/*.jpg` or `shards/train-{000..099}.tar`."""
    patterns = list(_expanded(spec))
    if patterns == [spec] and not glob.has_magic(spec):
        raise UnreadableSource(f"{spec}: no such file or folder. Check the path (the current folder is {Path.cwd()}).")
    # Path.glob also matches hidden files, and refuses absolute patterns.
    matches = [match for pattern in patterns for match in glob.glob(pattern, recursive=True)]  # noqa: PTH207
    matches = sorted((match for match in matches if Path(match).is_file()), key=natural_order)
    if not matches:
        raise UnreadableSource(f"{spec}: nothing matches this pattern. Check the path (the current folder is {Path.cwd()}).")
    found: list[tuple[str, str, Place]] = []
    fixed = len(_fixed_folder(spec))
    for match in matches:
        if match.lower().endswith((".tar", *_COMPRESSED)):
            found += _in_file(Path(match))
        elif _is_image(Path(match).name):
            found.append((match[fixed:], _first_folder(match[fixed:]), _place_of(match)))
    return found


def _fixed_folder(pattern: str) -> str:
    """The folders before the first special character, with the last slash."""
    return re.split(r"[*?\[{]", pattern)[0].rpartition("/")[0] + "/" if "/" in re.split(r"[*?\[{]", pattern)[0] else ""


def _expanded(pattern: str) -> Iterator[str]:
    """The patterns that `{000..099}` stands for, as webdataset writes it."""
    found = re.search(r"\{(\d{1,9})\.\.(\d{1,9})\}", pattern)
    if found is None:
        yield pattern
        return
    first, last = found.groups()
    if int(last) - int(first) > 1 << 20:
        raise UnreadableSource(
            Parameter("source", pattern), ": more than a million files. Name fewer, or use a pattern with *."
        )
    for number in range(int(first), int(last) + 1):
        yield from _expanded(f"{pattern[: found.start()]}{number:0{len(first)}}{pattern[found.end() :]}")

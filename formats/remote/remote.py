"""Remote stores, on S3 and all file systems that fsspec opens. They are read-only.

Object stores have no symlinks, and tools that copy a store there follow them: `graph/W/zarr.json` is the manifest of `graph/W`,
and its chunks lie beside it. The id, which the link holds in a local store, is the digest of the manifest; it is compared with
the folders of `objects/` if these were copied too. `fetching.py` checks the chunks against the manifest.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from mmdiff.formats.errors import BadOption, Corrupt, Missing, Parameter, StoreError, Unreachable
from mmdiff.formats.extras import load
from mmdiff.formats.storage.metadata import MOST_BYTES
from mmdiff.formats.store.manifest import Manifest, id_of, is_object_name, object_id
from mmdiff.formats.store.store import NAMESPACES, check_mark, check_name, is_name, missing_artifact

_LONGEST_REASON = 200


@dataclass(frozen=True)
class Published:
    """An artifact of a remote store, with its manifest."""

    name: str
    id: str
    manifest: Manifest


@dataclass
class Remote:
    """A store at a URL. `url` is for display, without the password."""

    url: str
    _files: Any
    _root: str
    _published: dict[str, Published | None] = field(default_factory=dict)

    @classmethod
    def open(cls, url: str) -> Remote:
        """Opens the store at a URL."""
        remote = cls(_shown(url), *_file_system(url))
        try:
            remote._check()
        except _NoCredentials as error:
            # Public buckets are read without a signature, by a file system of their own.
            remote = cls(_shown(url), *_file_system(url, anon=True))
            try:
                remote._check()
            except Unreachable:
                raise error from None
        return remote

    @cached_property
    def names(self) -> list[str]:
        """The names of all artifacts, in the order of the stages."""
        found = (f"{space}/{entry}" for space in NAMESPACES for entry in self._list(space))
        return [name for name in found if is_name(name)]

    def find(self, name: str) -> Published | None:
        """The artifact of a name; None if the store does not have it."""
        if name not in self._published:
            try:
                text = self.read(f"{check_name(name, lambda: self.names)}/zarr.json")
            except Missing:
                self._published[name] = None
            else:
                self._published[name] = self._checked(name, text)
        return self._published[name]

    def artifact(self, name: str) -> Published:
        """The artifact of a name."""
        found = self.find(name)
        if found is None:
            raise missing_artifact(name, self.url, self.names, "nothing that the server lists")
        return found

    def run_text(self, name: str) -> bytes:
        """The record of the run that made an artifact."""
        try:
            return self.read(f"{name}/run/zarr.json")
        except Missing as error:
            raise Corrupt(f"{error}: the record of the run is missing. Copy the store there again.") from None

    def read(self, file: str, start: int = 0, stop: int = MOST_BYTES) -> bytes:
        """Bytes `start` to `stop` of a file of the store, fewer where it ends before.

        With `start=0` there may also be more: a web server without range requests sends the whole file.
        """
        try:
            return bytes(self._files.cat_file(f"{self._root}/{file}", start=start, end=stop))
        except Exception as error:  # the errors of file systems have no common type
            raise _explained(f"{self.url}/{file}", error) from None

    def _check(self) -> None:
        """Raises an error unless the URL holds a readable store."""
        try:
            check_mark(self.read("zarr.json"), self.url)
        except Missing as error:
            raise Missing(
                f"{self.url}: no store there ({error}). Name the URL of the folder that holds the store's zarr.json."
            ) from None

    def _checked(self, name: str, text: bytes) -> Published:
        where = f"{self.url}/{name}/zarr.json"
        manifest = Manifest.parse(text, where)
        identity = object_id(manifest.kind, text)
        try:
            same = manifest.zarr_json() == text
        except RecursionError:
            same = False
        if not same:
            raise Corrupt(f"{where}: not in the form in which mmdiff writes manifests. Copy the store there again.")
        if self._ids and identity not in self._ids:
            raise Corrupt(
                f"{where}: its digest is that of {identity}, and there is no such object in {self.url}/objects. "
                "It was changed, or is being replaced: copy the store there again."
            )
        return Published(name, identity, manifest)

    @cached_property
    def _ids(self) -> set[str]:
        return {id_of(entry) for entry in self._list("objects") if is_object_name(entry)}

    def _list(self, folder: str) -> list[str]:
        """The entries of a folder; empty where the bucket or web server does not list them."""
        path = f"{self._root}/{folder}"
        try:
            found = self._files.ls(path, detail=False)
        except (FileNotFoundError, PermissionError):
            return []
        except Exception as error:
            if path.startswith("http"):
                return []
            raise _explained(f"{self.url}/{folder}", error) from None
        return sorted(str(entry).rstrip("/").rpartition("/")[2] for entry in found)


class _NoCredentials(Unreachable):
    """No credentials are configured."""


def is_url(place: str) -> bool:
    return "://" in place


def _shown(url: str) -> str:
    """A URL without the user and password that may be in it."""
    return re.sub(r"://[^/@]*@", "://", url).rstrip("/")


def _file_system(url: str, **options: Any) -> tuple[Any, str]:
    """The file system of a URL, and the path in it. Listings and connections of earlier uses are not reused."""
    scheme = url.partition("://")[0]
    if not is_url(url):
        raise BadOption(
            Parameter("url", url), ": not a URL. Write it like s3://bucket/store, or file:///path/to/store for a folder."
        )
    purpose = f"reading {scheme}://"
    fsspec = load("fsspec", purpose)
    if scheme in ("s3", "s3a"):
        load("s3fs", purpose)
    try:
        files, root = fsspec.url_to_fs(url, use_listings_cache=False, skip_instance_cache=True, **options)
    except ImportError as error:
        raise BadOption(f"{_shown(url)}: {_first_line(error)}") from None
    except (ValueError, TypeError, OSError) as error:
        # Some file systems need more than a URL, and say so with a TypeError or an OSError.
        if "Protocol not known" in str(error):
            known = "s3://, gs://, https://, file://"
            raise BadOption(f"{_shown(url)}: unknown protocol {scheme}://. Use {known}, or another of fsspec.") from None
        raise BadOption(f"{_shown(url)}: not a URL that can be read ({_first_line(error)}). Check it.") from None
    return files, str(root).rstrip("/")


def _explained(url: str, error: Exception) -> StoreError:
    """The error of a file system as one of ours."""
    reason = _first_line(error)
    if isinstance(error, FileNotFoundError):
        return Missing(f"{url}: {reason}" if reason and not url.endswith(reason) else f"{url} does not exist")
    if type(error).__name__ in ("NoCredentialsError", "PartialCredentialsError"):
        remedy = "Set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or run `aws configure`."
        return _NoCredentials(f"{url}: no credentials ({reason}). {remedy}")
    if isinstance(error, PermissionError):
        return Unreachable(f"{url}: access denied ({reason}). Check that your credentials may read it.")
    return Unreachable(f"{url}: cannot be read ({reason}). Check the URL and the network, then run this again.")


def _first_line(error: Exception) -> str:
    text = (isinstance(error, OSError) and error.strerror) or str(error)
    lines = text.strip().splitlines()
    return (lines[0] if lines else type(error).__name__)[:_LONGEST_REASON].rstrip(".")

"""A remote store that is read as if it were here: what is asked for comes when it is needed, and stays in a folder.

Names, manifests and records of runs are those of the remote store at this moment. The folder is an ordinary store, to which an
artifact is fetched as a whole when its files are first needed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from mmdiff.formats.fetching import Progress, fetch
from mmdiff.formats.remote import Remote
from mmdiff.formats.store import Artifact, Store


@dataclass(frozen=True)
class CachedStore(Store):
    """`path` is the folder that keeps what has come."""

    remote: Remote
    progress: Progress

    def __str__(self) -> str:
        return self.remote.url

    def names(self) -> list[str]:
        return self.remote.names

    def object_name(self, name: str) -> str | None:
        """The folder that holds the artifact here, or will hold it."""
        published = self.remote.find(name)
        if published is None:
            return None
        here = Store(self.path)
        return here.object_name(name) if here.id(name) == published.id else published.id

    def open_object(self, name: str, object_name: str) -> Artifact:
        return Artifact(name, object_name, self.remote.artifact(name).manifest, self)

    def bring(self, names: Sequence[str]) -> None:
        fetch(self.remote, names, self.path, self.progress)

    def folder(self, name: str, object_name: str) -> Path:  # noqa: ARG002
        """Where the files are, once they have come."""
        self.bring([name])
        return Store(self.path).open_artifact(name).folder

    def run_text(self, name: str, object_name: str) -> bytes:  # noqa: ARG002
        return self.remote.run_text(name)

    def remedy(self, artifact: Artifact) -> str:  # noqa: ARG002
        return f"Remove the folder {self.path} and run this again: what is needed is fetched anew."

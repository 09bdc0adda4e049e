"""Opening the store of a command that only reads: a folder, or a URL whose artifacts come when they are needed."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path
from typing import TYPE_CHECKING

from mmdiff.cli import show

if TYPE_CHECKING:
    from mmdiff.formats.store.store import Store


def open_store(place: str) -> Store:
    """The store in a folder or at a URL. What is read of the latter stays in the cache, for this command and later ones."""
    from mmdiff.formats.remote.fetching import CachedStore
    from mmdiff.formats.remote.remote import Remote, is_url
    from mmdiff.formats.store.store import Store

    if not is_url(place):
        return Store.open(Path(place))
    return CachedStore(cache_of(place), Remote.open(place), show.progress)


def cache_of(url: str) -> Path:
    """The folder that keeps what was read of a URL."""
    cache = os.environ.get("MMDIFF_CACHE")
    parent = Path(cache) if cache else Path.home() / ".cache" / "mmdiff"
    return parent / hashlib.blake2b(url.rstrip("/").encode(), digest_size=8).hexdigest()

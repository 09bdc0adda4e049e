"""Fingerprints of source files: cheap enough to take before a run, so that an unchanged input is recognised.

The digest covers names, sizes and samples of the content; it goes into the manifest. Modification times vouch for what lies
between the samples; they are kept with the run, since a copy of a file is still the same input.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from mmdiff.formats.store.manifest import Json

_WHOLE_BYTES = 1 << 20
_SAMPLES = 64
_SAMPLE_BYTES = 4096
_WITNESSES = 1000


def fingerprint(name: str, files: Sequence[Path]) -> Json:
    """What a source is: the name, the bytes and a digest of its files."""
    digest = hashlib.blake2b(digest_size=12)
    size = 0
    for file in files:
        with file.open("rb", buffering=0) as stream:
            length = os.fstat(stream.fileno()).st_size
            digest.update(os.fsencode(file.name) + f"\0{length}\0".encode())
            if length <= _WHOLE_BYTES:
                digest.update(stream.read())
            else:
                for sample in range(_SAMPLES):
                    offset = sample * (length - _SAMPLE_BYTES) // (_SAMPLES - 1)
                    digest.update(os.pread(stream.fileno(), _SAMPLE_BYTES, offset))
            size += length
    return {"source": name, "bytes": size, "files": len(files), "digest": digest.hexdigest()}


def witness(files: Sequence[Path]) -> list[list[str | int]]:
    """Where the files are and when they were last written (of very many, the first thousand)."""
    stats = [(file, file.stat()) for file in files[:_WITNESSES]]
    return [[str(file.resolve()), status.st_size, status.st_mtime_ns] for file, status in stats]


def state(seen: Sequence[Sequence[str | int]]) -> Literal["same", "changed", "gone"]:
    """What has become of the files that a run read."""
    for path, size, modified in seen:
        try:
            status = Path(str(path)).stat()
        except OSError:
            return "gone"
        if (status.st_size, status.st_mtime_ns) != (size, modified):
            return "changed"
    return "same"

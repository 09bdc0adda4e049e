"""`.safetensors`: a model as it was stored, for torch and others."""

from __future__ import annotations

from collections.abc import Sequence
from typing import IO

from mmdiff.export.numpys import stream_values
from mmdiff.formats.store import Artifact
from mmdiff.progress import Progress


def write_safetensors(artifact: Artifact, arrays: Sequence[str], stream: IO[bytes], progress: Progress) -> None:  # noqa: ARG001
    """The bytes of the file, which the artifact has as an array."""
    with progress(f"exporting {artifact.name}", artifact.spec("safetensors").shape[0], "bytes") as advance:
        stream_values(artifact, "safetensors", stream, advance)

"""`mmdiff report`: the store as one HTML page that needs nothing but itself."""

from __future__ import annotations

from pathlib import Path

from mmdiff.export.target import check_place, whole_file
from mmdiff.formats.manifest import Json
from mmdiff.formats.store import Store
from mmdiff.progress import Progress, silent
from mmdiff.report.gathering import Request, gather
from mmdiff.report.page import page, sections

__all__ = ["Request", "write_report"]


def write_report(store: Store, out: Path, request: Request, progress: Progress = silent) -> Json:
    """Writes the page, and says what is in it."""
    check_place(out, store)
    findings = gather(store, request, progress)
    parts = sections(findings)
    # A file name that is no UTF-8 reaches us with lone surrogates, which no page can show.
    content = page(findings, parts).encode(errors="replace")
    with whole_file(out) as stream:
        stream.write(content)
    return {"file": str(out), "bytes": len(content), "sections": list(parts), "notes": findings.notes}
